/* Run the kernels of one tier on numbers made here and print what comes out, a case a line: `program TIER`.
 *
 * A row must have the same bits in steps of any shape, on any number of threads: the program ends with 1 where it has not.
 * Without an argument it prints the tier that this machine would use.
 */
#include "abi.h"
#include "simd.h"
#include <stdio.h>
#include <stdlib.h>

const struct op *inferd_op(const char *name);
const char *inferd_tier(void);
int32_t inferd_use_tier(const char *name);
int32_t inferd_run(const struct step *steps, int32_t num_steps, int32_t times, int news);
int32_t inferd_set_threads(int32_t threads);
void inferd_reserve(int64_t bytes);

static const char *case_name = "";

static void run(const char *op, const void *args) {
    struct step step = {inferd_op(op), args};
    if (inferd_run(&step, 1, 1, -1)) exit(2);
}

static uint32_t noise(void) {
    static uint32_t state = 1;
    return (state = state * 1664525u + 1013904223u) >> 16;
}
static float number(void) { return (float)(int)(noise() % 2001 - 1000) / 300.0f; }

static float *numbers(int64_t count) {
    float *x = aligned_alloc(64, (size_t)(count * 4 + 63) / 64 * 64);
    for (int64_t i = 0; i < count; i++) x[i] = number();
    return x;
}

static void put(void *to, int64_t i, int32_t type, float x) {
    if (type == NUMBER_F16) ((uint16_t *)to)[i] = f16_of_f32(x);
    else if (type == NUMBER_BF16) ((uint16_t *)to)[i] = bf16_of_f32(x);
    else ((float *)to)[i] = x;
}

/* Zeroed memory for whatever a kernel stores; nothing here is given back. */
static void *room(int64_t bytes) { return memset(aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64), 0, (size_t)bytes); }

static void print(const float *x, int64_t count) {
    printf("%s", case_name);
    for (int64_t i = 0; i < count; i++) printf(" %.9g", x[i]);
    printf("\n");
}

static void same(const float *a, const float *b, int64_t count) {
    if (!memcmp(a, b, (size_t)count * 4)) return;
    printf("%s: another step, other bits\n", case_name);
    exit(1);
}

/* Multiplications. */

enum { ROWS = 10, N = 50, K = 96, GROUPS = K / GROUP };

static struct int8_rows rows_room(int32_t rows, int in_bf16) {
    if (in_bf16) return (struct int8_rows){.halves = room(rows * K * 2)};
    return (struct int8_rows){room(rows * GROUPS * (int64_t)sizeof(struct row_group)), room(rows * GROUPS * (int64_t)sizeof(struct outlier)), room(rows * 4), NULL};
}

/* Multiply `rows` rows of x from `first` on into y. */
static void multiply(struct gemm_args gemm, const struct quant_args *like, int32_t first, int32_t rows, float *y) {
    struct quant_args quantize = *like;
    const int plain = gemm.bits >= 16 && !gemm.x.halves;
    quantize.rows = gemm.rows = &rows;
    quantize.x += first * quantize.x_stride;
    quantize.out = plain ? (struct int8_rows){0} : rows_room(rows, gemm.x.halves != NULL);
    gemm.x = quantize.out;
    if (plain) gemm.plain = quantize.plain = room(rows * K * 4), gemm.plain_stride = K;
    gemm.y = y, gemm.y_stride = N;
    run("quantize", &quantize);
    run("gemm", &gemm);
}

static void multiplications(void) {
    const float *x = numbers(ROWS * 2 * K), *weight = numbers(K), *bias = numbers(N);
    const char *sources[] = {"plain", "norm", "silu"}, *types[] = {"f16", "bf16", "f32"};
    for (int i = 0; i < 16; i++) { /* 12 packed; 3 dense; bf16 by bf16 */
        const int packed = i < 12, bits = packed ? (i % 2 ? 8 : 4) : i == 14 ? 32 : 16, group = i / 2 % 2 ? 16 : 32;
        const int32_t type = packed ? i / 4 : i == 15 ? NUMBER_BF16 : i - 12;
        const int64_t count = N * K / group, codes = N * K * bits / 8;
        struct pack_args pack = {.n = N, .columns = K, .group = group, .bits = bits, .number = type};
        uint8_t *made = room(codes);
        void *scales = room(count * 4), *mins = room(count * 4);
        for (int64_t n = 0; n < codes && packed; n++) made[n] = (uint8_t)noise();
        for (int64_t n = 0; n < N * K && !packed; n++) put(made, n, type, number());
        for (int64_t n = 0; n < count; n++) put(scales, n, type, number() / 200), put(mins, n, type, number() / 20);
        pack.codes = made, pack.out = room(64 * K * 8), pack.scales = packed ? scales : NULL;
        pack.mins = packed && bits == 4 ? mins : NULL;
        run("pack", &pack);
        struct gemm_args gemm = {.weights = pack.out, .bias = bias, .n = N, .columns = K, .groups = GROUPS, .bits = bits};
        gemm.halves = group == 16 ? 2 : 1, gemm.zero = packed && bits == 8 ? 128 : 0, gemm.number = type;
        gemm.has_min = pack.mins != NULL;
        if (i == 15) gemm.x.halves = room(1);
        struct quant_args quantize = {.x = x, .x_stride = 2 * K, .weight = weight, .columns = K, .source = i % 3, .eps = 1e-5f};
        quantize.outlier_above = i < 4 ? INFINITY : i < 8 ? 1.0f : 0.0f;
        char name[64];
        snprintf(name, sizeof name, "gemm-%d-%d-%s-%s%s", bits, group, types[type], sources[quantize.source], i == 15 ? "-pairs" : "");
        case_name = name;
        float y[ROWS * N], again[ROWS * N];
        inferd_set_threads(2);
        multiply(gemm, &quantize, 0, ROWS, y);
        inferd_set_threads(1);
        for (int32_t first = 0, rows = 1; first < ROWS; first += rows++) { /* 1, 2, 3, 4 rows */
            multiply(gemm, &quantize, first, rows, again + first * N);
            same(y + first * N, again + first * N, rows * N);
        }
        print(y, ROWS * N);
        const int32_t ids[] = {0, 49, 17}, three = 3;
        float embedded[3 * K];
        struct embed_args embed = {&three, ids, gemm, embedded, K, 0.5f};
        run("embed", &embed);
        print(embedded, 3 * K);
    }
}

/* Attention: one sequence a slot, whose blocks follow one another. */

enum { LENGTH = 270, HEADS = 4, KV_HEADS = 2, ROPE = 16 };

struct cache {
    struct write_args write;
    struct attend_args attend;
    int64_t blocks;
};

/* Run tokens [first, first + count) of a sequence; returns their output [count, HEADS, width]. */
static float *attend(const struct cache *c, int32_t sequence, int32_t first, int32_t count) {
    struct write_args write = c->write;
    struct attend_args attend = c->attend;
    int64_t *positions = room(count * 8), *slots = room(count * 8);
    int32_t *table = room(c->blocks * 4), one = 1, ends[] = {0, count}, context = first + count;
    for (int64_t i = 0; i < count; i++) {
        positions[i] = first + i;
        slots[i] = sequence * c->blocks * write.block_size + positions[i];
    }
    for (int64_t i = 0; i < c->blocks; i++) table[i] = (int32_t)(sequence * c->blocks + i);
    write.rows = &count, write.positions = positions, write.slots = slots;
    write.q += first * write.q_stride, write.k += first * write.k_stride, write.v += first * write.v_stride;
    attend.q = write.q_out = room(count * HEADS * write.width * 4);
    run("write", &write);
    attend.sequences = &one, attend.cu_seqlens = ends, attend.context_lens = &context, attend.block_tables = table;
    attend.table_stride = c->blocks, attend.pending = room(KV_HEADS * 4), attend.task_base = room(16);
    attend.partial_tasks = 2 * KV_HEADS, attend.partial = room(attend.partial_tasks * 64 * (write.width + 48) * 4);
    attend.out = room(count * HEADS * write.width * 4);
    run("plan", &attend);
    run("attend", &attend);
    return attend.out;
}

static void attention(void) {
    const char *types[] = {"f16", "bf16", "f32", "i8", "f8"};
    for (int i = 0; i < 10; i++) {
        const int32_t type = i % 5, block_size = i < 5 ? 16 : 5, width = i < 5 ? 32 : 24, kv_width = KV_HEADS * width;
        struct cache c = {.blocks = (LENGTH + block_size - 1) / block_size};
        const int64_t block = block_size * kv_width + 16, scales = block_size * KV_HEADS + 3; /* blocks lie apart */
        const int64_t plane = 2 * c.blocks * block, tokens = 2 * c.blocks * scales;
        c.write = (struct write_args){.q_stride = HEADS * width, .k_stride = kv_width, .v_stride = kv_width};
        c.write.q = numbers(LENGTH * HEADS * width), c.write.k = numbers(LENGTH * kv_width), c.write.v = numbers(LENGTH * kv_width);
        c.write.cos = numbers(LENGTH * ROPE), c.write.sin = numbers(LENGTH * ROPE), c.write.q_norm = numbers(width);
        c.write.heads = HEADS, c.write.kv_heads = KV_HEADS, c.write.width = width, c.write.rope = ROPE;
        c.write.block_size = block_size, c.write.number = type, c.write.eps = 1e-5f;
        c.write.k_cache = room(plane * 4), c.write.v_cache = room(plane * 4);
        c.write.k_scales = room(tokens * 4), c.write.v_scales = room(tokens * 4);
        c.write.block_stride = block, c.write.scale_stride = scales;
        c.attend = (struct attend_args){.k_cache = c.write.k_cache, .v_cache = c.write.v_cache, .k_scales = c.write.k_scales};
        c.attend.block_stride = block, c.attend.scale_stride = scales;
        c.attend.v_scales = c.write.v_scales, c.attend.heads = HEADS, c.attend.kv_heads = KV_HEADS, c.attend.width = width;
        c.attend.block_size = block_size, c.attend.number = type, c.attend.scale = 0.05f, c.attend.window = i % 2 ? 40 : 0;
        char name[64];
        snprintf(name, sizeof name, "attention-%s-%d", types[type], block_size);
        case_name = name;
        const int64_t row = HEADS * width;
        inferd_set_threads(2);
        const float *whole = attend(&c, 0, 0, LENGTH);
        const int32_t cuts[] = {0, 137, 250, 251, 258, 266, 268, 269, 270}; /* chunks, tokens, short queries over two spans */
        for (int cut = 0; cut < 8; cut++) {
            inferd_set_threads(1 + cut % 2);
            const float *part = attend(&c, 1, cuts[cut], cuts[cut + 1] - cuts[cut]);
            same(part, whole + cuts[cut] * row, (cuts[cut + 1] - cuts[cut]) * row);
        }
        for (int64_t token = 0; token < LENGTH; token += 53) print(whole + token * row, row);
    }
}

/* The output matrix, and every way to choose a token. */

static void choices(void) {
    enum { VOCAB = 1100, WAYS = 10, LAST = 7 };
    struct slot_choice slots[WAYS];
    int32_t *history = room(VOCAB * 4), row_slots[WAYS], token_ids[WAYS], sample_rows[WAYS], bias_ids[] = {3, 700, 1099};
    int64_t positions[WAYS], index[WAYS];
    float peaks[WAYS], found[WAYS], bias[] = {4.0f, -9.0f, 2.5f};
    uint32_t mask[(VOCAB + 31) / 32];
    const uint32_t *row_masks[WAYS] = {0};
    for (int i = 0; i < (VOCAB + 31) / 32; i++) mask[i] = noise() << 16 | noise();
    for (int i = 0; i < 200; i++) history[noise() % VOCAB] += i % 2 ? 1 : HISTORY_PROMPT;
    for (int i = 0; i < WAYS; i++) {
        slots[i] = (struct slot_choice){.seed = 77 + i, .temperature = 0.8f, .log_min_p = -__builtin_inff(), .top_p = 1};
        slots[i].repetition = 1, row_slots[i] = sample_rows[i] = i, positions[i] = 10 * i, token_ids[i] = (int32_t)(noise() % VOCAB);
    }
    slots[0].temperature = 0;
    slots[2].filtered = 1, slots[2].top_k = 20;
    slots[3].filtered = 1, slots[3].top_p = 0.7f;
    slots[4].filtered = 1, slots[4].log_min_p = -1.5f;
    slots[5].bias_ids = bias_ids, slots[5].bias = bias, slots[5].num_bias = 3;
    row_masks[6] = mask, slots[6].temperature = 0;
    slots[LAST].history = history, slots[LAST].repetition = 1.5f, slots[LAST].frequency = 0.3f, slots[LAST].presence = -0.2f;
    row_slots[8] = LAST; /* the row after a draft */
    case_name = "head";
    float *x = numbers(WAYS * K);
    x[9 * K + 5] = __builtin_nanf("");
    int32_t rows = WAYS;
    uint8_t *codes = room(VOCAB * K / 2);
    float *scales = numbers(VOCAB * GROUPS), *mins = numbers(VOCAB * GROUPS);
    for (int64_t i = 0; i < VOCAB * K / 2; i++) codes[i] = (uint8_t)noise();
    for (int64_t i = 0; i < VOCAB * GROUPS; i++) scales[i] /= 400, mins[i] /= 100;
    struct pack_args pack = {codes, scales, mins, room(VOCAB * K * 4), VOCAB, K, GROUP, 4, NUMBER_F32, 0};
    run("pack", &pack);
    struct quant_args quantize = {.rows = &rows, .x = x, .x_stride = K, .columns = K, .out = rows_room(rows, 0)};
    run("quantize", &quantize);
    struct gemm_args gemm = {.rows = &rows, .x = quantize.out, .weights = pack.out, .y = room(WAYS * VOCAB * 4), .y_stride = VOCAB};
    gemm.n = VOCAB, gemm.columns = K, gemm.groups = GROUPS, gemm.bits = 4, gemm.halves = 1, gemm.number = NUMBER_F32, gemm.has_min = 1;
    struct head_args head = {&rows, gemm, slots, row_slots, row_masks, token_ids, positions, sample_rows};
    head.segments = room(WAYS * 3 * (int64_t)sizeof(struct segment_best)), head.peak = peaks, head.index = index;
    inferd_reserve(4 * 32 * 512);
    run("head", &head);
    run("choose", &head);
    print(peaks, WAYS);
    case_name = "chosen";
    for (int i = 0; i < WAYS; i++) found[i] = (float)index[i];
    print(found, WAYS);
}

int main(int argc, char **argv) {
    if (argc < 2) return puts(inferd_tier()) < 0;
    if (inferd_use_tier(argv[1])) return 3;
    multiplications();
    attention();
    choices();
    return 0;
}
