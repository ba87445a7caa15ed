/* Which tier this machine runs, and the table of its operators by name. */
#include "kernels.h"
#include <string.h>
#include <sys/mman.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#ifndef SOURCE_HASH
#define SOURCE_HASH ""
#endif

extern const struct op pack_op, advance_op;

static const struct kernels *chosen;

static const struct kernels *tier_at(int32_t index) {
    static const struct kernels *const tiers[] = {
#if defined(__x86_64__)
        &kernels_avx512bf16, &kernels_avx512vnni, &kernels_avx2,
#elif defined(__aarch64__)
        &kernels_neondot, &kernels_neon,
#endif
        &kernels_scalar,
    };
    return index >= 0 && index < (int32_t)(sizeof tiers / sizeof *tiers) ? tiers[index] : NULL;
}

static int can_run(const struct kernels *tier) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    int wide = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
    if (tier == &kernels_avx512bf16) return wide && __builtin_cpu_supports("avx512bf16");
    if (tier == &kernels_avx512vnni) return wide;
    if (tier == &kernels_avx2) return avx2;
#elif defined(__aarch64__)
    if (tier == &kernels_neondot) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    if (tier == &kernels_neon) return 1;
#endif
    return tier == &kernels_scalar;
}

/* Name of the tier number `index`, best first; null past the last. `usable` tells whether it runs here. */
const char *inferd_tier_name(int32_t index, int32_t *usable) {
    const struct kernels *tier = tier_at(index);
    if (!tier) return NULL;
    *usable = can_run(tier);
    return tier->name;
}

/* Use this tier from now on (operators found before keep theirs). Returns 0, or -1 when it cannot run. */
int32_t inferd_use_tier(const char *name) {
    const struct kernels *tier;
    for (int32_t i = 0; (tier = tier_at(i)); i++)
        if (!strcmp(tier->name, name) && can_run(tier)) {
            chosen = tier;
            return 0;
        }
    return -1;
}

static const struct kernels *current(void) {
    for (int32_t i = 0; !chosen; i++)
        if (can_run(tier_at(i))) chosen = tier_at(i);
    return chosen;
}

const char *inferd_tier(void) { return current()->name; }

const struct op *inferd_op(const char *name) {
    const struct kernels *k = current();
    const struct {
        const char *name;
        const struct op *op;
    } table[] = {{"quantize", &k->quantize}, {"gemm", &k->gemm},     {"embed", &k->embed},   {"gather", &k->gather},
                 {"write", &k->write},       {"plan", &k->plan},     {"attend", &k->attend}, {"argmax", &k->argmax},
                 {"head", &k->head},         {"choose", &k->choose}, {"pack", &pack_op},
                 {"probe", &k->probe},       {"advance", &advance_op}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name)) return table[i].op;
    return NULL;
}

/* Hash of the sources this library was made from. */
const char *inferd_source_hash(void) { return SOURCE_HASH; }

/* Ask for large pages under a big weight; refusal costs nothing. */
void inferd_advise(void *start, int64_t bytes) {
    uintptr_t page = 4096, first = ((uintptr_t)start + page - 1) / page * page, end = ((uintptr_t)start + bytes) / page * page;
    if (end > first) madvise((void *)first, end - first, MADV_HUGEPAGE);
}
