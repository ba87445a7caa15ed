/* Rows of a packed weight by index, bit for bit what unpacking them gives; and gathering plain rows. */

/* Where the column of y that row n of the weight is stands, from its first group on. */
INLINE const uint8_t *column_of(const struct gemm_args *a, int64_t n) {
    return a->weights + n / 16 * (a->bits >= 16 ? dense_bytes(a) : a->groups * group_bytes(a));
}

static void dense_row(const struct gemm_args *a, int64_t n, float scale, float *y) {
    const uint8_t *w = column_of(a, n);
    const int64_t c = n % 16;
    for (int64_t k = 0; k < a->columns; k++)
        y[k] = scale * number_at(w, a->number == NUMBER_BF16 ? k / 2 * 32 + 2 * c + k % 2 : k * 16 + c, a->number);
}

/* Depths [first, end) of a group, which share scale and minimum. */
INLINE void unpack_half(const struct gemm_args *a, const uint8_t *w, int64_t c, int64_t first, int64_t end, float scale,
                        float *y, const int BITS) {
    const uint8_t *numbers = w + BITS * 64;
    const int64_t half = a->halves == 2 ? first / 16 : 0;
    const float scale_w = number_at(numbers, half * 16 + c, a->number);
    const float min = a->has_min ? number_at(numbers, (a->halves + half) * 16 + c, a->number) : 0;
    for (int64_t d = first; d < end; d++) {
        const int32_t code = BITS == 8 ? w[d / 4 * 64 + 4 * c + d % 4] : w[d / 8 * 64 + 4 * c + d % 4] >> (d % 8 >= 4 ? 4 : 0) & 15;
        const float value = (float)(code - a->zero) * scale_w;
        y[d] = scale * (a->has_min ? value + min : value);
    }
}

static void codes_row(const struct gemm_args *a, int64_t n, float scale, float *y) {
    const uint8_t *w = column_of(a, n);
    for (int64_t k = 0; k < a->columns; k += 16) {
        const int64_t group = k / GROUP, first = k % GROUP, left = a->columns - k, end = first + (left < 16 ? left : 16);
        const uint8_t *from = w + group * group_bytes(a);
        if (a->bits == 8) unpack_half(a, from, n % 16, first, end, scale, y + group * GROUP, 8);
        else unpack_half(a, from, n % 16, first, end, scale, y + group * GROUP, 4);
    }
}

/* Ask for a row of codes: a line of every vector of its block, which nobody has read since the step before. */
INLINE void fetch_row(const struct gemm_args *a, int64_t n) {
    const uint8_t *w = column_of(a, n);
    for (int64_t at = 0; a->bits < 16 && at < a->groups * group_bytes(a); at += 64) PREFETCH_SECOND(w + at);
}

static int32_t embed_chunks(const void *args, int32_t threads) {
    return split_rows(*((const struct embed_args *)args)->rows, threads * 4);
}

static void embed_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct embed_args *a = args;
    (void)worker;
    const int64_t rows = *a->rows, first = rows * chunk / chunks, end = rows * (chunk + 1) / chunks;
    fetch_row(&a->weight, a->ids[first]);
    for (int64_t row = first; row < end; row++) {
        if (row + 1 < end) fetch_row(&a->weight, a->ids[row + 1]);
        (a->weight.bits < 16 ? codes_row : dense_row)(&a->weight, a->ids[row], a->scale, a->y + row * a->y_stride);
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
