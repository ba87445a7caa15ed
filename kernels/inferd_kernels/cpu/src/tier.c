/* The operators of one tier: compiled once for each, with -DTIER=name and its instruction set. */
#include "kernels.h"
#include "simd.h"
#include "rows.h"
#include "gemm.h"
#include "embed.h"
#include "kv_write.h"
#include "attention.h"
#include "noise.h"
#include "edits.h"
#include "head.h"
#include "probe.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

const struct kernels JOIN(kernels_, TIER) = {
    .name = TEXT(TIER),
    .quantize = {quantize_chunks, quantize_run},
    .gemm = {gemm_chunks, gemm_run},
    .embed = {embed_chunks, embed_run},
    .gather = {gather_chunks, gather_run},
    .write = {write_chunks, write_run},
    .plan = {plan_chunks, plan_run},
    .attend = {attend_chunks, attend_run},
    .head = {head_chunks, head_run},
    .choose = {choose_chunks, choose_run},
    .argmax = {argmax_chunks, argmax_run},
    .probe = {probe_chunks, probe_run},
};
