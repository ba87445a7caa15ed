/* Rows as the multiplications read them: normed or gated, then quantized in groups of 32 columns. */

#define LOG2E 1.44269504088896341f

/* Codes of one group; returns the scale, 0 for one that has none. */
INLINE float quantize_group(vf low, vf high, struct row_group *out) {
    int32_t top = vf_top_bits(low, high);
    float peak = f32_of_bits((uint32_t)top);
    if (top >= 0x7f800000 || peak < 1e-30f) { /* not finite: pass it on as NaN */
        float value = top >= 0x7f800000 ? f32_of_bits(0x7fc00000) : 0.0f;
        *out = (struct row_group){.scale = value, .sum = value};
        return 0.0f;
    }
    vf inverse = vf_set(127.0f / peak);
    vf_to_bytes(vf_mul(low, inverse), out->codes);
    vf_to_bytes(vf_mul(high, inverse), out->codes + 16);
    out->half[0] = sum_16(out->codes), out->half[1] = sum_16(out->codes + 16);
    out->scale = peak * (1.0f / 127.0f);
    out->sum = out->scale * (float)(out->half[0] + out->half[1]);
    return out->scale;
}

/* Quantize a group without its largest value, which is returned: the others then need not share its scale. */
INLINE struct outlier set_apart(float *x, int64_t column, struct row_group *out) {
    const int at = first_of_top(x, vf_top_bits(vf_load(x), vf_load(x + 16)));
    const struct outlier found = {x[at], (uint32_t)(column + at)};
    x[at] = 0.0f;
    quantize_group(vf_load(x), vf_load(x + 16), out);
    out->sum += found.value;
    return found;
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

/* Ask for a group of the next row: half of what a multiplication wrote lies in the caches of other cores. */
INLINE void fetch_ahead(const struct quant_args *a, const float *x) {
    for (int i = 0; i < GROUP; i += 16) {
        __builtin_prefetch(x + i);
        if (a->source == SOURCE_SILU) __builtin_prefetch(x + a->columns + i);
    }
}

static void make_row(const struct quant_args *a, int64_t row, struct int8_rows out, int64_t at, struct worker *worker) {
    const float *x = a->x + row * a->x_stride;
    float *made = (float *)(void *)(worker->scratch + SCRATCH_BYTES - MADE_BYTES);
    const int64_t groups = (a->columns + GROUP - 1) / GROUP;
    const int64_t first = at * groups;
    vf inverse = vf_set(a->source == SOURCE_NORM ? inverse_rms(x, a->columns, a->eps) : 1.0f);
    float squares = 0;
    for (int64_t g = 0; g < groups; g++) {
        fetch_ahead(a, x + a->x_stride + g * GROUP);
        vf low = made_lanes(a, x, g * GROUP, inverse), high = made_lanes(a, x, g * GROUP + 16, inverse);
        if (a->plain) {
            float *plain = a->plain + row * a->columns + g * GROUP;
            store_tail(plain, low, a->columns - g * GROUP);
            store_tail(plain + 16, high, a->columns - g * GROUP - 16);
        }
        if (out.halves) put_bf16(out.halves + (first + g) * GROUP, low, high);
        if (!out.groups) continue;
        vf_store(made + g * GROUP, low), vf_store(made + g * GROUP + 16, high);
        float scale = quantize_group(low, high, out.groups + first + g);
        squares += scale * scale;
    }
    if (!out.groups) return;
    const float least = a->outlier_above * squares / (float)groups;
    struct outlier *outliers = out.outliers + first;
    int32_t count = 0;
    for (uint32_t g = 0; g < groups; g++) { /* without branches, which would be guessed wrong */
        const float scale = out.groups[first + g].scale;
        outliers[count].column = g * GROUP;
        count += scale * scale > least;
    }
    for (int32_t i = 0; i < count; i++) {
        const uint32_t column = outliers[i].column;
        outliers[i] = set_apart(made + column, column, out.groups + first + column / GROUP);
    }
    out.counts[at] = count;
}

INLINE int32_t split_rows(int64_t rows, int32_t most) { return (int32_t)(rows < most ? rows : most); }

static int32_t quantize_chunks(const void *args, int32_t threads) {
    const struct quant_args *a = args;
    return *a->rows <= a->deferred ? 0 : split_rows(*a->rows, threads * 4);
}

static void quantize_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct quant_args *a = args;
    int64_t rows = *a->rows;
    for (int64_t row = rows * chunk / chunks; row < rows * (chunk + 1) / chunks; row++) make_row(a, row, a->out, row, worker);
}

/* Rows that a small step left to us, made once for each thread and operator. */
static struct int8_rows own_rows(const struct quant_args *source, struct worker *worker) {
    if (worker->made != source || worker->made_in != worker->serial) {
        int64_t rows = *source->rows, groups = (source->columns + GROUP - 1) / GROUP;
        struct int8_rows out = {0};
        if (source->out.halves) {
            out.halves = (uint16_t *)worker->scratch;
        } else {
            out.groups = (struct row_group *)worker->scratch;
            out.outliers = (struct outlier *)(out.groups + rows * groups);
            out.counts = (int32_t *)(out.outliers + rows * groups);
        }
        for (int64_t row = 0; row < rows; row++) make_row(source, row, out, row, worker);
        worker->made = source, worker->made_in = worker->serial, worker->made_rows = out;
    }
    return worker->made_rows;
}
