/* y = x W^T for packed W, any number of rows.
 *
 * Layout. Columns of y (rows of W) stand in blocks of 16, the depth in groups of 32. Of each block and group:
 *   4 bits  4 vectors of 64 bytes; byte 4c + i of vector j holds depths 8j + i (low) and 8j + 4 + i (high) of
 *           column c;
 *   8 bits  8 vectors; byte 4c + i of vector j is depth 4j + i of column c, plus 128;
 * then 16 scales (for each half of the group, where groups are of 16), then as many mins. Dense weights lie as
 * gemm_dense.h says. One output is summed over the groups in order, in float32, whatever tile it falls in:
 * sum over g of scale_w scale_x (exact int32 dot product, zero point removed) + min_w sum_x; then the outliers of the row,
 * each times its weight.
 */

/* Tiles. Up to FEW_ROWS rows of codes or bf16 take one block of columns at a time: weights then come as one stream, which is what
 * the hardware reads ahead. More rows, and floats, take WIDE blocks, TILE_ROWS rows at a time. */
#if defined(__AVX512VNNI__)
#define FEW_ROWS 8
#define TILE_ROWS 6
#define WIDE 2
#elif defined(__AVX2__)
#define FEW_ROWS 3
#define TILE_ROWS 3
#define WIDE 1
#elif defined(TIER_NEON)
#define FEW_ROWS 2
#define TILE_ROWS 2
#define WIDE 1
#else
#define FEW_ROWS 1
#define TILE_ROWS 1
#define WIDE 1
#endif

#define ROWS_AT_ONCE 192 /* quantized rows that stay in the second-level cache */

INLINE int64_t number_bytes(int32_t number) { return number == NUMBER_F32 ? 4 : 2; }
INLINE int64_t group_bytes(const struct gemm_args *a) {
    return a->bits * 64 + (int64_t)a->halves * 16 * number_bytes(a->number) * (1 + a->has_min);
}

/* The finished sums of one tile: add bias and residual, write what exists of the columns. */
INLINE void finish(const struct gemm_args *a, int64_t row, int32_t block, vf sum) {
    int64_t column = (int64_t)block * 16, left = a->n - column;
    if (a->bias) sum = vf_add(sum, load_tail(a->bias + column, left));
    if (a->residual) sum = vf_add(sum, load_tail(a->residual + row * a->residual_stride + column, left));
    store_tail(a->y + row * a->y_stride + column, sum, left);
}

/* Add the products of one group (or half of it) of R rows and C blocks, exact. Codes of a row are `row_bytes` from the next's. */
INLINE void dot_group(const uint8_t *const *w, const int8_t *codes, int64_t row_bytes, int h, vi (*dot)[WIDE], const int R,
                      const int C, const int BITS, const int HALVES) {
    const int vectors = (BITS == 4 ? 4 : 8) / HALVES;
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
        const int j = h * vectors + v;
        vb low[WIDE], high[WIDE];
        for (int c = 0; c < C; c++) {
            vb bytes = vb_load(w[c] + j * 64);
            low[c] = BITS == 4 ? vb_low(bytes) : bytes;
            if (BITS == 4) high[c] = vb_high(bytes);
        }
        for (int r = 0; r < R; r++) {
            const int8_t *x = codes + r * row_bytes + j * (BITS == 4 ? 8 : 4);
            vq first = vq_load(x);
            for (int c = 0; c < C; c++)
                dot[r][c] = BITS == 4 ? dot_nibbles(dot[r][c], low[c], first) : dot_bytes(dot[r][c], low[c], first);
            if (BITS == 8) continue;
            vq second = vq_load(x + 4);
            for (int c = 0; c < C; c++) dot[r][c] = dot_nibbles(dot[r][c], high[c], second);
        }
    }
}

/* Numbers of one group (or half of it) of C blocks, `at` bytes from its start. */
INLINE void group_numbers(const uint8_t *const *w, int64_t at, int number, vf *out, const int C) {
    if (number == NUMBER_F16)
        for (int c = 0; c < C; c++) out[c] = vf_f16(w[c] + at);
    else if (number == NUMBER_BF16)
        for (int c = 0; c < C; c++) out[c] = vf_bf16(w[c] + at);
    else
        for (int c = 0; c < C; c++) out[c] = vf_load((const float *)(const void *)(w[c] + at));
}

/* Add the products of one group of R rows and C blocks. */
INLINE void tile_group(const struct gemm_args *a, const uint8_t *const *w, const struct row_group *x, int64_t row_bytes,
                       vf (*sum)[WIDE], const int R, const int C, const int BITS, const int HALVES) {
    const int64_t size = 16 * number_bytes(a->number);
#define ROW(r) ((const struct row_group *)((const char *)x + (r) * row_bytes))
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++) {
        vi dot[FEW_ROWS][WIDE];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) dot[r][c] = vi_set(0);
        if (a->zero)
            for (int r = 0; r < R; r++) {
                const int16_t *half = ROW(r)->half;
                for (int c = 0; c < C; c++) dot[r][c] = vi_set(-a->zero * (HALVES == 2 ? half[h] : half[0] + half[1]));
            }
        dot_group(w, x->codes, row_bytes, h, dot, R, C, BITS, HALVES);
        vf scale[WIDE];
        group_numbers(w, BITS * 64 + h * size, a->number, scale, C);
        for (int r = 0; r < R; r++) {
            vf scale_x = vf_set(ROW(r)->scale);
            for (int c = 0; c < C; c++) sum[r][c] = vf_fma(vi_float(dot[r][c]), vf_mul(scale[c], scale_x), sum[r][c]);
        }
        if (!a->has_min) continue;
        vf min[WIDE];
        group_numbers(w, BITS * 64 + (HALVES + h) * size, a->number, min, C);
        for (int r = 0; r < R; r++) {
            vf total = vf_set(HALVES == 1 ? ROW(r)->sum : ROW(r)->scale * (float)ROW(r)->half[h]);
            for (int c = 0; c < C; c++) sum[r][c] = vf_fma(min[c], total, sum[r][c]);
        }
    }
#undef ROW
}

/* Add the products of the outliers of one row. The sums of groups have them already, and so has what was added for mins;
 * only halves of groups have not. */
INLINE void add_outliers(const struct gemm_args *a, struct int8_rows x, int64_t row, int32_t block, vf *sum, const int C,
                         const int BITS, const int HALVES) {
    const int64_t stride = group_bytes(a), size = 16 * number_bytes(a->number);
    const struct outlier *o = x.outliers + row * a->groups, *end = o + x.counts[row];
    const vi zero = vi_set(-a->zero);
    for (; o < end; o++) {
        const uint32_t g = o->column / GROUP, d = o->column % GROUP, h = HALVES == 2 ? d / 16 : 0;
        const uint32_t vector = BITS == 4 ? d / 8 : d / 4, shift = BITS == 4 ? d % 4 * 8 + d / 4 % 2 * 4 : d % 4 * 8;
        const vf value = vf_set(o->value);
        const uint8_t *w[WIDE];
        for (int c = 0; c < C; c++) w[c] = a->weights + ((int64_t)(block + c) * a->groups + g) * stride;
        vf scale[WIDE], min[WIDE];
        group_numbers(w, BITS * 64 + h * size, a->number, scale, C);
        for (int c = 0; c < C; c++) {
            vi code = vi_bits(w[c] + vector * 64, (int)shift, BITS == 4 ? 15 : 255);
            if (a->zero) code = vi_add(code, zero);
            sum[c] = vf_fma(vf_mul(scale[c], value), vi_float(code), sum[c]);
        }
        if (HALVES == 1 || !a->has_min) continue;
        group_numbers(w, BITS * 64 + (HALVES + h) * size, a->number, min, C);
        for (int c = 0; c < C; c++) sum[c] = vf_fma(min[c], value, sum[c]);
    }
}

/* Ask for the lines of y, which a tile writes at its end: stores wait for them one after the other. */
INLINE void prefetch_output(const struct gemm_args *a, int64_t row, int32_t block, const int R, const int C) {
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) __builtin_prefetch(a->y + (row + r) * a->y_stride + (block + c) * 16, 1);
}

/* Bytes from a tile's weights to those it asks for, for the second-level cache: the first waits for too few lines at a time,
 * and wide blocks fill it. One or two rows leave that to the hardware, which is better at it; more keep it from running far
 * enough ahead. Of the tiles that share wide blocks, the first asks for the next blocks. */
INLINE int64_t bytes_ahead(int64_t block_bytes, int64_t row, const int R, const int C) {
    if (R <= 2 || row % ROWS_AT_ONCE) return 0;
    return C == 1 ? 8192 : C * block_bytes;
}

/* All groups in order; then, row by row, the outliers. */
INLINE void tile_codes(const struct gemm_args *a, struct int8_rows x, int64_t row, int32_t block, const int R, const int C,
                       const int BITS, const int HALVES) {
    const int64_t groups = a->groups, stride = group_bytes(a), row_bytes = groups * (int64_t)sizeof(struct row_group);
    const struct row_group *first = x.groups + row * groups;
    const uint8_t *w[WIDE];
    for (int c = 0; c < C; c++) w[c] = a->weights + (int64_t)(block + c) * groups * stride;
    prefetch_output(a, row, block, R, C);
    vf sum[FEW_ROWS][WIDE];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sum[r][c] = vf_zero();
    const int64_t ahead = bytes_ahead(groups * stride, row, R, C);
    for (int64_t g = 0; g < groups; g++) {
        for (int64_t line = 0; ahead && line < stride; line += 64)
            for (int c = 0; c < C; c++) PREFETCH_SECOND(w[c] + ahead + line);
        tile_group(a, w, first + g, row_bytes, sum, R, C, BITS, HALVES);
        for (int c = 0; c < C; c++) w[c] += stride;
    }
    vf kept[FEW_ROWS][WIDE]; /* indexed by row at run time: the sums above stay in registers */
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) kept[r][c] = sum[r][c];
#pragma GCC unroll 1
    for (int r = 0; r < R; r++) {
        add_outliers(a, x, row + r, block, kept[r], C, BITS, HALVES);
        for (int c = 0; c < C; c++) finish(a, row + r, block + c, kept[r][c]);
    }
}

#include "gemm_dense.h"

/* One compiled function for each kind of weight and size of tile. */
#define KIND_U4 0
#define KIND_U4_HALVES 1
#define KIND_I8 2
#define KIND_I8_HALVES 3
#define KIND_F16 4
#define KIND_BF16 5
#define KIND_F32 6
#define KIND_PAIRS 7 /* bf16 weights and rows */

typedef void tile_function(const struct gemm_args *a, struct int8_rows x, int64_t row, int32_t block);

#define TILE(kind, R, C)                                                                                        \
    static void tile_##kind##_##R##_##C(const struct gemm_args *a, struct int8_rows x, int64_t row, int32_t b) { \
        if (kind < 4) tile_codes(a, x, row, b, R, C, kind < 2 ? 4 : 8, 1 + kind % 2);                           \
        else if (kind == KIND_PAIRS) tile_pairs(a, x.halves, row, b, R, C);                                     \
        else tile_dense(a, row, b, R, C, kind - 4);                                                             \
    }
#define NAME(kind, R, C) tile_##kind##_##R##_##C
#if FEW_ROWS == 8
#define TILES(kind)                                                                                       \
    TILE(kind, 1, 1) TILE(kind, 2, 1) TILE(kind, 3, 1) TILE(kind, 4, 1) TILE(kind, 5, 1) TILE(kind, 6, 1) \
    TILE(kind, 7, 1) TILE(kind, 8, 1) TILE(kind, 1, 2) TILE(kind, 2, 2) TILE(kind, 3, 2) TILE(kind, 4, 2) \
    TILE(kind, 5, 2) TILE(kind, 6, 2)
#define TABLE(kind)                                                                    \
    {{NAME(kind, 1, 1), NAME(kind, 1, 2)}, {NAME(kind, 2, 1), NAME(kind, 2, 2)},       \
     {NAME(kind, 3, 1), NAME(kind, 3, 2)}, {NAME(kind, 4, 1), NAME(kind, 4, 2)},       \
     {NAME(kind, 5, 1), NAME(kind, 5, 2)}, {NAME(kind, 6, 1), NAME(kind, 6, 2)},       \
     {NAME(kind, 7, 1)}, {NAME(kind, 8, 1)}}
#elif FEW_ROWS == 2
#define TILES(kind) TILE(kind, 1, 1) TILE(kind, 2, 1)
#define TABLE(kind) {{NAME(kind, 1, 1)}, {NAME(kind, 2, 1)}}
#elif FEW_ROWS == 3
#define TILES(kind) TILE(kind, 1, 1) TILE(kind, 2, 1) TILE(kind, 3, 1)
#define TABLE(kind) {{NAME(kind, 1, 1)}, {NAME(kind, 2, 1)}, {NAME(kind, 3, 1)}}
#else
#define TILES(kind) TILE(kind, 1, 1)
#define TABLE(kind) {{NAME(kind, 1, 1)}}
#endif
TILES(0) TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) TILES(7)
static tile_function *const tiles[8][FEW_ROWS][WIDE] = {TABLE(0), TABLE(1), TABLE(2), TABLE(3),
                                                             TABLE(4), TABLE(5), TABLE(6), TABLE(7)};

INLINE int kind_of(const struct gemm_args *a) {
    if (a->x.halves) return KIND_PAIRS;
    return a->bits == 4 ? a->halves - 1 : a->bits == 8 ? 1 + a->halves : KIND_F16 + a->number;
}

/* How rows and columns are cut: runs of ROWS_AT_ONCE rows, units of blocks that a tile takes side by side. */
struct cut {
    int64_t runs, units;
    int32_t wide; /* blocks of a unit */
};

/* Whether a tile takes all of so many rows. */
INLINE int are_few(const struct gemm_args *a, int64_t rows) { return (a->bits < 16 || a->x.halves) && rows <= FEW_ROWS; }

INLINE struct cut cut_of(const struct gemm_args *a, int64_t rows) {
    const int32_t wide = are_few(a, rows) ? 1 : WIDE;
    return (struct cut){(rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, ((a->n + 15) / 16 + wide - 1) / wide, wide};
}

/* Pieces of a run of rows: at least 400,000 multiplications, and so many units that few rows read weights as a stream.
 * Units fall evenly to the threads where they can: the last piece of an operator is waited for. */
static int32_t gemm_chunks(const void *args, int32_t threads) {
    const struct gemm_args *a = args;
    const int64_t rows = *a->rows;
    if (!rows) return 0;
    const struct cut cut = cut_of(a, rows);
    const int64_t least = cut.wide < WIDE ? 4 : rows < 64 ? 2 : 1, height = rows < ROWS_AT_ONCE ? rows : ROWS_AT_ONCE;
    int64_t most = (int64_t)a->n * a->columns * (height + 3) / 400000 / threads;
    if (most > cut.units / least / threads) most = cut.units / least / threads;
    if (most < 1) most = 1;
    int64_t each = most;
    while (each > most / 2 && cut.units % (each * threads)) each--;
    if (each <= most / 2) each = most;
    return (int32_t)(cut.runs * (each * threads < cut.units ? each * threads : cut.units));
}

static void gemm_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct gemm_args *a = args;
    const int64_t rows = *a->rows;
    const struct cut cut = cut_of(a, rows);
    const int64_t pieces = chunks / cut.runs, piece = chunk % pieces, start = chunk / pieces * ROWS_AT_ONCE;
    const int64_t count = rows - start < ROWS_AT_ONCE ? rows - start : ROWS_AT_ONCE;
    const int32_t blocks = (a->n + 15) / 16, first = (int32_t)(cut.units * piece / pieces) * cut.wide;
    const int32_t past = (int32_t)(cut.units * (piece + 1) / pieces) * cut.wide, end = past < blocks ? past : blocks;
    const int deferred = a->source && rows <= a->source->deferred;
    const struct int8_rows x = deferred ? own_rows(a->source, worker) : a->x;
    tile_function *const(*table)[WIDE] = tiles[kind_of(a)];
    const int few = are_few(a, count);
    const int32_t wide = few ? 1 : WIDE;
    const int64_t parts = few ? 1 : (count + TILE_ROWS - 1) / TILE_ROWS; /* of nearly equal height */
    for (int32_t block = first; block < end; block += wide) {
        const int32_t width = end - block < wide ? end - block : wide;
        for (int64_t part = 0; part < parts; part++) {
            const int64_t row = count * part / parts, height = count * (part + 1) / parts - row;
            table[height - 1][width - 1](a, x, start + row, block);
        }
    }
}
