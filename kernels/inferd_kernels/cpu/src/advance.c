/* From one step of plain decoding to the next without the host. */
#include "kernels.h"
#include <string.h>

static int32_t advance_chunks(const void *args, int32_t threads) {
    (void)threads;
    return *((const struct advance_args *)args)->steps > 1 ? 1 : 0;
}

/* A token that could not be chosen is passed on as 0: the host drops what comes after it. */
static void advance_run(const void *args, int32_t chunk, int32_t chunks, struct worker *worker) {
    const struct advance_args *a = args;
    (void)chunk, (void)chunks, (void)worker;
    const int64_t rows = *a->rows, size = a->block_size;
    memcpy(a->kept + *a->step * a->most_rows, a->chosen, (size_t)rows * sizeof *a->kept);
    if (++*a->step == *a->steps) return;
    for (int64_t b = 0; b < rows; b++) {
        const int64_t position = ++a->positions[b];
        a->token_ids[b] = a->chosen[b] < 0 ? 0 : (int32_t)a->chosen[b];
        a->context_lens[b] = (int32_t)position + 1;
        for (int64_t g = 0; g < a->groups; g++) {
            const int32_t *table = a->block_tables + (g * a->most_sequences + b) * a->most_blocks;
            a->slots[g * a->most_tokens + b] = table[position / size] * size + position % size;
        }
    }
}

const struct op advance_op = {advance_chunks, advance_run};
