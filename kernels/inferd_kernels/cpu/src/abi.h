/* The C interface of the CPU kernels: one argument struct for each operator, passed by pointer.
 *
 * An operator is a row of two functions. `chunks` says into how many independent pieces its work falls
 * for the rows of this step (0: nothing to do); `run` does one piece. Pieces never share an output, and
 * no result depends on how many there are. Row counts are read through a pointer, so that a recorded
 * program serves every step of its bucket.
 */
#ifndef INFERD_ABI_H
#define INFERD_ABI_H
#include <stddef.h>
#include <stdint.h>

#define GROUP 32 /* columns that share an activation scale */

struct worker;

struct op {
    int32_t (*chunks)(const void *args, int32_t threads);
    void (*run)(const void *args, int32_t chunk, int32_t chunks, struct worker *worker);
};

/* What an operator reads from end to end, its threads side by side: they may read it ahead. */
struct reads {
    const void *first;
    int64_t units, unit_bytes; /* pieces fall into whole units */
};

struct step {
    const struct op *op;
    const void *args;
    struct reads reads;
};

/* One group of one quantized row: x = scale * code. `sum` is that of the group with its outlier; `half` has the sums
 * of codes 0..15 and 16..31. */
struct row_group {
    int8_t codes[GROUP];
    float scale, sum;
    int16_t half[2];
};

/* A value that is kept as it is: its code is 0. */
struct outlier {
    float value;
    uint32_t column;
};

/* Quantized rows: groups [rows, groups]; outliers [rows, groups], of which each row has so many as `counts` [rows] says, by
 * column. Or, in place of all three, rows rounded to bf16: halves [rows, groups * 32], zeros past the columns. */
struct int8_rows {
    struct row_group *groups;
    struct outlier *outliers;
    int32_t *counts;
    uint16_t *halves;
};

enum source { SOURCE_PLAIN, SOURCE_NORM, SOURCE_SILU };

/* Rows that are normed or gated and then quantized (or kept as floats, where `plain` is set).
 * SOURCE_PLAIN: x.  SOURCE_NORM: x / rms(x) * weight.  SOURCE_SILU: silu(x[:columns]) * x[columns:]. */
struct quant_args {
    const int32_t *rows;
    const float *x;
    int64_t x_stride;
    const float *weight;
    float *plain;
    struct int8_rows out;
    int32_t columns;
    int32_t source;
    float eps;
    float outlier_above; /* the largest value of a group is kept where its squared scale is above so many times the row's mean */
    int32_t deferred; /* rows up to here are left to the multiplications that read them */
};

enum number { NUMBER_F16, NUMBER_BF16, NUMBER_F32, NUMBER_I8, NUMBER_F8 }; /* I8, F8 (e4m3): in the KV cache only, with scales */
#define ONE_BYTE(number) ((number) >= NUMBER_I8)

/* y = rows * weights^T (+ bias) (+ residual), from packed weights (layout in gemm.h). */
struct gemm_args {
    const int32_t *rows;
    struct int8_rows x;
    const float *plain; /* dense weights read plain rows, or, of bf16, rows in `x.halves` */
    int64_t plain_stride;
    const struct quant_args *source; /* what made x; small steps let it be made here */
    const uint8_t *weights;
    const float *bias;
    const float *residual;
    float *y;
    int64_t y_stride, residual_stride;
    int32_t n, columns, groups;
    int32_t bits;   /* 4, 8; 16 and 32: dense */
    int32_t halves; /* scales a group: 1, or 2 for scales of 16 columns */
    int32_t zero;   /* unsigned code that stands for 0 */
    int32_t number; /* enum number of scales and mins (of the weights, if dense) */
    int32_t has_min;
};

struct embed_args {
    const int32_t *rows;
    const int32_t *ids;
    struct gemm_args weight; /* only the description of the weight is read */
    float *y;
    int64_t y_stride;
    float scale;
};

/* Rows of x picked by index; y may be x where the index ascends. */
struct gather_args {
    const int32_t *rows;
    const int32_t *index;
    const float *x;
    int64_t x_stride;
    float *y;
    int64_t y_stride;
    int32_t columns;
};

/* Head norm, rotary embedding, and the scatter of keys and values into the cache. */
struct write_args {
    const int32_t *rows;
    const float *q, *k, *v;
    int64_t q_stride, k_stride, v_stride; /* floats from row to row */
    const int64_t *positions, *slots;
    const float *cos, *sin; /* [context, rope] or null */
    const float *q_norm, *k_norm;
    float *q_out; /* [rows, heads, width] */
    void *k_cache, *v_cache;
    int32_t heads, kv_heads, width, rope, block_size, number;
    float eps;
    float *k_scales, *v_scales; /* of one-byte numbers: [blocks][kv_heads][block_size] */
    int64_t block_stride, scale_stride; /* numbers and scales from block to block of a plane */
};

/* Paged attention. A block of k_cache is [kv_heads][width][block_size] (bf16: [width / 2][block_size][2]), of v_cache
 * [kv_heads][block_size][width]. */
struct attend_args {
    const int32_t *sequences;
    const float *q;
    const void *k_cache, *v_cache;
    const int32_t *cu_seqlens, *context_lens, *block_tables;
    int64_t table_stride;
    float *out; /* [rows, heads, width] */
    float *partial; /* spans of short queries: [tasks][SHORT_ROWS][width to whole 32s + 16] */
    int32_t *pending; /* [sequences * kv_heads], zero between steps */
    int64_t partial_tasks;
    int32_t heads, kv_heads, width, block_size, number, window;
    float scale;
    int32_t *task_base; /* [sequences * 2 + 2], filled by `plan` */
    const float *k_scales, *v_scales;
    int64_t block_stride, scale_stride;
};

/* What the sequence of an executor slot asks of the choice of its tokens. */
struct slot_choice {
    int64_t seed;
    float temperature; /* 0: greedy */
    float log_min_p;   /* -infinity: off */
    float top_p;       /* 1: off */
    int32_t top_k;     /* 0: off */
    int32_t filtered;  /* one of the three is on */
    int32_t keep;      /* the host reads the logits */
    const int32_t *history; /* [vocab] times that the output has a token, + HISTORY_PROMPT where the prompt has it; or null */
    const int32_t *bias_ids;
    const float *bias;
    int32_t num_bias;
    float repetition, frequency, presence; /* read where there is a history */
};

#define HISTORY_PROMPT (1 << 30)

struct segment_best {
    float raw;  /* largest logit, NaN where there is one */
    float peak; /* the same after the request's edits */
    float score;
    int32_t index; /* of the best score */
};

/* Logits of the rows that sample, and a token for each: -1 where no logit is finite or one is NaN, -2 where the
 * request's own edits leave none. */
struct head_args {
    const int32_t *rows;
    struct gemm_args gemm; /* y: the logits of rows that keep them, unedited */
    const struct slot_choice *slots;
    const int32_t *row_slots;         /* [rows] executor slot */
    const uint32_t *const *row_masks; /* [rows] bits of the tokens that may be chosen, or null: all */
    const int32_t *token_ids;         /* of all tokens of the step */
    const int64_t *positions;   /* of all tokens of the step */
    const int32_t *sample_rows; /* [rows] which of them */
    struct segment_best *segments; /* [rows, segments] */
    float *peak;
    int64_t *index;
};

/* Between two steps of plain decoding, one row a sequence: keep the tokens that were chosen, and make them the inputs of the
 * next step. */
struct advance_args {
    const int32_t *rows;
    const int32_t *steps; /* of this call; nothing is done where there is one */
    int32_t *step;        /* of these, how many are done */
    const int64_t *chosen;
    int64_t *kept; /* [steps][most_rows] */
    int32_t *token_ids, *context_lens;
    int64_t *positions, *slots;  /* slots: [groups][most_tokens] */
    const int32_t *block_tables; /* [groups][most_sequences][most_blocks] */
    int64_t most_rows, most_tokens, most_sequences, most_blocks;
    int32_t groups, block_size;
};

/* Largest value and its lowest index of each row; a row that holds NaN gives NaN. */
struct argmax_args {
    const int32_t *rows;
    const float *x;
    int64_t x_stride;
    float *peak;
    int64_t *index;
    int32_t columns;
};

enum probe { PROBE_READ, PROBE_CODES, PROBE_PAIRS, PROBE_FLOATS };

/* Measure the machine: every thread does `turns` of it. CODES, PAIRS, FLOATS: 12 products a turn, of 64, 32, 16 numbers. */
struct probe_args {
    const void *data;
    int64_t bytes, turns;
    float *out; /* one for each thread */
    int32_t kind;
};

/* Repack planes of a PackedWeight into the layout of gemm.h. */
struct pack_args {
    const uint8_t *codes;
    const void *scales, *mins;
    uint8_t *out;
    int32_t n, columns, group, bits, number, zero;
};
#endif
