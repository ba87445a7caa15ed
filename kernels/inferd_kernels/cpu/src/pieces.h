/* How paged attention falls into pieces, and how far ahead of them keys are asked for.
 *
 * A piece is all spans of a run of query rows, or (split) one span of a short query, for the heads of one KV head. Threads
 * take a few pieces in a row and ask for keys across them: KV blocks lie apart, where no hardware prefetcher looks, and a
 * piece of a short sequence is over before the keys that it asked for are there.
 */

#define CHUNKS_A_THREAD 4
#define KEYS_AHEAD 64

static int64_t spans_from(const struct attend_args *a, int64_t b) {
    int64_t length = a->cu_seqlens[b + 1] - a->cu_seqlens[b];
    return sees_from(a, a->context_lens[b] - length) / SPAN;
}

static int64_t block_positions(const struct attend_args *a) {
    int64_t group = a->heads / a->kv_heads;
    return group < BLOCK_ROWS ? BLOCK_ROWS / group : 1;
}

struct piece {
    int64_t sequence, kv_head, unit, start, count, first_position;
    int64_t low, high; /* keys that any row sees */
    int split;
};

static struct piece piece_at(const struct attend_args *a, int64_t index) {
    const int64_t sequences = *a->sequences, task = index / a->kv_heads;
    int64_t b = 0, above = sequences;
    while (above - b > 1) {
        int64_t middle = (b + above) / 2;
        if (a->task_base[middle] <= task) b = middle;
        else above = middle;
    }
    const int64_t length = a->cu_seqlens[b + 1] - a->cu_seqlens[b], run = block_positions(a);
    struct piece p = {.sequence = b, .kv_head = index % a->kv_heads, .unit = task - a->task_base[b]};
    p.split = a->task_base[sequences + 1 + b] >= 0;
    p.start = p.split ? 0 : p.unit * run;
    p.count = p.split ? length : length - p.start < run ? length - p.start : run;
    p.first_position = a->context_lens[b] - length + p.start;
    p.low = sees_from(a, p.first_position), p.high = p.first_position + p.count;
    return p;
}

/* How far the keys of the pieces that a thread scans one after the other have been asked for. */
struct reach {
    const struct attend_args *a;
    int64_t piece, end; /* pieces */
    int64_t kv_head, key, high;
    const int32_t *table;
};

static void reach_piece(struct reach *r, int64_t index) {
    const struct piece p = piece_at(r->a, index);
    const int64_t span = spans_from(r->a, p.sequence) + p.unit;
    r->piece = index, r->kv_head = p.kv_head;
    r->table = r->a->block_tables + p.sequence * r->a->table_stride;
    r->key = p.split && span * SPAN > p.low ? span * SPAN : p.low & ~(int64_t)15;
    r->high = p.split && (span + 1) * SPAN < p.high ? (span + 1) * SPAN : p.high;
}

/* Ask for so many more keys, for the second-level cache: the first can wait for too few lines at a time. */
static void reach_on(struct reach *r, int64_t most) {
    const struct attend_args *a = r->a;
    const int64_t bytes = a->number == NUMBER_F32 ? 4 : ONE_BYTE(a->number) ? 1 : 2, pair = a->number == NUMBER_BF16 ? 2 : 1;
    if (a->block_size % 16) return;
    for (int64_t done = 0; done < most; done += 16, r->key += 16) {
        while (r->key >= r->high) {
            if (r->piece + 1 >= r->end) return;
            reach_piece(r, r->piece + 1);
        }
        const int64_t block = r->table[r->key / a->block_size], offset = r->key % a->block_size;
        const int64_t plane = block * a->block_stride + r->kv_head * a->block_size * a->width;
        const char *k = (const char *)a->k_cache + (plane + offset * pair) * bytes;
        const char *v = (const char *)a->v_cache + (plane + offset * a->width) * bytes;
        for (int64_t d = 0; d < a->width; d += pair) PREFETCH_SECOND(k + d * a->block_size * bytes);
        for (int64_t i = 0; i < 16 * a->width * bytes; i += 64) PREFETCH_SECOND(v + i);
    }
}

static int32_t plan_chunks(const void *args, int32_t threads) {
    (void)args, (void)threads;
    return 1;
}

static void plan_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct attend_args *a = args;
    (void)chunk, (void)chunks, (void)worker;
    const int64_t sequences = *a->sequences, group = a->heads / a->kv_heads;
    int32_t *base = a->task_base, *partial = a->task_base + sequences + 1;
    int64_t used = 0;
    base[0] = 0;
    for (int64_t b = 0; b < sequences; b++) {
        int64_t length = a->cu_seqlens[b + 1] - a->cu_seqlens[b];
        int64_t spans = length ? (a->context_lens[b] - 1) / SPAN + 1 - spans_from(a, b) : 0;
        int split = length * group <= SHORT_ROWS && spans > 1 && used + spans * a->kv_heads <= a->partial_tasks;
        partial[b] = split ? (int32_t)used : -1;
        if (split) used += spans * a->kv_heads;
        base[b + 1] = base[b] + (int32_t)(split ? spans : (length + block_positions(a) - 1) / block_positions(a));
    }
}

static int32_t attend_chunks(const void *args, int32_t threads) {
    const struct attend_args *a = args;
    const int32_t pieces = a->task_base[*a->sequences] * a->kv_heads, runs = pieces / 4;
    const int32_t least = threads * CHUNKS_A_THREAD, wanted = runs > least ? runs : least;
    return pieces < wanted ? pieces : wanted;
}
