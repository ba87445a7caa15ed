/* Rows of a packed weight by index, bit for bit what unpacking them gives; and gathering plain rows. */

static float weight_at(const struct gemm_args *a, int64_t n, int64_t k) {
    int64_t block = n / 16, c = n % 16;
    if (a->bits >= 16) {
        const int64_t at = a->number == NUMBER_BF16 ? k / 2 * 32 + 2 * c + k % 2 : k * 16 + c;
        return number_at(a->weights + block * dense_bytes(a), at, a->number);
    }
    const uint8_t *w = a->weights + (block * a->groups + k / GROUP) * group_bytes(a);
    int64_t d = k % GROUP, h = a->halves == 2 ? d / 16 : 0;
    int32_t code = a->bits == 8 ? w[d / 4 * 64 + 4 * c + d % 4] : w[d / 8 * 64 + 4 * c + d % 4] >> (d % 8 >= 4 ? 4 : 0) & 15;
    const uint8_t *numbers = w + a->bits * 64;
    float value = (float)(code - a->zero) * number_at(numbers, h * 16 + c, a->number);
    return a->has_min ? value + number_at(numbers, (a->halves + h) * 16 + c, a->number) : value;
}

static int32_t embed_chunks(const void *args, int32_t threads) {
    return split_rows(*((const struct embed_args *)args)->rows, threads * 4);
}

static void embed_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct embed_args *a = args;
    (void)worker;
    int64_t rows = *a->rows;
    for (int64_t row = rows * chunk / chunks; row < rows * (chunk + 1) / chunks; row++) {
        float *y = a->y + row * a->y_stride;
        for (int64_t k = 0; k < a->weight.columns; k++) y[k] = a->scale * weight_at(&a->weight, a->ids[row], k);
    }
}

static int32_t gather_chunks(const void *args, int32_t threads) {
    const struct gather_args *a = args;
    return split_rows(*a->rows, a->y == a->x ? 1 : threads); /* in place one after the other: rows move to the front */
}

static void gather_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct gather_args *a = args;
    (void)worker;
    int64_t rows = *a->rows;
    for (int64_t row = rows * chunk / chunks; row < rows * (chunk + 1) / chunks; row++) {
        const float *from = a->x + a->index[row] * a->x_stride;
        float *to = a->y + row * a->y_stride;
        if (to != from) memcpy(to, from, (size_t)a->columns * 4);
    }
}
