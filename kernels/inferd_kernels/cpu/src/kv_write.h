/* Head norm, rotary embedding (rotate-half), and the scatter of keys and values into the paged cache. */

static void norm_rope(const struct write_args *a, const float *x, const float *norm, int64_t position, float *out) {
    const int64_t width = a->width, half = a->rope / 2;
    const vf inverse = vf_set(norm ? inverse_rms(x, width, a->eps) : 1.0f);
    for (int64_t i = 0; i < width; i += 16) {
        vf v = load_tail(x + i, width - i);
        if (norm) v = vf_mul(vf_mul(v, inverse), load_tail(norm + i, width - i));
        store_tail(out + i, v, width - i);
    }
    if (!a->cos) return;
    const float *cos = a->cos + position * a->rope, *sin = a->sin + position * a->rope;
    for (int64_t i = 0; i < half; i += 16) {
        const int64_t left = half - i;
        const vf first = load_tail(out + i, left), second = load_tail(out + i + half, left);
        const vf x_part = vf_sub(vf_mul(first, load_tail(cos + i, left)), vf_mul(second, load_tail(sin + i, left)));
        const vf y_part = vf_mul(second, load_tail(cos + i + half, left));
        store_tail(out + i, x_part, left);
        store_tail(out + i + half, vf_add(y_part, vf_mul(first, load_tail(sin + i + half, left))), left);
    }
}

/* Store a head in bf16: a key in pairs of columns `step` pairs apart, as attention.h says, a value in a row. */
static void put_pairs(uint16_t *keys, int64_t step, const float *key, uint16_t *values, const float *value, int64_t width) {
    uint16_t halves[32];
    for (int64_t d = 0; d < width; d += 32) {
        const int64_t left = width - d, count = left < 32 ? left : 32;
        put_bf16(halves, load_tail(key + d, left), load_tail(key + d + 16, left - 16));
        for (int64_t i = 0; i < count; i += 2) memcpy(keys + (d + i) * step, halves + i, 4);
        put_bf16(halves, load_tail(value + d, left), load_tail(value + d + 16, left - 16));
        memcpy(values + d, halves, (size_t)count * 2);
    }
}

/* Store a head's numbers in one byte each, `step` apart; returns their scale, NaN where one is not finite. */
static float put_bytes(uint8_t *to, int64_t step, const float *x, int64_t n, int number) {
    const float most = number == NUMBER_I8 ? 127.0f : 448.0f;
    float peak = 0, bad = 0;
    for (int64_t d = 0; d < n; d++) {
        float size = fabsf(x[d]);
        peak = size > peak ? size : peak;
        bad += x[d] * 0.0f;
    }
    if (bad != 0 || !(peak > 1e-30f)) {
        for (int64_t d = 0; d < n; d++) to[d * step] = 0;
        return bad != 0 ? bad : 0;
    }
    const float inverse = most / peak, scale = peak / most;
    if (number == NUMBER_I8)
        for (int64_t d = 0; d < n; d++) to[d * step] = (uint8_t)(int8_t)lrintf(x[d] * inverse);
    else
        for (int64_t d = 0; d < n; d++) to[d * step] = f8_of_f32(x[d] / scale);
    return scale;
}

static int32_t write_chunks(const void *args, int32_t threads) {
    return split_rows(*((const struct write_args *)args)->rows, threads * 4);
}

static void write_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct write_args *a = args;
    const int64_t rows = *a->rows, width = a->width, size = a->block_size;
    float *key = (float *)worker->scratch;
    for (int64_t row = rows * chunk / chunks; row < rows * (chunk + 1) / chunks; row++) {
        const int64_t position = a->positions[row], block = a->slots[row] / size, offset = a->slots[row] % size;
        for (int64_t h = 0; h < a->heads; h++)
            norm_rope(a, a->q + row * a->q_stride + h * width, a->q_norm, position, a->q_out + (row * a->heads + h) * width);
        for (int64_t h = 0; h < a->kv_heads; h++) {
            const int64_t plane = block * a->block_stride + h * size * width;
            const float *value = a->v + row * a->v_stride + h * width;
            norm_rope(a, a->k + row * a->k_stride + h * width, a->k_norm, position, key);
            if (ONE_BYTE(a->number)) {
                const int64_t scale = block * a->scale_stride + h * size + offset;
                a->k_scales[scale] = put_bytes((uint8_t *)a->k_cache + plane + offset, size, key, width, a->number);
                a->v_scales[scale] = put_bytes((uint8_t *)a->v_cache + plane + offset * width, 1, value, width, a->number);
                continue;
            }
            if (a->number == NUMBER_BF16) {
                uint16_t *keys = (uint16_t *)a->k_cache + plane + offset * 2;
                put_pairs(keys, size, key, (uint16_t *)a->v_cache + plane + offset * width, value, width);
                continue;
            }
            for (int64_t d = 0; d < width; d++) number_put(a->k_cache, plane + d * size + offset, a->number, key[d]);
            for (int64_t d = 0; d < width; d++) number_put(a->v_cache, plane + offset * width + d, a->number, value[d]);
        }
    }
    worker->made = NULL; /* the scratch is no longer what a multiplication may have left there */
}
