/* What this machine can do at most: reading memory, and each kind of product in registers. For tests/bench/roofline. */

static int32_t probe_chunks(const void *args, int32_t threads) {
    (void)args;
    return threads;
}

/* Read a share of the buffer, by lines. */
static float read_all(const float *x, int64_t count) {
    vf sum[8];
    for (int i = 0; i < 8; i++) sum[i] = vf_zero();
    for (int64_t at = 0; at + 128 <= count; at += 128)
        for (int i = 0; i < 8; i++) sum[i] = vf_max(sum[i], vf_load(x + at + 16 * i));
    for (int i = 1; i < 8; i++) sum[0] = vf_max(sum[0], sum[i]);
    return vf_top(sum[0]);
}

#define CHAINS 12 /* products that do not wait for each other */
static float dot_codes(const struct probe_args *a) {
    vi sum[CHAINS];
    vb w = vb_load(a->data);
    vq x = vq_load(a->data);
    for (int i = 0; i < CHAINS; i++) sum[i] = vi_set(i);
    for (int64_t turn = 0; turn < a->turns; turn++)
        for (int i = 0; i < CHAINS; i++) sum[i] = dot_nibbles(sum[i], w, x);
    for (int i = 1; i < CHAINS; i++) sum[0] = vi_add(sum[0], sum[i]);
    return vf_top(vi_float(sum[0]));
}

static float dot_floats(const struct probe_args *a) {
    vf sum[CHAINS], w = vf_load(a->data);
    for (int i = 0; i < CHAINS; i++) sum[i] = vf_set((float)i);
    for (int64_t turn = 0; turn < a->turns; turn++)
        for (int i = 0; i < CHAINS; i++) sum[i] = vf_fma(w, w, sum[i]);
    for (int i = 1; i < CHAINS; i++) sum[0] = vf_add(sum[0], sum[i]);
    return vf_top(sum[0]);
}

/* Pairs of bf16 where the tier has their product, else nothing. */
static float dot_pairs(const struct probe_args *a) {
#if defined(__AVX512BF16__)
    vf sum[CHAINS];
    __m512bh w = (__m512bh)_mm512_loadu_si512(a->data);
    for (int i = 0; i < CHAINS; i++) sum[i] = vf_set((float)i);
    for (int64_t turn = 0; turn < a->turns; turn++)
        for (int i = 0; i < CHAINS; i++) sum[i] = _mm512_dpbf16_ps(sum[i], w, w);
    for (int i = 1; i < CHAINS; i++) sum[0] = vf_add(sum[0], sum[i]);
    return vf_top(sum[0]);
#else
    (void)a;
    return 0;
#endif
}

static void probe_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct probe_args *a = args;
    (void)worker;
    const int64_t count = a->bytes / 4, first = count * chunk / chunks / 16 * 16, end = count * (chunk + 1) / chunks / 16 * 16;
    float result = 0;
    switch (a->kind) {
    case PROBE_READ:
        for (int64_t turn = 0; turn < a->turns; turn++) result += read_all((const float *)a->data + first, end - first);
        break;
    case PROBE_CODES: result = dot_codes(a); break;
    case PROBE_PAIRS: result = dot_pairs(a); break;
    case PROBE_FLOATS: result = dot_floats(a); break;
    }
    a->out[chunk] = result; /* so that nothing above is left out */
}
