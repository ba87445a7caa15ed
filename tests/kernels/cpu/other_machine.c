/* Quantize rows and multiply them by a Q4_1 matrix through the library; print the products, then the same by plain C. */
#include "abi.h"
#include <stdio.h>
#include <string.h>

enum { ROWS = 5, N = 8, K = 64, GROUPS = K / GROUP };

const struct op *inferd_op(const char *name);
int32_t inferd_run(const struct step *steps, int32_t num_steps);
int32_t inferd_set_threads(int32_t threads);

static float x[ROWS][K], y[ROWS][N];
static uint8_t codes[N][K / 2], packed[16 * GROUPS * 64];
static float scales[N][GROUPS], mins[N][GROUPS];
static struct row_group groups[ROWS][GROUPS];
static int8_t fine[ROWS][K];
static uint64_t marks[ROWS];

int main(void) {
    uint32_t noise = 1;
#define NOISE ((noise = noise * 1664525u + 1013904223u) >> 16)
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < K; k++) x[r][k] = (float)(int)(NOISE % 2001 - 1000) / 300.0f;
    for (int n = 0; n < N; n++) {
        for (int k = 0; k < K / 2; k++) codes[n][k] = (uint8_t)NOISE;
        for (int g = 0; g < GROUPS; g++) scales[n][g] = (float)(1 + NOISE % 50) / 400.0f, mins[n][g] = -7 * scales[n][g];
    }
    int32_t rows = ROWS;
    struct pack_args pack = {(const uint8_t *)codes, scales, mins, packed, N, K, GROUP, 4, NUMBER_F32, 0};
    struct quant_args quantize = {.rows = &rows, .x = x[0], .x_stride = K, .columns = K, .fine_above = 1.0f};
    quantize.out = (struct int8_rows){groups[0], fine[0], marks};
    struct gemm_args gemm = {.rows = &rows, .x = quantize.out, .weights = packed, .y = y[0], .y_stride = N};
    gemm.n = N, gemm.columns = K, gemm.groups = GROUPS, gemm.bits = 4, gemm.halves = 1;
    gemm.number = NUMBER_F32, gemm.has_min = 1;
    struct step steps[] = {{inferd_op("pack"), &pack}, {inferd_op("quantize"), &quantize}, {inferd_op("gemm"), &gemm}};
    inferd_set_threads(2);
    if (inferd_run(steps, 3)) return 1;
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < N; n++) printf("%.9g ", y[r][n]);
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < N; n++) {
            double sum = 0;
            for (int k = 0; k < K; k++) {
                int code = k % 2 ? codes[n][k / 2] >> 4 : codes[n][k / 2] & 15;
                sum += x[r][k] * (code * scales[n][k / GROUP] + mins[n][k / GROUP]);
            }
            printf("%.9g ", sum);
        }
    return 0;
}
