/* Paged attention with one order of summation for each query row, whatever runs beside it.
 *
 * A row's keys fall into spans of 256 aligned to position 0. A span is scanned in tiles of 32 keys with an online
 * softmax in float32 (powers of two), and the spans are merged from left to right. Threads share out spans (short
 * queries) or runs of rows (prefill); they never cut a span.
 */

#define SPAN 256
#define TILE_KEYS 32
#define SHORT_ROWS 64  /* most rows (positions x heads of a KV head) of a query that is split over spans */
#define BLOCK_ROWS 48  /* rows of a prefill piece */
#define MINUS_INFINITY (-__builtin_inff())

/* Query rows at a time, for scores and for values, and blocks of 16 columns of values: as the registers hold sums of. */
#if defined(__AVX512VNNI__)
#define SCORE_ROWS 8
#define WEIGH_ROWS 4
#define WEIGH_COLUMNS 4
#else
#define SCORE_ROWS 2
#define WEIGH_ROWS 2
#define WEIGH_COLUMNS 2
#endif

struct scan { /* rows that share the keys of one KV head */
    const struct attend_args *a;
    const int32_t *table;
    int64_t kv_head, count, padded; /* rows, padded head width */
    int64_t low, high;              /* keys that any row sees */
    int64_t first_position, group;  /* row r stands at first_position + r / group, as `position` says */
    const float *q[128];
    int64_t position[128];
    struct reach *reach;
    float *scores, *keys, *values, *scales;
    uint16_t *pairs, *weights;          /* queries and weights in bf16, where those are multiplied */
    float *top, *total, *sums;          /* of the span: [count], [count, 16 lanes] then [count], [count, padded] */
    float *all_top, *all_total, *all_sums; /* of the spans before */
    float *shrink;
};

INLINE int64_t sees_from(const struct attend_args *a, int64_t position) {
    return a->window && position >= a->window ? position - a->window + 1 : 0;
}

#include "pieces.h"

INLINE float exp2_one(float x) {
    float lanes[16];
    vf_store(lanes, vf_exp2(vf_set(x)));
    return lanes[0];
}

INLINE int64_t plane_of(const struct scan *s, int64_t key) {
    const struct attend_args *a = s->a;
    return (int64_t)s->table[key / a->block_size] * a->block_stride + s->kv_head * a->block_size * a->width;
}

/* Where a key holds its column d within a block: bf16 keys lie in pairs of columns, others in columns. */
INLINE int64_t key_index(const struct attend_args *a, int64_t d, int64_t offset) {
    if (a->number == NUMBER_BF16) return d / 2 * a->block_size * 2 + offset * 2 + d % 2;
    return d * a->block_size + offset;
}

/* Scales of a block's keys or values, from a key on; null where numbers need none. */
INLINE const float *scales_of(const struct scan *s, const float *scales, int64_t key) {
    const struct attend_args *a = s->a;
    const int64_t block = s->table[key / a->block_size];
    if (!ONE_BYTE(a->number)) return NULL;
    return scales + block * a->scale_stride + s->kv_head * a->block_size + key % a->block_size;
}

/* Copy up to 32 keys and values as floats, keys transposed. Blocks of any size and format. */
static void stage(struct scan *s, int64_t start, int64_t count) {
    const struct attend_args *a = s->a;
    const int64_t width = a->width, size = a->block_size;
    for (int64_t key = 0; key < count;) {
        int64_t offset = (start + key) % size, run = size - offset < count - key ? size - offset : count - key;
        int64_t plane = plane_of(s, start + key);
        const float *k_scales = scales_of(s, a->k_scales, start + key), *v_scales = scales_of(s, a->v_scales, start + key);
        for (int64_t d = 0; d < width; d++)
            for (int64_t i = 0; i < run; i++) {
                float x = number_at(a->k_cache, plane + key_index(a, d, offset + i), a->number);
                s->keys[d * TILE_KEYS + key + i] = k_scales ? x * k_scales[i] : x;
            }
        for (int64_t i = 0; i < run; i++) {
            float *value = s->values + (key + i) * s->padded;
            for (int64_t d = 0; d < width; d++) value[d] = number_at(a->v_cache, plane + (offset + i) * width + d, a->number);
            for (int64_t d = 0; v_scales && d < width; d++) value[d] *= v_scales[i];
            for (int64_t d = width; d < s->padded; d++) value[d] = 0;
        }
        key += run;
    }
}

/* The same for whole sixteens of one- and two-byte numbers. */
static void stage_wide(struct scan *s, int64_t start, int64_t count) {
    const struct attend_args *a = s->a;
    const int64_t width = a->width, size = a->block_size;
    for (int64_t key = 0; key < count; key += 16) {
        int64_t offset = (start + key) % size, plane = plane_of(s, start + key);
        const float *k_scales = scales_of(s, a->k_scales, start + key), *v_scales = scales_of(s, a->v_scales, start + key);
        if (k_scales)
            for (int64_t d = 0; d < width; d++)
                vf_store(s->keys + d * TILE_KEYS + key,
                         vf_mul(vf_number(a->k_cache, plane + d * size + offset, a->number), vf_load(k_scales)));
        else if (a->number == NUMBER_BF16)
            for (int64_t d = 0; d < width; d += 2) {
                const uint16_t *pairs = (const uint16_t *)a->k_cache + plane + d * size + offset * 2;
                vf_store(s->keys + d * TILE_KEYS + key, vf_even_bf16(pairs));
                vf_store(s->keys + (d + 1) * TILE_KEYS + key, vf_odd_bf16(pairs));
            }
        else
            for (int64_t d = 0; d < width; d++)
                vf_store(s->keys + d * TILE_KEYS + key, vf_number(a->k_cache, plane + d * size + offset, a->number));
        int64_t run = count - key < 16 ? count - key : 16;
        for (int64_t i = 0; i < run * width; i += 16)
            vf_store(s->values + key * width + i, vf_number(a->v_cache, plane + offset * width + i, a->number));
        for (int64_t i = 0; v_scales && i < run * width; i += 16) {
            float *value = s->values + key * width + i;
            vf_store(value, vf_mul(vf_load(value), vf_set(v_scales[i / width])));
        }
    }
}

struct tile_view { /* where 32 keys lie: two halves of 16 */
    const float *k[2], *v[2];
    int64_t k_stride, v_stride;
};

static struct tile_view view_tile(struct scan *s, int64_t start, int64_t count) {
    const struct attend_args *a = s->a;
    const int wide = a->block_size % 16 == 0 && a->width % 16 == 0;
    if (wide && a->number == NUMBER_F32) {
        struct tile_view t = {.k_stride = a->block_size, .v_stride = a->width};
        for (int half = 0; half < 2; half++) {
            int64_t key = start + (half * 16 < count ? half * 16 : 0), offset = key % a->block_size;
            int64_t plane = plane_of(s, key);
            t.k[half] = (const float *)a->k_cache + plane + offset;
            t.v[half] = (const float *)a->v_cache + plane + offset * a->width;
        }
        return t;
    }
    if (wide) stage_wide(s, start, count);
    else stage(s, start, count);
    return (struct tile_view){{s->keys, s->keys + 16}, {s->values, s->values + 16 * s->padded}, TILE_KEYS, s->padded};
}

INLINE void scores_of(struct scan *s, struct tile_view t, int64_t row, const int R) {
    vf sum[SCORE_ROWS][2];
    const float *rows[SCORE_ROWS];
    for (int r = 0; r < R; r++) rows[r] = s->q[row + r];
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = vf_zero();
    for (int64_t d = 0; d < s->a->width; d++) {
        vf k0 = vf_load(t.k[0] + d * t.k_stride), k1 = vf_load(t.k[1] + d * t.k_stride);
        for (int r = 0; r < R; r++) {
            vf q = vf_set(rows[r][d]);
            sum[r][0] = vf_fma(q, k0, sum[r][0]);
            sum[r][1] = vf_fma(q, k1, sum[r][1]);
        }
    }
    vf scale = vf_set(s->a->scale * LOG2E);
    for (int r = 0; r < R; r++) {
        vf_store(s->scores + (row + r) * TILE_KEYS, vf_mul(sum[r][0], scale));
        vf_store(s->scores + (row + r) * TILE_KEYS + 16, vf_mul(sum[r][1], scale));
    }
}

static void all_scores(struct scan *s, struct tile_view t) {
    int64_t row = 0;
    for (; row + SCORE_ROWS <= s->count; row += SCORE_ROWS) scores_of(s, t, row, SCORE_ROWS);
    switch (s->count - row) {
    case 1: scores_of(s, t, row, 1); break;
#if SCORE_ROWS == 8
    case 2: scores_of(s, t, row, 2); break;
    case 3: scores_of(s, t, row, 3); break;
    case 4: scores_of(s, t, row, 4); break;
    case 5: scores_of(s, t, row, 5); break;
    case 6: scores_of(s, t, row, 6); break;
    case 7: scores_of(s, t, row, 7); break;
#endif
    }
}

/* Turn the scores of one row into weights; returns what the sums so far must be multiplied by. */
INLINE float soften(struct scan *s, int64_t row, int64_t start, int64_t count) {
    float *scores = s->scores + row * TILE_KEYS;
    int64_t position = s->first_position + row / s->group;
    int64_t from = sees_from(s->a, position) - start, to = position + 1 - start;
    if (from < 0) from = 0;
    if (to > count) to = count;
    if (from >= to) {
        memset(scores, 0, TILE_KEYS * 4);
        return 1.0f;
    }
    for (int64_t i = 0; i < from; i++) scores[i] = MINUS_INFINITY;
    for (int64_t i = to; i < TILE_KEYS; i++) scores[i] = MINUS_INFINITY;
    vf low = vf_load(scores), high = vf_load(scores + 16);
    float top = vf_top(vf_max(low, high));
    if (s->top[row] > top) top = s->top[row];
    vf shift = vf_set(top);
    vf_store(scores, vf_exp2(vf_sub(low, shift)));
    vf_store(scores + 16, vf_exp2(vf_sub(high, shift)));
    for (int64_t i = 0; i < from; i++) scores[i] = 0;
    for (int64_t i = to; i < TILE_KEYS; i++) scores[i] = 0;
    float shrink = exp2_one(s->top[row] - top);
    s->total[row] = s->total[row] * shrink + vf_sum(vf_add(vf_load(scores), vf_load(scores + 16)));
    s->top[row] = top;
    return shrink;
}

INLINE void weigh(struct scan *s, struct tile_view t, int64_t row, int64_t column, int64_t from, int64_t to, const int R,
                  const int C) {
    vf sum[WEIGH_ROWS][WEIGH_COLUMNS];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            sum[r][c] = vf_mul(vf_load(s->sums + (row + r) * s->padded + column + c * 16), vf_set(s->shrink[row + r]));
    for (int half = 0; half < 2; half++) {
        const int64_t first = from > half * 16 ? from : half * 16, last = to < half * 16 + 16 ? to : half * 16 + 16;
        const float *v = t.v[half] + (first - half * 16) * t.v_stride + column;
        const float *weights = s->scores + row * TILE_KEYS;
        for (int64_t key = first; key < last; key++, v += t.v_stride) {
            vf value[WEIGH_COLUMNS];
            for (int c = 0; c < C; c++) value[c] = vf_load(v + c * 16);
            for (int r = 0; r < R; r++) {
                vf weight = vf_set(weights[r * TILE_KEYS + key]);
                for (int c = 0; c < C; c++) sum[r][c] = vf_fma(weight, value[c], sum[r][c]);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) vf_store(s->sums + (row + r) * s->padded + column + c * 16, sum[r][c]);
}

static void weigh_rows(struct scan *s, struct tile_view t, int64_t row, int64_t from, int64_t to, const int rows) {
    int64_t column = 0;
    for (; column + 16 * WEIGH_COLUMNS <= s->padded; column += 16 * WEIGH_COLUMNS) switch (rows) {
        case 1: weigh(s, t, row, column, from, to, 1, WEIGH_COLUMNS); break;
        case 2: weigh(s, t, row, column, from, to, 2, WEIGH_COLUMNS); break;
#if WEIGH_ROWS == 4
        case 3: weigh(s, t, row, column, from, to, 3, WEIGH_COLUMNS); break;
        case 4: weigh(s, t, row, column, from, to, 4, WEIGH_COLUMNS); break;
#endif
        }
    for (; column < s->padded; column += 16)
        for (int r = 0; r < rows; r++) weigh(s, t, row + r, column, from, to, 1, 1);
}

/* Ask for keys ahead of their use: blocks lie apart, where no hardware prefetcher looks. */
INLINE void prefetch_keys(const struct scan *s, int64_t start, int64_t end, int64_t most) {
    const int64_t left = end - (start - most);
    reach_on(s->reach, left < most ? left : most);
}

#include "attention_bf16.h"
#if defined(__AVX512BF16__)
#define HAS_PAIRS 1
#define SCAN_PAIRS scan_pairs
#else
#define HAS_PAIRS 0
#define SCAN_PAIRS(s, span) (void)(span)
#endif

/* Scan one span for all rows, into top, total and sums. */
static void scan_span(struct scan *s, int64_t span) {
    if (s->pairs) {
        SCAN_PAIRS(s, span);
        return;
    }
    for (int64_t r = 0; r < s->count; r++) s->top[r] = MINUS_INFINITY, s->total[r] = 0;
    memset(s->sums, 0, (size_t)(s->count * s->padded) * 4);
    int64_t end = (span + 1) * SPAN < s->high ? (span + 1) * SPAN : s->high;
    for (int64_t start = span * SPAN; start < end; start += TILE_KEYS) {
        int64_t count = end - start < TILE_KEYS ? end - start : TILE_KEYS;
        if (start + count <= s->low) continue;
        if (s->count <= 16) prefetch_keys(s, start + TILE_KEYS, s->high, TILE_KEYS); /* many rows use a tile long enough */
        struct tile_view t = view_tile(s, start, count);
        all_scores(s, t);
        for (int64_t r = 0; r < s->count; r++) s->shrink[r] = soften(s, r, start, count);
        int64_t from = s->low > start ? s->low - start : 0;
        for (int64_t r = 0; r < s->count; r += WEIGH_ROWS)
            weigh_rows(s, t, r, from, count, s->count - r < WEIGH_ROWS ? (int)(s->count - r) : WEIGH_ROWS);
    }
}

/* Add a span of one row to what stands left of it. A span in which the row sees nothing has top -infinity. */
INLINE void merge(float *top, float *total, float *sums, float span_top, float span_total, const float *span_sums, int64_t n) {
    if (span_top == MINUS_INFINITY) return;
    if (*top == MINUS_INFINITY) {
        *top = span_top, *total = span_total;
        memcpy(sums, span_sums, (size_t)n * 4);
        return;
    }
    float both = *top > span_top ? *top : span_top;
    float left = exp2_one(*top - both), right = exp2_one(span_top - both);
    *total = *total * left + span_total * right;
    *top = both;
    for (int64_t i = 0; i < n; i += 16)
        vf_store(sums + i, vf_fma(vf_load(span_sums + i), vf_set(right), vf_mul(vf_load(sums + i), vf_set(left))));
}

static float *out_row(const struct scan *s, int64_t first_row, int64_t r) {
    const struct attend_args *a = s->a;
    return a->out + ((first_row + r / s->group) * a->heads + s->kv_head * s->group + r % s->group) * a->width;
}

static void put_row(const struct scan *s, float *out, float total, const float *sums) {
    vf inverse = vf_set(1.0f / total);
    for (int64_t i = 0; i < s->a->width; i += 16) store_tail(out + i, vf_mul(vf_load(sums + i), inverse), s->a->width - i);
}

static void lay_out(struct scan *s, struct worker *worker) {
    float *p = (float *)worker->scratch;
    const int pairs = HAS_PAIRS && (s->a->number == NUMBER_BF16 || (ONE_BYTE(s->a->number) && s->a->width % 2 == 0));
    s->padded = pairs ? (s->a->width + 31) / 32 * 32 : (s->a->width + 15) / 16 * 16;
    const int64_t wide = s->count * s->padded, keys = pairs ? 64 : TILE_KEYS;
    s->keys = p, p += s->a->width * keys;
    s->values = p, p += s->padded * keys;
    s->scores = p, p += s->count * keys;
    s->pairs = pairs ? (uint16_t *)p : NULL, p += pairs ? wide / 2 : 0;
    s->weights = (uint16_t *)p, p += pairs ? s->count * keys / 2 : 0;
    s->sums = p, p += wide;
    s->all_sums = p, p += wide;
    s->top = p, p += s->count;
    s->total = p, p += s->count * 16;
    s->all_top = p, p += s->count;
    s->all_total = p, p += s->count;
    s->shrink = p, s->scales = p + s->count;
    worker->made = NULL;
#if HAS_PAIRS
    if (pairs) pack_queries(s);
#endif
}

/* Floats that a row of a split query leaves: top and total, 14 unused, sums. */
INLINE int64_t partial_record(const struct attend_args *a) { return (a->width + 31) / 32 * 32 + 16; }

static void merge_spans(struct scan *s, int64_t first_row, const float *partial, int64_t spans, int64_t step) {
    const int64_t record = partial_record(s->a);
    for (int64_t r = 0; r < s->count; r++) {
        float top = MINUS_INFINITY, total = 0;
        for (int64_t i = 0; i < spans; i++) {
            const float *from = partial + (i * step * SHORT_ROWS + r) * record;
            merge(&top, &total, s->all_sums, from[0], from[1], from + 16, s->padded);
        }
        put_row(s, out_row(s, first_row, r), total, s->all_sums);
    }
}

/* One span of a short query: leave its sums; the last to finish merges them all. */
static void attend_span(struct scan *s, int64_t b, int64_t first_row, int64_t span, int64_t spans) {
    const struct attend_args *a = s->a;
    const int64_t record = partial_record(a), first = a->task_base[*a->sequences + 1 + b];
    float *mine = a->partial + ((first + span * a->kv_heads + s->kv_head) * SHORT_ROWS) * record;
    scan_span(s, spans_from(a, b) + span);
    for (int64_t r = 0; r < s->count; r++) {
        mine[r * record] = s->top[r], mine[r * record + 1] = s->total[r];
        memcpy(mine + r * record + 16, s->sums + r * s->padded, (size_t)s->padded * 4);
    }
    int32_t *pending = a->pending + b * a->kv_heads + s->kv_head;
    if (__atomic_add_fetch(pending, 1, __ATOMIC_ACQ_REL) < spans) return;
    *pending = 0;
    merge_spans(s, first_row, a->partial + (first + s->kv_head) * SHORT_ROWS * record, spans, a->kv_heads);
}

static void attend_rows(struct scan *s, int64_t first_row) {
    for (int64_t r = 0; r < s->count; r++) s->all_top[r] = MINUS_INFINITY, s->all_total[r] = 0;
    for (int64_t span = s->low / SPAN; span * SPAN < s->high; span++) {
        scan_span(s, span);
        for (int64_t r = 0; r < s->count; r++)
            merge(&s->all_top[r], &s->all_total[r], s->all_sums + r * s->padded, s->top[r], s->total[r],
                  s->sums + r * s->padded, s->padded);
    }
    for (int64_t r = 0; r < s->count; r++) put_row(s, out_row(s, first_row, r), s->all_total[r], s->all_sums + r * s->padded);
}

static void attend_piece(const struct attend_args *a, int64_t index, struct reach *reach, struct worker *worker) {
    const struct piece p = piece_at(a, index);
    const int64_t b = p.sequence, group = a->heads / a->kv_heads, first_row = a->cu_seqlens[b] + p.start;
    struct scan s = {.a = a, .table = a->block_tables + b * a->table_stride, .kv_head = p.kv_head, .reach = reach};
    s.group = group, s.count = p.count * group;
    s.first_position = p.first_position, s.low = p.low, s.high = p.high;
    for (int64_t r = 0; r < s.count; r++) {
        s.position[r] = s.first_position + r / group;
        s.q[r] = a->q + ((first_row + r / group) * a->heads + s.kv_head * group + r % group) * a->width;
    }
    lay_out(&s, worker);
    if (p.split) attend_span(&s, b, first_row, p.unit, a->task_base[b + 1] - a->task_base[b]);
    else attend_rows(&s, first_row);
}

static void attend_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct attend_args *a = args;
    const int64_t pieces = (int64_t)a->task_base[*a->sequences] * a->kv_heads, end = pieces * (chunk + 1) / chunks;
    struct reach reach = {.a = a, .piece = -1, .end = end};
    for (int64_t index = pieces * chunk / chunks; index < end; index++) {
        if (reach.piece < index) reach_piece(&reach, index), reach_on(&reach, KEYS_AHEAD);
        attend_piece(a, index, &reach, worker);
    }
}
