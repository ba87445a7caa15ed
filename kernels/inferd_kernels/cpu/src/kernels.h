/* The operators of one instruction-set tier. */
#ifndef INFERD_KERNELS_H
#define INFERD_KERNELS_H
#include "abi.h"

#define SCRATCH_BYTES (1 << 20) /* of each thread */
#define MADE_BYTES (1 << 18)    /* of it, at the end: a row of floats before it is quantized */

struct kernels {
    const char *name;
    struct op quantize, gemm, embed, gather, write, plan, attend, head, choose, argmax, probe;
};

struct worker {
    _Alignas(64) uint8_t *scratch; /* no two threads write to one line */
    uint8_t *spare; /* what `inferd_reserve` asked for; operators that call others use it */
    size_t spare_bytes;
    const void *made; /* producer whose rows lie in `made_rows` */
    uint64_t made_in; /* the operator for which they were made */
    struct int8_rows made_rows;
    uint64_t serial; /* of the operator that runs */
};

/* Turns of processes (turns.c). */
int64_t inferd_now_ns(void);
void inferd_take_turn(void), inferd_pass_turn(void), inferd_end_turn(void), inferd_forget_turns(void);

extern const struct kernels kernels_scalar;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512vnni, kernels_avx512bf16;
#elif defined(__aarch64__)
extern const struct kernels kernels_neon, kernels_neondot;
#endif

#endif
