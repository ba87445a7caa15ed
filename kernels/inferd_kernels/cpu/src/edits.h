/* What a request changes of a row's logits before its token is chosen, in the order of daemon/inferd/engine/sampler:
 * tokens that it may not have, biases, penalties. Single IEEE operations, so the same bits.
 */

static const v16u lane_ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct row_edits {
    const struct slot_choice *slot;
    const uint32_t *mask;  /* bit i of word w: token 32 w + i may come; null: all */
    const int32_t *drafts; /* draft tokens that stand before the row */
    int32_t num_drafts;
};

INLINE struct row_edits edits_of(const struct head_args *a, int64_t row) {
    struct row_edits e = {a->slots + a->row_slots[row], a->row_masks[row], NULL, 0};
    if (e.slot->history) { /* the rows of a sequence follow one another, each after the draft that it reads */
        while (e.num_drafts < row && a->row_slots[row - 1 - e.num_drafts] == a->row_slots[row]) e.num_drafts++;
        e.drafts = a->token_ids + a->sample_rows[row] - e.num_drafts + 1;
    }
    return e;
}

INLINE int is_edited(const struct row_edits *e) { return e->mask || e->slot->num_bias || e->slot->history; }

INLINE void v16f_store(float *p, v16f x, int64_t left) { memcpy(p, &x, left < 16 ? (size_t)left * 4 : 64); }

static void forbid(const uint32_t *mask, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
        uint32_t bits = mask[i / 32] >> (i % 32) & 0xffff;
        if (bits == 0xffff) continue;
        v16i may = (((v16u){0} + bits) >> lane_ids & 1) != 0;
        v16f_store(x + i, v16f_pick(may, v16f_tail(x + i, n - i), v16f_set(MINUS_INFINITY)), n - i);
    }
}

/* Repetition (over prompt and output), frequency, presence (over output), for tokens from `first` on. */
static void penalise(const struct row_edits *e, float *x, int64_t n, int64_t first) {
    const struct slot_choice *slot = e->slot;
    for (int64_t i = 0; i < n; i += 16) {
        v16i seen = (v16i)v16f_tail((const float *)slot->history + first + i, n - i);
        for (int32_t d = 0; d < e->num_drafts; d++) {
            int64_t lane = e->drafts[d] - first - i;
            if (lane >= 0 && lane < 16) seen[lane]++;
        }
        int32_t any = 0;
        for (int lane = 0; lane < 16; lane++) any |= seen[lane];
        if (!any) continue;
        v16i counts = seen & (HISTORY_PROMPT - 1);
        v16f v = v16f_tail(x + i, n - i), one = v16f_set(1);
        v = v16f_pick(seen != 0, v16f_pick(v > 0, v / slot->repetition, v * slot->repetition), v);
        v = v - slot->frequency * __builtin_convertvector(counts, v16f);
        v = v - slot->presence * v16f_pick(counts != 0, one, one - one);
        v16f_store(x + i, v, n - i);
    }
}

/* Change the logits of n tokens from `first` (a whole word of the mask) on. */
static void edit_logits(const struct row_edits *e, float *x, int64_t n, int64_t first) {
    if (e->mask) forbid(e->mask + first / 32, x, n);
    for (int32_t i = 0; i < e->slot->num_bias; i++) {
        int64_t at = e->slot->bias_ids[i] - first;
        if (at >= 0 && at < n) x[at] += e->slot->bias[i];
    }
    if (e->slot->history) penalise(e, x, n, first);
}
