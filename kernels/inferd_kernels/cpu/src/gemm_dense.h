/* Tiles of dense weights.
 *
 * Layout. Columns of y stand in blocks of 16. float16 and float32: 16 numbers for each depth. bf16: 16 pairs of numbers
 * for each two depths, which is what dot products of pairs read; an odd depth is filled up with zeros. Rows come as
 * floats, and nothing is rounded, or as bf16 for bf16 weights. One output is summed over the depth in order.
 */

/* Bytes of one block of columns. */
INLINE int64_t dense_bytes(const struct gemm_args *a) {
    return a->number == NUMBER_BF16 ? (a->columns + 1) / 2 * 64 : a->columns * 16 * number_bytes(a->number);
}

/* Weights of one depth, or (bf16) of one after the other of a pair. */
INLINE vf dense_lanes(const uint8_t *w, int64_t k, int number) {
    if (number == NUMBER_BF16) return k % 2 ? vf_odd_bf16(w + k / 2 * 64) : vf_even_bf16(w + k / 2 * 64);
    return vf_number(w, k * 16, number);
}

INLINE void tile_dense(const struct gemm_args *a, int64_t row, int32_t block, const int R, const int C, const int NUMBER) {
    const int64_t depth = a->columns, stride = dense_bytes(a);
    const uint8_t *first = a->weights + block * stride;
    const int step = NUMBER == NUMBER_BF16 ? 2 : 1;
    vf sum[FEW_ROWS][WIDE];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sum[r][c] = vf_zero();
    for (int64_t k = 0; k < depth; k += step)
        for (int half = 0; half < step && k + half < depth; half++) {
            vf w[WIDE];
            for (int c = 0; c < C; c++) w[c] = dense_lanes(first + c * stride, k + half, NUMBER);
            for (int r = 0; r < R; r++) {
                vf x = vf_set(a->plain[(row + r) * a->plain_stride + k + half]);
                for (int c = 0; c < C; c++) sum[r][c] = vf_fma(x, w[c], sum[r][c]);
            }
        }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) finish(a, row + r, block + c, sum[r][c]);
}

/* Rows in bf16: two depths at a time. */
INLINE void tile_pairs(const struct gemm_args *a, const uint16_t *x, int64_t row, int32_t block, const int R, const int C) {
    const int64_t pairs = (a->columns + 1) / 2, stride = pairs * 64, row_pairs = (int64_t)a->groups * GROUP;
    const uint8_t *w = a->weights + block * stride;
    x += row * row_pairs;
    prefetch_output(a, row, block, R, C);
    vf sum[FEW_ROWS][WIDE];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sum[r][c] = vf_zero();
    const int64_t ahead = bytes_ahead(stride, row, R, C);
    for (int64_t d = 0; d < pairs; d++) {
        for (int c = 0; ahead && c < C; c++) PREFETCH_SECOND(w + c * stride + d * 64 + ahead);
        vp weights[WIDE];
        for (int c = 0; c < C; c++) weights[c] = vp_load(w + c * stride + d * 64);
        for (int r = 0; r < R; r++) {
            vp pair = vp_repeat(x + r * row_pairs + d * 2);
            for (int c = 0; c < C; c++) sum[r][c] = dot_pair(sum[r][c], weights[c], pair);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) finish(a, row + r, block + c, sum[r][c]);
}
