/* simd.h on 64-bit Arm: sixteen lanes are four vectors. Tiers: plain NEON, and NEON with dot products of bytes. */
#include <arm_neon.h>

typedef struct { float32x4_t q[4]; } vf;
typedef struct { int32x4_t q[4]; } vi;
typedef struct { uint8x16_t q[4]; } vb;
#define QUARTERS for (int i = 0; i < 4; i++)
INLINE vf vf_set(float x) {
    vf r;
    QUARTERS r.q[i] = vdupq_n_f32(x);
    return r;
}
INLINE vf vf_zero(void) { return vf_set(0); }
INLINE vf vf_load(const float *p) {
    vf r;
    QUARTERS r.q[i] = vld1q_f32(p + 4 * i);
    return r;
}
INLINE void vf_store(float *p, vf x) { QUARTERS vst1q_f32(p + 4 * i, x.q[i]); }
#define VF_EACH(name, expression)     \
    INLINE vf name(vf a, vf b) {      \
        QUARTERS a.q[i] = expression; \
        return a;                     \
    }
VF_EACH(vf_add, vaddq_f32(a.q[i], b.q[i]))
VF_EACH(vf_sub, vsubq_f32(a.q[i], b.q[i]))
VF_EACH(vf_mul, vmulq_f32(a.q[i], b.q[i]))
VF_EACH(vf_div, vdivq_f32(a.q[i], b.q[i]))
/* The second operand of a comparison with NaN is kept, as on x86. */
VF_EACH(vf_max, vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]))
VF_EACH(vf_min, vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]))
INLINE vf vf_fma(vf a, vf b, vf c) {
    QUARTERS c.q[i] = vfmaq_f32(c.q[i], a.q[i], b.q[i]);
    return c;
}
INLINE vf vf_round(vf a) {
    QUARTERS a.q[i] = vrndnq_f32(a.q[i]);
    return a;
}
INLINE vf vf_scale2(vf a, vf n) {
    QUARTERS {
        int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n.q[i]), vdupq_n_s32(127));
        a.q[i] = vmulq_f32(a.q[i], vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
    }
    return a;
}
INLINE vf floats_of_halves_(uint16x8_t low, uint16x8_t high) {
    float16x8_t a = vreinterpretq_f16_u16(low), b = vreinterpretq_f16_u16(high);
    return (vf){{vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)), vcvt_high_f32_f16(b)}};
}
INLINE vf vf_f16(const void *p) { return floats_of_halves_(vld1q_u16(p), vld1q_u16((const uint16_t *)p + 8)); }
INLINE vf vf_bf16(const void *p) {
    vf r;
    QUARTERS r.q[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)p + 4 * i), 16));
    return r;
}
INLINE vf vf_even_bf16(const void *p) {
    vf r;
    QUARTERS r.q[i] = vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32((const uint32_t *)p + 4 * i), 16));
    return r;
}
INLINE vf vf_odd_bf16(const void *p) {
    const uint32x4_t upper = vdupq_n_u32(0xffff0000u);
    vf r;
    QUARTERS r.q[i] = vreinterpretq_f32_u32(vandq_u32(vld1q_u32((const uint32_t *)p + 4 * i), upper));
    return r;
}
INLINE vf vf_i8(const void *p) {
    int8x16_t bytes = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    vi wide = {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}};
    vf r;
    QUARTERS r.q[i] = vcvtq_f32_s32(wide.q[i]);
    return r;
}
INLINE vf vf_f8(const void *p) { /* as f32_of_f8 does: through float16, sign and code moved to their places */
    int8x16_t codes = vld1q_s8(p);
    const uint16x8_t kept = vdupq_n_u16(0xbfff);
    uint16x8_t low = vandq_u16(vreinterpretq_u16_s16(vshll_n_s8(vget_low_s8(codes), 7)), kept);
    uint16x8_t high = vandq_u16(vreinterpretq_u16_s16(vshll_high_n_s8(codes, 7)), kept);
    return vf_mul(floats_of_halves_(low, high), vf_set(256.0f));
}
INLINE float vf_sum(vf a) {
    float32x4_t four = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
    return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}
INLINE float vf_top(vf a) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.q[0], a.q[1]), vmaxq_f32(a.q[2], a.q[3])));
}
INLINE vi vi_set(int32_t x) {
    vi r;
    QUARTERS r.q[i] = vdupq_n_s32(x);
    return r;
}
INLINE vi vi_add(vi a, vi b) {
    QUARTERS a.q[i] = vaddq_s32(a.q[i], b.q[i]);
    return a;
}
INLINE vf vi_float(vi a) {
    vf r;
    QUARTERS r.q[i] = vcvtq_f32_s32(a.q[i]);
    return r;
}
INLINE vi vi_bits(const void *p, int shift, int mask) { /* of each lane of p: (lane >> shift) & mask */
    vi r;
    QUARTERS {
        uint32x4_t lanes = vshlq_u32(vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * i)), vdupq_n_s32(-shift));
        r.q[i] = vreinterpretq_s32_u32(vandq_u32(lanes, vdupq_n_u32((uint32_t)mask)));
    }
    return r;
}
INLINE vb vb_load(const void *p) {
    vb r;
    QUARTERS r.q[i] = vld1q_u8((const uint8_t *)p + 16 * i);
    return r;
}
INLINE vb vb_low(vb a) {
    QUARTERS a.q[i] = vandq_u8(a.q[i], vdupq_n_u8(15));
    return a;
}
INLINE vb vb_high(vb a) {
    QUARTERS a.q[i] = vshrq_n_u8(a.q[i], 4);
    return a;
}
typedef int8x16_t vq; /* four bytes, repeated */
INLINE vq vq_load(const int8_t *p) {
    int32_t x;
    memcpy(&x, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(x));
}
/* Signed bytes times those of activations, none of which is -128: two products fit 16 bits. */
INLINE int32x4_t dot_signed_(int32x4_t c, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(c, w, x);
#else
    int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
    return vpadalq_s16(c, vpaddq_s16(low, high));
#endif
}
INLINE vi dot_nibbles(vi c, vb w, vq x) {
    QUARTERS c.q[i] = dot_signed_(c.q[i], vreinterpretq_s8_u8(w.q[i]), x);
    return c;
}
INLINE vi dot_bytes(vi c, vb w, vq x) { /* w = (w - 128) + 128 */
    const int32x4_t sum = vpaddlq_s16(vpaddlq_s8(x)), shift = vshlq_n_s32(sum, 7);
    QUARTERS {
        int8x16_t less = vreinterpretq_s8_u8(veorq_u8(w.q[i], vdupq_n_u8(128)));
        c.q[i] = dot_signed_(vaddq_s32(c.q[i], shift), less, x);
    }
    return c;
}
INLINE int32_t vf_top_bits(vf a, vf b) {
    uint32x4_t top = vdupq_n_u32(0);
    QUARTERS top = vmaxq_u32(top, vreinterpretq_u32_f32(vmaxq_f32(vabsq_f32(a.q[i]), vabsq_f32(b.q[i]))));
    return (int32_t)vmaxvq_u32(top);
}
INLINE void vf_to_bytes(vf a, int8_t *out) { /* rounds to nearest even */
    int16x8_t half[2];
    for (int i = 0; i < 2; i++)
        half[i] = vmovn_high_s32(vmovn_s32(vcvtnq_s32_f32(a.q[2 * i])), vcvtnq_s32_f32(a.q[2 * i + 1]));
    vst1q_s8(out, vmovn_high_s16(vmovn_s16(half[0]), half[1]));
}
