/* Rows as the multiplications read them: normed or gated, then quantized in groups of 32 columns. */

#define LOG2E 1.44269504088896341f

/* What rounding to the codes left over, in 256ths; returns the sum. */
INLINE int32_t fine_codes(vf scaled, int8_t *fine) {
    vf rest = vf_mul(vf_sub(scaled, vf_round(scaled)), vf_set(256.0f));
    return vf_to_bytes(vf_min(rest, vf_set(127.0f)), fine);
}

INLINE void quantize_group(vf low, vf high, int8_t *codes, int8_t *fine, struct group_meta *meta) {
    int32_t top = vf_top_bits(low), other = vf_top_bits(high);
    if (other > top) top = other;
    float peak = f32_of_bits((uint32_t)top);
    if (top >= 0x7f800000 || peak < 1e-30f) { /* not finite: pass it on as NaN */
        memset(codes, 0, GROUP);
        if (fine) memset(fine, 0, GROUP);
        float value = top >= 0x7f800000 ? f32_of_bits(0x7fc00000) : 0.0f;
        *meta = (struct group_meta){value, value, {0, 0}};
        return;
    }
    vf inverse = vf_set(127.0f / peak);
    low = vf_mul(low, inverse), high = vf_mul(high, inverse);
    meta->half[0] = vf_to_bytes(low, codes);
    meta->half[1] = vf_to_bytes(high, codes + 16);
    meta->scale = peak / 127.0f;
    if (fine) {
        meta->half[0] = meta->half[0] * 256 + fine_codes(low, fine);
        meta->half[1] = meta->half[1] * 256 + fine_codes(high, fine + 16);
        meta->scale *= 1.0f / 256;
    }
    meta->sum = meta->scale * (float)(meta->half[0] + meta->half[1]);
}

INLINE vf load_tail(const float *p, int64_t left) {
    return left >= 16 ? vf_load(p) : left > 0 ? vf_load_some(p, (int)left) : vf_zero();
}

INLINE void store_tail(float *p, vf x, int64_t left) {
    if (left >= 16) vf_store(p, x);
    else if (left > 0) vf_store_some(p, x, (int)left);
}

INLINE vf silu(vf x) {
    vf power = vf_exp2(vf_min(vf_set(126.0f), vf_mul(x, vf_set(-LOG2E))));
    return vf_div(x, vf_add(vf_set(1.0f), power));
}

INLINE float inverse_rms(const float *x, int64_t n, float eps) {
    vf total = vf_zero();
    for (int64_t i = 0; i < n; i += 16) {
        vf v = load_tail(x + i, n - i);
        total = vf_fma(v, v, total);
    }
    return 1.0f / sqrtf(vf_sum(total) / (float)n + eps);
}

INLINE vf made_lanes(const struct quant_args *a, const float *x, int64_t i, vf inverse) {
    int64_t left = a->columns - i;
    vf v = load_tail(x + i, left);
    if (a->source == SOURCE_NORM) return vf_mul(vf_mul(v, inverse), load_tail(a->weight + i, left));
    if (a->source == SOURCE_SILU) return vf_mul(silu(v), load_tail(x + a->columns + i, left));
    return v;
}

static void make_row(const struct quant_args *a, int64_t row, struct int8_rows out, int64_t at) {
    const float *x = a->x + row * a->x_stride;
    const int64_t groups = (a->columns + GROUP - 1) / GROUP;
    vf inverse = vf_set(a->source == SOURCE_NORM ? inverse_rms(x, a->columns, a->eps) : 1.0f);
    for (int64_t g = 0; g < groups; g++) {
        vf low = made_lanes(a, x, g * GROUP, inverse), high = made_lanes(a, x, g * GROUP + 16, inverse);
        if (a->plain) {
            float *plain = a->plain + row * a->columns + g * GROUP;
            store_tail(plain, low, a->columns - g * GROUP);
            store_tail(plain + 16, high, a->columns - g * GROUP - 16);
        }
        const int64_t index = at * groups + g;
        if (out.codes)
            quantize_group(low, high, out.codes + index * GROUP, out.fine ? out.fine + index * GROUP : NULL, out.meta + index);
    }
}

INLINE int32_t split_rows(int64_t rows, int32_t most) { return (int32_t)(rows < most ? rows : most); }

static int32_t quantize_chunks(const void *args, int32_t threads) {
    const struct quant_args *a = args;
    return *a->rows <= a->deferred ? 0 : split_rows(*a->rows, threads * 4);
}

static void quantize_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct quant_args *a = args;
    (void)worker;
    int64_t rows = *a->rows;
    for (int64_t row = rows * chunk / chunks; row < rows * (chunk + 1) / chunks; row++) make_row(a, row, a->out, row);
}

/* Rows that a small step left to us, made once for each thread and operator. */
static struct int8_rows own_rows(const struct quant_args *source, struct worker *worker) {
    if (worker->made != source || worker->made_in != worker->serial) {
        int64_t rows = *source->rows, groups = (source->columns + GROUP - 1) / GROUP;
        int8_t *codes = (int8_t *)worker->scratch, *fine = codes + rows * groups * GROUP, *rest = fine + rows * groups * GROUP;
        struct int8_rows out = {codes, source->out.fine ? fine : NULL, (struct group_meta *)rest};
        for (int64_t row = 0; row < rows; row++) make_row(source, row, out, row);
        worker->made = source, worker->made_in = worker->serial, worker->made_rows = out;
    }
    return worker->made_rows;
}
