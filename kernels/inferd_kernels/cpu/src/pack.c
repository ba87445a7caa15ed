/* Repacking: planes of a PackedWeight, rows of codes, into the layout of gemm.h. */
#include "kernels.h"
#include <string.h>

static uint8_t code_at(const struct pack_args *a, int64_t n, int64_t k) {
    if (a->bits == 8) return (uint8_t)(a->codes[n * a->columns + k] + 128); /* int8, shifted */
    uint8_t pair = a->codes[n * (a->columns / 2) + k / 2];
    return k % 2 ? pair >> 4 : pair & 15;
}

static void pack_group(const struct pack_args *a, int64_t block, int64_t g, uint8_t *out) {
    const int64_t size = a->number == NUMBER_F32 ? 4 : 2, halves = a->group == 16 ? 2 : 1;
    const int64_t per_row = a->columns / a->group;
    for (int64_t c = 0; c < 16 && block * 16 + c < a->n; c++) {
        const int64_t n = block * 16 + c;
        for (int64_t d = 0; d < GROUP && g * GROUP + d < a->columns; d++) {
            uint8_t code = code_at(a, n, g * GROUP + d);
            if (a->bits == 8) out[d / 4 * 64 + 4 * c + d % 4] = code;
            else out[d / 8 * 64 + 4 * c + d % 4] |= (uint8_t)(code << (d % 8 >= 4 ? 4 : 0));
        }
        for (int64_t h = 0; h < halves; h++) {
            int64_t index = (g * GROUP + h * 16) / a->group;
            if (index >= per_row) continue;
            uint8_t *to = out + a->bits * 64 + (h * 16 + c) * size;
            memcpy(to, (const uint8_t *)a->scales + (n * per_row + index) * size, (size_t)size);
            if (a->mins) memcpy(to + halves * 16 * size, (const uint8_t *)a->mins + (n * per_row + index) * size, (size_t)size);
        }
    }
}

static void pack_dense(const struct pack_args *a, int64_t block) {
    const int64_t size = a->bits / 8, step = a->number == NUMBER_BF16 ? 2 : 1; /* as gemm_dense.h says */
    const int64_t bytes = (a->columns + step - 1) / step * step * 16 * size;
    uint8_t *out = a->out + block * bytes;
    memset(out, 0, (size_t)bytes);
    for (int64_t c = 0; c < 16 && block * 16 + c < a->n; c++)
        for (int64_t k = 0; k < a->columns; k++)
            memcpy(out + (k / step * step * 16 + c * step + k % step) * size,
                   a->codes + ((block * 16 + c) * a->columns + k) * size, (size_t)size);
}

static int32_t pack_chunks(const void *args, int32_t threads) {
    int32_t blocks = (((const struct pack_args *)args)->n + 15) / 16;
    return blocks < threads * 8 ? blocks : threads * 8;
}

static void pack_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct pack_args *a = args;
    (void)worker;
    const int64_t blocks = (a->n + 15) / 16, groups = (a->columns + GROUP - 1) / GROUP;
    const int64_t numbers = 16 * (a->group == 16 ? 2 : 1) * (a->number == NUMBER_F32 ? 4 : 2) * (a->mins ? 2 : 1);
    const int64_t stride = a->bits * 64 + numbers;
    for (int64_t block = blocks * chunk / chunks; block < blocks * (chunk + 1) / chunks; block++) {
        if (a->bits >= 16) {
            pack_dense(a, block);
            continue;
        }
        for (int64_t g = 0; g < groups; g++) {
            uint8_t *out = a->out + (block * groups + g) * stride;
            memset(out, 0, (size_t)stride);
            pack_group(a, block, g, out);
        }
    }
}

const struct op pack_op = {pack_chunks, pack_run};
