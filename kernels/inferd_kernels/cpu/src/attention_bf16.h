/* A span over bf16 or one-byte keys and values by pairwise dot products: queries and weights are rounded to bf16 where they
 * are multiplied, sums are float32. Rows see 64 keys at a time. One byte's numbers are exact in bf16: their scales multiply
 * scores and weights.
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
    const float *k_scale, *v_scale; /* of one-byte numbers, or null: what scores and weights are multiplied by */
};

/* Copy keys and values of any block and width as bf16, which holds them exactly: the low halves of their floats are zero. */
static void stage_any(struct scan *s, int64_t start, int64_t count) {
    const struct attend_args *a = s->a;
    const int64_t pairs = a->width / 2;
    uint32_t *keys = (uint32_t *)s->keys;
    uint16_t *values = (uint16_t *)s->values;
    for (int64_t key = 0; key < count; key++) {
        const int64_t plane = plane_of(s, start + key), offset = (start + key) % a->block_size;
        for (int64_t d = 0; d < pairs; d++) {
            const float even = number_at(a->k_cache, plane + key_index(a, 2 * d, offset), a->number);
            const float odd = number_at(a->k_cache, plane + key_index(a, 2 * d + 1, offset), a->number);
            keys[(key / 16 * pairs + d) * 16 + key % 16] = bits_of_f32(even) >> 16 | bits_of_f32(odd);
        }
        for (int64_t d = 0; d < a->width; d++)
            values[key * a->width + d] = bf16_of_f32(number_at(a->v_cache, plane + offset * a->width + d, a->number));
    }
}

/* The same of one-byte numbers, for whole sixteens of both. */
INLINE void stage_bytes_wide(struct scan *s, int64_t start, int64_t count, const int number) {
    const struct attend_args *a = s->a;
    const int64_t width = a->width, size = a->block_size;
    uint16_t *keys = (uint16_t *)s->keys, *values = (uint16_t *)s->values;
    for (int64_t key = 0; key < count; key += 16) {
        const int64_t plane = plane_of(s, start + key), offset = (start + key) % size;
        const char *k = (const char *)a->k_cache + plane + offset, *v = (const char *)a->v_cache + plane + offset * width;
        for (int64_t d = 0; d < width; d += 2, k += 2 * size, keys += 32) {
            const __m512i even = _mm512_castps_si512(vf_number(k, 0, number));
            const __m512i odd = _mm512_castps_si512(vf_number(k, size, number));
            _mm512_storeu_si512(keys, _mm512_or_si512(_mm512_srli_epi32(even, 16), odd));
        }
        for (int64_t i = 0; i < 16 * width; i += 32, values += 32)
            put_bf16(values, vf_number(v, i, number), vf_number(v, i + 16, number));
    }
}

/* Copy the scales of keys and of values. */
static void stage_scales(struct scan *s, int64_t start, int64_t count) {
    const struct attend_args *a = s->a;
    for (int64_t key = 0; key < count;) {
        const int64_t left = a->block_size - (start + key) % a->block_size, run = left < count - key ? left : count - key;
        memcpy(s->scales + key, scales_of(s, a->k_scales, start + key), (size_t)run * 4);
        memcpy(s->scales + WIDE_KEYS + key, scales_of(s, a->v_scales, start + key), (size_t)run * 4);
        key += run;
    }
}

static struct wide_tile view_wide(struct scan *s, int64_t start, int64_t count) {
    const struct attend_args *a = s->a;
    const int bytes = ONE_BYTE(a->number), whole = a->block_size % 16 == 0, staged = bytes || !whole;
    struct wide_tile t = {.k_stride = staged ? 16 : a->block_size, .v_stride = a->width, .to = count};
    t.from = s->low > start ? s->low - start : 0;
    if (bytes) stage_scales(s, start, count), t.k_scale = s->scales, t.v_scale = s->scales + WIDE_KEYS;
    if (staged && !(whole && a->width % 16 == 0)) stage_any(s, start, count);
    else if (a->number == NUMBER_I8) stage_bytes_wide(s, start, count, NUMBER_I8);
    else if (a->number == NUMBER_F8) stage_bytes_wide(s, start, count, NUMBER_F8);
    for (int64_t i = 0; i < 4; i++) {
        int64_t key = i * 16 < count ? i * 16 : 0;
        if (staged) {
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

/* Round queries to bf16, rows of `padded`, scaled so that dot products are exponents of two. */
static void pack_queries(struct scan *s) {
    const vf scale = vf_set(s->a->scale * LOG2E);
    for (int64_t r = 0; r < s->count; r++)
        for (int64_t d = 0; d < s->padded; d += 32) {
            vf low = load_tail(s->q[r] + d, s->a->width - d), high = load_tail(s->q[r] + d + 16, s->a->width - d - 16);
            put_bf16(s->pairs + r * s->padded + d, vf_mul(low, scale), vf_mul(high, scale));
        }
}

/* 2^(x - top) of four vectors for a whole `top`, up to 2^127, to 2^-13 of itself: for what is rounded to bf16. 0, or next
 * to it, below 2^-126; NaN stays NaN. Step by step for all four: one after the other would wait for its own results. */
INLINE void coarse_exp2(vf *x, vf top) {
    const vf magic = vf_sub(vf_set(12582912.0f), top); /* the last bit of its mantissa is worth 1 */
    const vf least = vf_sub(top, vf_set(126.0f));
    vf whole[4], y[4];
    for (int i = 0; i < 4; i++) x[i] = vf_max(least, x[i]);
    for (int i = 0; i < 4; i++) whole[i] = vf_add(x[i], magic);
    for (int i = 0; i < 4; i++) y[i] = vf_sub(whole[i], magic);
    for (int i = 0; i < 4; i++) x[i] = vf_sub(x[i], y[i]);
    for (int i = 0; i < 4; i++) y[i] = vf_fma(vf_set(5.517166906e-2f), x[i], vf_set(2.426111222e-1f));
    for (int i = 0; i < 4; i++) y[i] = vf_fma(y[i], x[i], vf_set(6.932609855e-1f));
    for (int i = 0; i < 4; i++) y[i] = vf_fma(y[i], x[i], vf_set(9.999280735e-1f));
    for (int i = 0; i < 4; i++) {
        const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(whole[i]), 23);
        x[i] = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y[i]), exponent));
    }
}

/* Which of the 64 keys from `start` a row sees. */
INLINE uint64_t seen_keys(const struct scan *s, int64_t row, int64_t start, int64_t count) {
    int64_t position = s->position[row];
    int64_t from = sees_from(s->a, position) - start, to = position + 1 - start;
    if (from < 0) from = 0;
    if (to > count) to = count;
    if (from >= to) return 0;
    return (to < 64 ? ((uint64_t)1 << to) - 1 : ~(uint64_t)0) & ~(uint64_t)0 << from;
}

INLINE void wide_scores(struct scan *s, const struct wide_tile *t, int half, int64_t row, const int R) {
    const uint32_t *k0 = t->part[2 * half].k, *k1 = t->part[2 * half + 1].k;
    const uint16_t *q = s->pairs + row * s->padded;
    vf sum[8][2];
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = vf_zero();
    for (int64_t d = 0; d < s->a->width; d += 2, k0 += t->k_stride, k1 += t->k_stride) {
        vp first = vp_load(k0), second = vp_load(k1);
        for (int r = 0; r < R; r++) {
            vp pair = vp_repeat(q + r * s->padded + d);
            sum[r][0] = dot_pair(sum[r][0], first, pair);
            sum[r][1] = dot_pair(sum[r][1], second, pair);
        }
    }
    for (int r = 0; r < R; r++) {
        float *scores = s->scores + (row + r) * WIDE_KEYS + half * 32;
        vf_store(scores, t->k_scale ? vf_mul(sum[r][0], vf_load(t->k_scale + half * 32)) : sum[r][0]);
        vf_store(scores + 16, t->k_scale ? vf_mul(sum[r][1], vf_load(t->k_scale + half * 32 + 16)) : sum[r][1]);
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

/* Raise the top of rows with scores above it by more than SLACK, and with it what was summed up. Tops are whole numbers:
 * they seldom move, and then nothing is rounded. */
#define SLACK 8
static void raise_tops(struct scan *s, int64_t start, int64_t count) {
    for (int64_t r = 0; r < s->count; r++) {
        const uint64_t seen = seen_keys(s, r, start, count);
        const float *scores = s->scores + r * WIDE_KEYS;
        vf most = vf_set(MINUS_INFINITY);
        if (!~seen)
            most = vf_max(vf_max(vf_load(scores), vf_load(scores + 16)), vf_max(vf_load(scores + 32), vf_load(scores + 48)));
        else
            for (int i = 0; i < 4; i++)
                most = _mm512_mask_max_ps(most, (__mmask16)(seen >> 16 * i), most, vf_load(scores + 16 * i));
        const float top = s->top[r];
        if (!_mm512_cmp_ps_mask(most, vf_set(top + SLACK), _CMP_NLE_UQ)) continue;
        s->top[r] = ceilf(vf_top(most));
        if (top == MINUS_INFINITY) continue;
        const vf shrink = _mm512_scalef_ps(vf_set(1.0f), vf_set(top - s->top[r]));
        float *sums = s->sums + r * s->padded, *lanes = s->total + r * 16;
        for (int64_t i = 0; i < s->padded; i += 16) vf_store(sums + i, vf_mul(vf_load(sums + i), shrink));
        vf_store(lanes, vf_mul(vf_load(lanes), shrink));
    }
}

/* Turn scores into weights, bf16, with the sum of what they were rounded to: lanes of a total are joined at the end. */
static void soften_wide(struct scan *s, const struct wide_tile *t, int64_t start, int64_t count) {
    const vp ones = (vp)_mm512_set1_epi16(0x3f80);
    raise_tops(s, start, count);
    for (int64_t r = 0; r < s->count; r++) {
        const uint64_t seen = seen_keys(s, r, start, count);
        uint16_t *weights = s->weights + r * WIDE_KEYS;
        float *lanes = s->total + r * 16;
        vf score[4], total = vf_load(lanes);
        for (int i = 0; i < 4; i++) score[i] = vf_load(s->scores + r * WIDE_KEYS + 16 * i);
        coarse_exp2(score, vf_set(s->top[r]));
        for (int i = 0; i < 4; i += 2) {
            const __mmask32 exist = (__mmask32)(seen >> 16 * i);
            vp both = _mm512_maskz_cvtne2ps_pbh(exist, score[i + 1], score[i]);
            total = dot_pair(total, both, ones);
            if (t->v_scale) {
                const vf low = vf_mul(score[i], vf_load(t->v_scale + 16 * i));
                const vf high = vf_mul(score[i + 1], vf_load(t->v_scale + 16 * i + 16));
                both = _mm512_maskz_cvtne2ps_pbh(exist, high, low);
            }
            _mm512_storeu_si512(weights + 16 * i, (__m512i)both);
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
    vf sum[6][4];
    float *sums = s->sums + row * s->padded + column;
    for (int r = 0; r < R; r++)
        for (int c = 0; c < 2 * V; c++) sum[r][c] = vf_load(sums + r * s->padded + c * 16);
    __mmask32 exists[2];
    for (int v = 0; v < V; v++) {
        const int64_t left = s->a->width - column - v * 32;
        exists[v] = left >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << left) - 1;
    }
    for (int64_t key = t->from & ~(int64_t)1; key < t->to; key += 2) {
        vp value[4];
        for (int v = 0; v < V; v++) {
            const __m512i even = value_row(t, key, column + v * 32, exists[v]);
            const __m512i odd = value_row(t, key + 1, column + v * 32, exists[v]);
            value[2 * v] = (vp)_mm512_unpacklo_epi16(even, odd);
            value[2 * v + 1] = (vp)_mm512_unpackhi_epi16(even, odd);
        }
        for (int r = 0; r < R; r++) {
            const vp weights = vp_repeat(s->weights + (row + r) * WIDE_KEYS + key);
            for (int c = 0; c < 2 * V; c++) sum[r][c] = dot_pair(sum[r][c], value[c], weights);
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
        soften_wide(s, &t, start, count);
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
