/* The output matrix and the choice of a token, for the rows that sample.
 *
 * `head` multiplies a segment of the vocabulary at a time into memory of the thread, and reduces it there: rows that are
 * greedy, or sampled with a temperature alone, never write their logits. Rows that want them kept (for a filter here, or
 * for what a request asks of the host) get a copy. `choose` joins the segments and filters.
 * What a request changes of its logits (edits.h) is changed in that memory; what is kept is as the model made it.
 */

#define HEAD_SEGMENT 512 /* columns */
#define HEAD_ROWS 32     /* rows at a time */

INLINE int64_t block_bytes(const struct gemm_args *a) {
    return a->bits >= 16 ? dense_bytes(a) : a->groups * group_bytes(a);
}

/* The product of some rows and columns as a call of its own. */
static struct gemm_args part_of(const struct gemm_args *a, int64_t row, int64_t column, int64_t columns) {
    struct gemm_args part = *a;
    if (part.source && *a->rows > part.source->deferred) part.source = NULL; /* the rows were made already */
    part.n = (int32_t)columns;
    part.weights += column / 16 * block_bytes(a);
    if (part.bias) part.bias += column;
    if (part.plain) part.plain += row * part.plain_stride;
    if (part.x.groups) part.x.groups += row * a->groups;
    if (part.x.halves) part.x.halves += row * a->groups * GROUP;
    if (part.x.outliers) part.x.outliers += row * a->groups, part.x.counts += row;
    return part;
}

static int32_t first_of(const float *x, int64_t n, float value) {
    for (int64_t i = 0; i < n; i++)
        if (x[i] == value) return (int32_t)i;
    return 0;
}

/* The largest of a row and its lowest index; NaN where a row holds one. */
static float peak_of(const float *x, int64_t n, int32_t *index) {
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
    *index = first_of(x, n, top);
    return top;
}

/* The same of logits that were found to be sound before they were edited. */
static float top_of(const float *x, int64_t n, int32_t *index) {
    vf tops = vf_set(MINUS_INFINITY);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) tops = vf_max(vf_load(x + i), tops);
    float top = vf_top(tops);
    for (; i < n; i++)
        if (x[i] > top) top = x[i];
    *index = first_of(x, n, top);
    return top;
}

static struct noise_key row_key(const struct head_args *a, const struct slot_choice *slot, int64_t row) {
    return noise_key(slot->seed, a->positions[a->sample_rows[row]] + 1);
}

/* The best x / temperature + noise of up to 16 tokens; lanes past `count` are not looked at. */
INLINE void noisy_best(v16f scores, v16u tokens, int64_t count, struct noise_key key, struct segment_best *best) {
    v16f noisy = scores + noise_of(noise_bits(key, tokens));
    for (int64_t i = 0; i < count; i++)
        if (noisy[i] > best->score || (noisy[i] == best->score && (int32_t)tokens[i] < best->index))
            best->score = noisy[i], best->index = (int32_t)tokens[i];
}

/* Gumbel-max over a segment. Tokens that no noise, or not their own, can bring to the top are passed over. */
static void sample_segment(const float *x, int64_t n, int64_t first, float temperature, struct noise_key key,
                           struct segment_best *best) {
    best->score = MINUS_INFINITY, best->index = INT32_MAX;
    for (int64_t i = 0; i < n; i += 16) {
        v16f scores = v16f_tail(x + i, n - i) / temperature;
        v16u tokens = lane_ids + (uint32_t)(first + i);
        int64_t count = n - i < 16 ? n - i : 16;
        if (count == 16) {
            float gap = best->score - v16f_top(scores), slack = fabsf(best->score) * 2.4e-7f; /* of rounding the sums */
            if (gap > NOISE_MOST + slack) continue;
            if (gap > 6.0f + slack) { /* noise above 5.96 takes bits below 0.0026 * 2^31 */
                v16i low = noise_bits(key, tokens) < 5583457;
                int32_t any = 0;
                for (int lane = 0; lane < 16; lane++) any |= low[lane];
                if (!any) continue;
            }
        }
        noisy_best(scores, tokens, count, key, best);
    }
}

static int32_t head_chunks(const void *args, int32_t threads) {
    const struct head_args *a = args;
    (void)threads;
    return *a->rows ? (a->gemm.n + HEAD_SEGMENT - 1) / HEAD_SEGMENT : 0;
}

static void head_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct head_args *a = args;
    const int64_t rows = *a->rows, first = (int64_t)chunk * HEAD_SEGMENT;
    const int64_t width = a->gemm.n - first < HEAD_SEGMENT ? a->gemm.n - first : HEAD_SEGMENT;
    float *y = (float *)worker->spare;
    for (int64_t start = 0; start < rows; start += HEAD_ROWS) {
        const int32_t count = (int32_t)(rows - start < HEAD_ROWS ? rows - start : HEAD_ROWS);
        struct gemm_args part = part_of(&a->gemm, start, first, width);
        part.rows = &count, part.y = y, part.y_stride = HEAD_SEGMENT;
        gemm_run(&part, 0, 1, worker);
        for (int64_t r = 0; r < count; r++) {
            const struct slot_choice *slot = a->slots + a->row_slots[start + r];
            struct segment_best *best = a->segments + (start + r) * chunks + chunk;
            float *x = y + r * HEAD_SEGMENT;
            const struct row_edits edits = edits_of(a, start + r);
            best->raw = best->peak = peak_of(x, width, &best->index);
            if (slot->keep || slot->filtered) memcpy(a->gemm.y + (start + r) * a->gemm.y_stride + first, x, (size_t)width * 4);
            if (is_edited(&edits)) edit_logits(&edits, x, width, first), best->peak = top_of(x, width, &best->index);
            best->score = best->peak, best->index += (int32_t)first;
            if (slot->temperature > 0 && !slot->filtered)
                sample_segment(x, width, first, slot->temperature, row_key(a, slot, start + r), best);
        }
    }
}

struct candidates { /* of one row, in order of their ids */
    float *scores;
    int32_t *ids;
    int64_t *weights;
    int64_t count;
};

INLINE int64_t candidates_room(int64_t most) { return (most + 31) / 16 * 16; }

INLINE struct candidates no_candidates(struct worker *worker, int64_t most) {
    int64_t room = candidates_room(most);
    int64_t *weights = (int64_t *)worker->spare;
    float *scores = (float *)(weights + room);
    return (struct candidates){scores, (int32_t *)(scores + room), weights, 0};
}

/* Take every token whose score is at least `floor`. */
static void take_from(struct candidates *c, const float *x, int64_t n, float temperature, float floor) {
    c->count = 0;
    for (int64_t i = 0; i < n; i += 16) {
        v16f scores = v16f_tail(x + i, n - i) / temperature;
        int64_t count = n - i < 16 ? n - i : 16;
        if (count == 16 && v16f_top(scores) < floor) continue;
        for (int64_t lane = 0; lane < count; lane++)
            if (scores[lane] >= floor) c->scores[c->count] = scores[lane], c->ids[c->count++] = (int32_t)(i + lane);
    }
}

static void keep_from(struct candidates *c, float floor) {
    int64_t kept = 0;
    for (int64_t i = 0; i < c->count; i++)
        if (c->scores[i] >= floor) c->scores[kept] = c->scores[i], c->ids[kept++] = c->ids[i];
    c->count = kept;
}

INLINE int64_t sum_weights(v16l w) {
    int64_t sum = 0;
    for (int i = 0; i < 16; i++) sum += w[i];
    return sum;
}

static int64_t weigh_candidates(struct candidates *c, float top) {
    int64_t total = 0;
    for (int64_t i = 0; i < c->count; i += 16) {
        v16f scores;
        memcpy(&scores, c->scores + i, 64);
        v16l w = fixed_weights(scores - top);
        memcpy(c->weights + i, &w, 128);
        for (int64_t lane = 0; lane < 16 && i + lane < c->count; lane++) total += w[lane];
    }
    return total;
}

static int64_t weigh_row(const float *x, int64_t n, float temperature, float top) {
    v16l total = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) total += fixed_weights(v16f_load(x + i) / temperature - top);
    int64_t sum = sum_weights(total);
    if (i < n) {
        v16l rest = fixed_weights(v16f_tail(x + i, n - i) / temperature - top);
        for (int64_t lane = 0; i + lane < n; lane++) sum += rest[lane];
    }
    return sum;
}

INLINE uint32_t order_of(float x) { /* unsigned integers in the order of the floats; -0 as 0 */
    uint32_t bits = bits_of_f32(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

INLINE float score_of(uint32_t order) { return f32_of_bits(order & 0x80000000u ? order & 0x7fffffffu : ~order); }

/* Find the score at which the measure of the likelier ones and its equals (their number, or their weight) first
 * reaches `wanted`; `above` gets the measure of the likelier ones. By digits of eleven bits: nothing is sorted. */
static float cut_at(const struct candidates *c, int weighted, int64_t wanted, int64_t *above) {
    int64_t sums[2048], before = 0;
    uint32_t prefix = 0, mask = 0;
    for (int level = 0; level < 3; level++) {
        const int shift = level == 0 ? 21 : level == 1 ? 10 : 0, digits = level == 2 ? 1024 : 2048;
        memset(sums, 0, (size_t)digits * 8);
        for (int64_t i = 0; i < c->count; i++) {
            uint32_t order = order_of(c->scores[i]);
            if ((order & mask) == prefix) sums[order >> shift & (uint32_t)(digits - 1)] += weighted ? c->weights[i] : 1;
        }
        int digit = digits - 1;
        while (digit && before + sums[digit] < wanted) before += sums[digit--];
        prefix |= (uint32_t)digit << shift, mask |= (uint32_t)(digits - 1) << shift;
    }
    *above = before;
    return score_of(prefix);
}

/* Keep the smallest set, most likely first and lowest id first among equals, that weighs `wanted`. */
static void keep_nucleus(struct candidates *c, int64_t wanted) {
    int64_t weight, kept = 0;
    float last = cut_at(c, 1, wanted > 1 ? wanted : 1, &weight);
    for (int64_t i = 0; i < c->count; i++) {
        if (c->scores[i] < last) continue;
        if (c->scores[i] == last) {
            if (weight >= wanted && kept) continue;
            weight += c->weights[i];
        }
        c->scores[kept] = c->scores[i], c->ids[kept++] = c->ids[i];
    }
    c->count = kept;
}

/* The logits of a row to filter: those kept, or an edited copy behind the room of its candidates. */
static const float *row_logits(const struct head_args *a, int64_t row, struct worker *worker) {
    const float *kept = a->gemm.y + row * a->gemm.y_stride;
    const struct row_edits edits = edits_of(a, row);
    if (!is_edited(&edits)) return kept;
    const int64_t n = a->gemm.n;
    float *x = (float *)(no_candidates(worker, n).ids + candidates_room(n));
    memcpy(x, kept, (size_t)n * 4);
    edit_logits(&edits, x, n, 0);
    return x;
}

#define NARROW 8.0f /* most rows find all they need within this of their best */

static int32_t choose_filtered(const struct head_args *a, const struct slot_choice *slot, int64_t row, float peak,
                               struct worker *worker) {
    const float *x = row_logits(a, row, worker), top = peak / slot->temperature;
    const int64_t n = a->gemm.n, most = slot->top_k < n ? slot->top_k : n;
    const float least = top + slot->log_min_p; /* nothing below enters */
    const float narrow = top - NARROW > least ? top - NARROW : least;
    struct candidates c = no_candidates(worker, n);
    int64_t above, total = 0;
    int complete = narrow == least;
    take_from(&c, x, n, slot->temperature, narrow);
    if (most && c.count < most && !complete) take_from(&c, x, n, slot->temperature, least), complete = 1;
    if (most && c.count > most) keep_from(&c, cut_at(&c, 0, most, &above));
    if (slot->top_p < 1) {
        int64_t found = weigh_candidates(&c, top);
        total = complete || most ? found : weigh_row(x, n, slot->temperature, top);
        int64_t wanted = (int64_t)((double)slot->top_p * (double)total);
        if (found < wanted) take_from(&c, x, n, slot->temperature, least), weigh_candidates(&c, top);
        keep_nucleus(&c, wanted < total ? wanted : total);
    } else if (!most && !complete) {
        take_from(&c, x, n, slot->temperature, least);
    }
    struct noise_key key = row_key(a, slot, row);
    struct segment_best best = {0, 0, MINUS_INFINITY, INT32_MAX};
    for (int64_t i = 0; i < c.count; i += 16) {
        v16f scores;
        v16u tokens;
        memcpy(&scores, c.scores + i, 64), memcpy(&tokens, c.ids + i, 64);
        noisy_best(scores, tokens, c.count - i < 16 ? c.count - i : 16, key, &best);
    }
    return best.index;
}

static int32_t choose_chunks(const void *args, int32_t threads) {
    (void)threads;
    return *((const struct head_args *)args)->rows;
}

INLINE int is_sound(float peak) { return peak < -MINUS_INFINITY && peak > MINUS_INFINITY; }

static void choose_run(const void *args, int32_t row, int32_t rows, struct worker *worker) {
    const struct head_args *a = args;
    (void)rows;
    const struct slot_choice *slot = a->slots + a->row_slots[row];
    const int32_t segments = head_chunks(a, 1);
    const struct segment_best *parts = a->segments + (int64_t)row * segments;
    struct segment_best best = parts[0];
    for (int32_t i = 1; i < segments; i++) {
        if (best.raw == best.raw && !(parts[i].raw <= best.raw)) best.raw = parts[i].raw; /* NaN stays */
        if (parts[i].peak > best.peak) best.peak = parts[i].peak;
        if (parts[i].score > best.score) best.score = parts[i].score, best.index = parts[i].index;
    }
    a->peak[row] = best.raw;
    if (!is_sound(best.raw)) a->index[row] = -1;
    else if (!is_sound(best.peak)) a->index[row] = -2;
    else a->index[row] = slot->filtered ? choose_filtered(a, slot, row, best.peak, worker) : best.index;
}

/* Largest value and its lowest index of each row, of logits that are there already. */
static int32_t argmax_chunks(const void *args, int32_t threads) {
    (void)threads;
    return *((const struct argmax_args *)args)->rows;
}

static void argmax_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct argmax_args *a = args;
    (void)chunks, (void)worker;
    int32_t index;
    a->peak[chunk] = peak_of(a->x + (int64_t)chunk * a->x_stride, a->columns, &index);
    a->index[chunk] = index;
}
