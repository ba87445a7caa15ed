/* A span over bf16 keys and values by pairwise dot products: scores and weights are rounded to bf16 where they are
 * multiplied, sums are float32. Rows see 64 keys at a time.
 *
 * A key lies in pairs of its width, [width / 2][block_size][2], so that a vector holds one pair of 16 keys. Values lie
 * in rows; two of them are interleaved on their way, which leaves the columns of a sum in the order of `unpack`.
 */
#if defined(__AVX512BF16__)
#define WIDE_KEYS 64

struct keys16 { /* where 16 keys and their values lie */
    const uint32_t *k;
    const uint16_t *v;
};

struct wide_tile {
    struct keys16 part[4];
    int64_t k_stride, v_stride; /* pairs, values */
    int64_t from, to;           /* keys that some row may see; others may hold anything */
};

/* Copy the keys and values of blocks that do not hold whole sixteens. */
static void stage_pairs(struct scan *s, int64_t start, int64_t count) {
    const struct attend_args *a = s->a;
    const int64_t pairs = a->width / 2, size = a->block_size;
    uint32_t *keys = (uint32_t *)s->keys;
    uint16_t *values = (uint16_t *)s->values;
    for (int64_t key = 0; key < count; key++) {
        const int64_t plane = plane_of(s, start + key), offset = (start + key) % size;
        const uint32_t *from = (const uint32_t *)((const uint16_t *)a->k_cache + plane) + offset;
        for (int64_t d = 0; d < pairs; d++) keys[(key / 16 * pairs + d) * 16 + key % 16] = from[d * size];
        memcpy(values + key * a->width, (const uint16_t *)a->v_cache + plane + offset * a->width, (size_t)a->width * 2);
    }
}

static struct wide_tile view_wide(struct scan *s, int64_t start, int64_t count) {
    const struct attend_args *a = s->a;
    const int whole = a->block_size % 16 == 0;
    struct wide_tile t = {.k_stride = whole ? a->block_size : 16, .v_stride = a->width, .to = count};
    t.from = s->low > start ? s->low - start : 0;
    if (!whole) stage_pairs(s, start, count);
    for (int64_t i = 0; i < 4; i++) {
        int64_t key = i * 16 < count ? i * 16 : 0;
        if (!whole) {
            t.part[i].k = (const uint32_t *)s->keys + key * a->width / 2;
            t.part[i].v = (const uint16_t *)s->values + key * a->width;
            continue;
        }
        const int64_t plane = plane_of(s, start + key), offset = (start + key) % a->block_size;
        t.part[i].k = (const uint32_t *)((const uint16_t *)a->k_cache + plane) + offset;
        t.part[i].v = (const uint16_t *)a->v_cache + plane + offset * a->width;
    }
    return t;
}

INLINE __m512bh pair_of(const uint16_t *p) {
    int32_t pair;
    memcpy(&pair, p, 4);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* Round queries to bf16, rows of `padded`. */
static void pack_queries(struct scan *s) {
    for (int64_t r = 0; r < s->count; r++)
        for (int64_t d = 0; d < s->padded; d += 32) {
            vf low = load_tail(s->q[r] + d, s->a->width - d), high = load_tail(s->q[r] + d + 16, s->a->width - d - 16);
            _mm512_storeu_si512(s->pairs + r * s->padded + d, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
}

INLINE void wide_scores(struct scan *s, const struct wide_tile *t, int half, int64_t row, const int R) {
    const uint32_t *k0 = t->part[2 * half].k, *k1 = t->part[2 * half + 1].k;
    const uint16_t *q = s->pairs + row * s->padded;
    __m512 sum[8][2];
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t d = 0; d < s->a->width; d += 2, k0 += t->k_stride, k1 += t->k_stride) {
        __m512bh first = (__m512bh)_mm512_loadu_si512(k0), second = (__m512bh)_mm512_loadu_si512(k1);
        for (int r = 0; r < R; r++) {
            __m512bh pair = pair_of(q + r * s->padded + d);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], first, pair);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], second, pair);
        }
    }
    vf scale = vf_set(s->a->scale * LOG2E);
    for (int r = 0; r < R; r++) {
        float *scores = s->scores + (row + r) * WIDE_KEYS + half * 32;
        vf_store(scores, vf_mul(sum[r][0], scale));
        vf_store(scores + 16, vf_mul(sum[r][1], scale));
    }
}

#define EACH_ROWS(n, call, ...)                 \
    switch (n) {                                \
    case 1: call(__VA_ARGS__, 1); break;        \
    case 2: call(__VA_ARGS__, 2); break;        \
    case 3: call(__VA_ARGS__, 3); break;        \
    case 4: call(__VA_ARGS__, 4); break;        \
    case 5: call(__VA_ARGS__, 5); break;        \
    default: call(__VA_ARGS__, 6); break;       \
    }

/* Which of the 64 keys from `start` a row sees. */
INLINE uint64_t seen_keys(const struct scan *s, int64_t row, int64_t start, int64_t count) {
    int64_t position = s->first_position + row / s->group;
    int64_t from = sees_from(s->a, position) - start, to = position + 1 - start;
    if (from < 0) from = 0;
    if (to > count) to = count;
    if (from >= to) return 0;
    return (to < 64 ? ((uint64_t)1 << to) - 1 : ~(uint64_t)0) & ~(uint64_t)0 << from;
}

/* Turn scores into weights, bf16, with the sum of what they were rounded to. Lanes of a total are joined at the end. */
static void soften_wide(struct scan *s, int64_t start, int64_t count) {
    const __m512 nothing = _mm512_set1_ps(MINUS_INFINITY);
    for (int64_t r = 0; r < s->count; r++) {
        const uint64_t seen = seen_keys(s, r, start, count);
        float *scores = s->scores + r * WIDE_KEYS;
        __m512 top = _mm512_set1_ps(s->top[r]);
        for (int i = 0; i < 4; i++)
            top = _mm512_max_ps(top, _mm512_mask_loadu_ps(nothing, (__mmask16)(seen >> 16 * i), scores + 16 * i));
        s->shrink[r] = s->top[r];
        s->top[r] = vf_top(top);
    }
    for (int64_t r = 0; r < s->count; r += 16) {
        const int64_t left = s->count - r;
        vf low = vf_set(-1e30f); /* -infinity less itself is no number */
        vf before = vf_max(load_tail(s->shrink + r, left), low), now = vf_max(load_tail(s->top + r, left), low);
        store_tail(s->shrink + r, vf_exp2(vf_sub(before, now)), left);
    }
    for (int64_t r = 0; r < s->count; r++) {
        const uint64_t seen = seen_keys(s, r, start, count);
        const float *scores = s->scores + r * WIDE_KEYS;
        uint16_t *weights = s->weights + r * WIDE_KEYS;
        float *lanes = s->total + r * 16;
        const __m512 top = _mm512_set1_ps(s->top[r]);
        __m512 total = vf_mul(vf_load(lanes), vf_set(s->shrink[r]));
        for (int i = 0; i < 4; i += 2) {
            __m512 low = vf_exp2(vf_sub(vf_load(scores + 16 * i), top)), high = vf_exp2(vf_sub(vf_load(scores + 16 * i + 16), top));
            low = _mm512_maskz_mov_ps((__mmask16)(seen >> 16 * i), low);
            high = _mm512_maskz_mov_ps((__mmask16)(seen >> (16 * i + 16)), high);
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
            _mm512_storeu_si512(weights + 16 * i, both);
            total = vf_add(total, _mm512_castsi512_ps(_mm512_slli_epi32(both, 16)));
            total = vf_add(total, _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int32_t)0xffff0000u))));
        }
        vf_store(lanes, total);
    }
}

INLINE __m512i value_row(const struct wide_tile *t, int64_t key, int64_t column, __mmask32 exists) {
    if (key < t->from || key >= t->to) return _mm512_setzero_si512();
    return _mm512_maskz_loadu_epi16(exists, t->part[key / 16].v + key % 16 * t->v_stride + column);
}

/* Add the values of all keys to the sums of R rows, V * 32 columns from `column` on. */
INLINE void weigh_wide(struct scan *s, const struct wide_tile *t, int64_t row, int64_t column, const int V, const int R) {
    __m512 sum[6][4];
    float *sums = s->sums + row * s->padded + column;
    for (int r = 0; r < R; r++)
        for (int c = 0; c < 2 * V; c++)
            sum[r][c] = vf_mul(vf_load(sums + r * s->padded + c * 16), vf_set(s->shrink[row + r]));
    __mmask32 exists[2];
    for (int v = 0; v < V; v++) {
        const int64_t left = s->a->width - column - v * 32;
        exists[v] = left >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << left) - 1;
    }
    for (int64_t key = t->from & ~(int64_t)1; key < t->to; key += 2) {
        __m512bh value[4];
        for (int v = 0; v < V; v++) {
            __m512i even = value_row(t, key, column + v * 32, exists[v]), odd = value_row(t, key + 1, column + v * 32, exists[v]);
            value[2 * v] = (__m512bh)_mm512_unpacklo_epi16(even, odd);
            value[2 * v + 1] = (__m512bh)_mm512_unpackhi_epi16(even, odd);
        }
        for (int r = 0; r < R; r++) {
            __m512bh weights = pair_of(s->weights + (row + r) * WIDE_KEYS + key);
            for (int c = 0; c < 2 * V; c++) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], value[c], weights);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < 2 * V; c++) vf_store(sums + r * s->padded + c * 16, sum[r][c]);
}

/* Put the columns of all sums in order. */
static void order_columns(struct scan *s) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (float *p = s->sums; p < s->sums + s->count * s->padded; p += 32) {
        __m512 low = vf_load(p), high = vf_load(p + 16);
        vf_store(p, _mm512_permutex2var_ps(low, first, high));
        vf_store(p + 16, _mm512_permutex2var_ps(low, second, high));
    }
}

static void scan_pairs(struct scan *s, int64_t span) {
    for (int64_t r = 0; r < s->count; r++) s->top[r] = MINUS_INFINITY;
    memset(s->total, 0, (size_t)s->count * 16 * 4);
    memset(s->sums, 0, (size_t)(s->count * s->padded) * 4);
    const int64_t end = (span + 1) * SPAN < s->high ? (span + 1) * SPAN : s->high;
    for (int64_t start = span * SPAN; start < end; start += WIDE_KEYS) {
        const int64_t count = end - start < WIDE_KEYS ? end - start : WIDE_KEYS;
        if (start + count <= s->low) continue;
        if (s->count <= 16) prefetch_keys(s, start + WIDE_KEYS, s->high, WIDE_KEYS);
        const struct wide_tile t = view_wide(s, start, count);
        for (int half = 0; half * 32 < count; half++)
            for (int64_t r = 0; r < s->count; r += 6) EACH_ROWS(s->count - r, wide_scores, s, &t, half, r)
        soften_wide(s, start, count);
        for (int64_t r = 0; r < s->count; r += 6) {
            int64_t column = 0;
            for (; column + 64 <= s->padded; column += 64) EACH_ROWS(s->count - r, weigh_wide, s, &t, r, column, 2)
            if (column < s->padded) EACH_ROWS(s->count - r, weigh_wide, s, &t, r, column, 1)
        }
    }
    for (int64_t r = 0; r < s->count; r++) s->total[r] = vf_sum(vf_load(s->total + r * 16));
    order_columns(s);
}
#endif
