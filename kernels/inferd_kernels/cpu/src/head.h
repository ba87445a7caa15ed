/* The most likely token of each row. */

static int32_t argmax_chunks(const void *args, int32_t threads) {
    (void)threads;
    return *((const struct argmax_args *)args)->rows;
}

static void argmax_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct argmax_args *a = args;
    (void)chunks, (void)worker;
    const float *x = a->x + (int64_t)chunk * a->x_stride;
    const int64_t n = a->columns;
    vf tops = vf_set(MINUS_INFINITY), check = vf_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vf v = vf_load(x + i);
        tops = vf_max(v, tops);
        check = vf_fma(v, vf_zero(), check); /* NaN once anything is not finite */
    }
    float top = vf_top(tops), bad = vf_sum(check);
    for (; i < n; i++) {
        if (x[i] > top) top = x[i];
        bad += x[i] * 0.0f;
    }
    if (bad != bad) { /* rare: -infinity is sound, NaN and +infinity are told by the peak */
        for (i = 0, top = MINUS_INFINITY; i < n && top == top; i++)
            if (!(x[i] <= top)) top = x[i];
    }
    a->peak[chunk] = top;
    a->index[chunk] = 0;
    for (i = 0; i < n; i++)
        if (x[i] == top) {
            a->index[chunk] = i;
            break;
        }
}
