/* Sixteen lanes, whatever the machine: vf = 16 floats, vi = 16 int32, vb = 64 bytes.
 *
 * Every tier compiles the same kernels against these. The byte dot product is that of VNNI: each int32
 * lane gains the sum of four unsigned bytes times four signed ones.
 */
#ifndef INFERD_SIMD_H
#define INFERD_SIMD_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define PREFETCH_SECOND(p) __builtin_prefetch(p, 0, 2) /* into the second-level cache */

INLINE float f32_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
INLINE uint32_t bits_of_f32(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}
INLINE uint16_t bf16_of_f32(float f) {
    uint32_t bits = bits_of_f32(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 64); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
INLINE float f32_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31) return f32_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent) return f32_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float tiny = (float)mantissa * 5.9604644775390625e-8f; /* 2^-24 */
    return sign ? -tiny : tiny;
}
/* e4m3, without a code of its own for NaN: caches tell what is not finite by its scale. The bits of a code, shifted, are
 * those of a float16 2^8 times as small. */
INLINE float f32_of_f8(uint8_t b) { return 256.0f * f32_of_f16((uint16_t)((b & 0x80) << 8 | (b & 0x7f) << 7)); }
INLINE uint8_t f8_of_f32(float f) { /* rounds to nearest even; what is larger becomes 448 */
    uint32_t bits = bits_of_f32(f), rest = bits & 0x7fffffff;
    uint32_t code = ((rest + 0x7ffff + (rest >> 20 & 1)) >> 20) - (120 << 3);
    uint32_t tiny = bits_of_f32(f32_of_bits(rest) + 16384.0f) - 0x46800000; /* below 2^-6: the adder rounds to 2^-9 */
    if (rest < 0x3c800000) code = tiny;
    if (rest > 0x43e00000) code = 0x7e;
    return (uint8_t)(bits >> 24 & 0x80 | code);
}
INLINE uint16_t f16_of_f32(float f) {
    uint32_t bits = bits_of_f32(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x47800000) return (uint16_t)(sign | 0x7c00); /* 65536 and more */
    if (rest < 0x38800000) {                                  /* subnormal: let the adder round */
        float shifted = f32_of_bits(rest) + 0.5f;
        return (uint16_t)(sign | (bits_of_f32(shifted) - 0x3f000000));
    }
    return (uint16_t)(sign | ((rest + 0xfff + (rest >> 13 & 1) - 0x38000000) >> 13));
}

#if defined(__AVX512VNNI__)

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vb;
INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
INLINE vf vf_load_some(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
INLINE void vf_store_some(float *p, vf x, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf vf_round(vf a) { return _mm512_roundscale_ps(a, 8); }
INLINE vf vf_scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); } /* a * 2^n, n whole */
INLINE vf vf_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
INLINE vf vf_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
INLINE vf vf_even_bf16(const void *p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
INLINE vf vf_odd_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int32_t)0xffff0000u)));
}
INLINE vf vf_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
INLINE vf vf_f8(const void *p) {
    __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), 7);
    __m512 small = _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((int16_t)0xbfff)));
    return _mm512_mul_ps(small, _mm512_set1_ps(256.0f));
}
INLINE float vf_sum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE float vf_top(vf a) { return _mm512_reduce_max_ps(a); }
INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vf vi_float(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vi_bits(const void *p, int shift, int mask) { /* of each lane of p: (lane >> shift) & mask */
    return _mm512_and_si512(_mm512_srl_epi32(_mm512_loadu_si512(p), _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(mask));
}
INLINE vb vb_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE vb vb_low(vb a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
INLINE vb vb_high(vb a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
typedef __m512i vq; /* four bytes, repeated */
INLINE vq vq_load(const int8_t *p) {
    int32_t x;
    memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
}
INLINE vi dot_nibbles(vi c, vb w, vq x) { return _mm512_dpbusd_epi32(c, w, x); }
INLINE vi dot_bytes(vi c, vb w, vq x) { return _mm512_dpbusd_epi32(c, w, x); }
INLINE int32_t vf_top_bits(vf a, vf b) { /* largest bits without sign: NaN and infinity come out on top */
    __m512i mask = _mm512_set1_epi32(0x7fffffff);
    return _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), mask),
                                                    _mm512_and_si512(_mm512_castps_si512(b), mask)));
}
INLINE void vf_to_bytes(vf a, int8_t *out) { /* rounds to nearest even */
    _mm_storeu_si128((void *)out, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

#elif defined(__AVX2__)

typedef struct { __m256 a, b; } vf;
typedef struct { __m256i a, b; } vi;
typedef struct { __m256i a, b; } vb;
#define VF_BOTH(op, ...) ((vf){op(__VA_ARGS__), op(__VA_ARGS__)})
INLINE vf vf_zero(void) { return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE vf vf_set(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void vf_store(float *p, vf x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
#define VF_PAIR(name, op) \
    INLINE vf name(vf x, vf y) { return (vf){op(x.a, y.a), op(x.b, y.b)}; }
VF_PAIR(vf_add, _mm256_add_ps)
VF_PAIR(vf_sub, _mm256_sub_ps)
VF_PAIR(vf_mul, _mm256_mul_ps)
VF_PAIR(vf_div, _mm256_div_ps)
VF_PAIR(vf_max, _mm256_max_ps)
VF_PAIR(vf_min, _mm256_min_ps)
INLINE vf vf_fma(vf x, vf y, vf z) { return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
INLINE vf vf_round(vf x) { return (vf){_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
INLINE __m256 power2_(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
INLINE vf vf_scale2(vf x, vf n) { return (vf){_mm256_mul_ps(x.a, power2_(n.a)), _mm256_mul_ps(x.b, power2_(n.b))}; }
INLINE vf vf_f16(const void *p) {
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}
INLINE __m256 bf16_(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
INLINE vf vf_bf16(const void *p) {
    return (vf){bf16_(_mm_loadu_si128(p)), bf16_(_mm_loadu_si128((const __m128i *)p + 1))};
}
INLINE __m256 even_(const void *p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(p), 16)); }
INLINE __m256 odd_(const void *p) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(p), _mm256_set1_epi32((int32_t)0xffff0000u)));
}
INLINE vf vf_even_bf16(const void *p) { return (vf){even_(p), even_((const __m256i *)p + 1)}; }
INLINE vf vf_odd_bf16(const void *p) { return (vf){odd_(p), odd_((const __m256i *)p + 1)}; }
INLINE __m256 i8_(const char *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))); }
INLINE vf vf_i8(const void *p) { return (vf){i8_(p), i8_((const char *)p + 8)}; }
INLINE __m256 f8_(const char *p) {
    __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const void *)p)), 7);
    __m256 small = _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16((int16_t)0xbfff)));
    return _mm256_mul_ps(small, _mm256_set1_ps(256.0f));
}
INLINE vf vf_f8(const void *p) { return (vf){f8_(p), f8_((const char *)p + 8)}; }
INLINE float vf_sum(vf x) {
    float t[16], s = 0;
    vf_store(t, x);
    for (int i = 0; i < 8; i++) t[i] += t[i + 8];
    for (int i = 0; i < 4; i++) t[i] += t[i + 4];
    s = (t[0] + t[2]) + (t[1] + t[3]);
    return s;
}
INLINE float vf_top(vf x) {
    float t[16];
    vf_store(t, vf_max(x, (vf){x.b, x.a}));
    float m = t[0];
    for (int i = 1; i < 8; i++) m = t[i] > m ? t[i] : m;
    return m;
}
INLINE vi vi_set(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INLINE vi vi_add(vi x, vi y) { return (vi){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
INLINE vf vi_float(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INLINE __m256i bits_(const void *p, int shift, int mask) {
    return _mm256_and_si256(_mm256_srl_epi32(_mm256_loadu_si256(p), _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(mask));
}
INLINE vi vi_bits(const void *p, int shift, int mask) {
    return (vi){bits_(p, shift, mask), bits_((const __m256i *)p + 1, shift, mask)};
}
INLINE vb vb_load(const void *p) {
    return (vb){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
INLINE vb vb_low(vb x) {
    __m256i m = _mm256_set1_epi8(15);
    return (vb){_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
INLINE vb vb_high(vb x) { return vb_low((vb){_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
INLINE __m256i nibbles_(__m256i c, __m256i w, __m256i x) { /* 15 * 127 * 2 fits 16 bits */
    return _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
INLINE __m256i bytes_(__m256i c, __m256i w, __m256i even, __m256i odd) {
    __m256i low = _mm256_and_si256(w, _mm256_set1_epi16(255)), high = _mm256_srli_epi16(w, 8);
    return _mm256_add_epi32(c, _mm256_add_epi32(_mm256_madd_epi16(low, even), _mm256_madd_epi16(high, odd)));
}
typedef __m256i vq;
INLINE vq vq_load(const int8_t *p) {
    int32_t x;
    memcpy(&x, p, 4);
    return _mm256_set1_epi32(x);
}
INLINE vi dot_nibbles(vi c, vb w, vq v) { return (vi){nibbles_(c.a, w.a, v), nibbles_(c.b, w.b, v)}; }
INLINE vi dot_bytes(vi c, vb w, vq v) {
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), odd = _mm256_srai_epi16(v, 8);
    return (vi){bytes_(c.a, w.a, even, odd), bytes_(c.b, w.b, even, odd)};
}
INLINE int32_t vf_top_bits(vf x, vf y) {
    int32_t t[32], m = 0;
    memcpy(t, &x, 64);
    memcpy(t + 16, &y, 64);
    for (int i = 0; i < 32; i++) m = (t[i] & 0x7fffffff) > m ? t[i] & 0x7fffffff : m;
    return m;
}
INLINE void vf_to_bytes(vf x, int8_t *out) {
    int32_t t[16];
    _mm256_storeu_si256((void *)t, _mm256_cvtps_epi32(x.a));
    _mm256_storeu_si256((void *)(t + 8), _mm256_cvtps_epi32(x.b));
    for (int i = 0; i < 16; i++) out[i] = (int8_t)t[i];
}

#elif defined(TIER_NEON)

#include "simd_neon.h"

#else /* plain C, which compilers turn into whatever there is */

typedef struct { float v[16]; } vf;
typedef struct { int32_t v[16]; } vi;
typedef struct { uint8_t v[64]; } vb;
#define LANES for (int i = 0; i < 16; i++)
INLINE vf vf_set(float x) {
    vf r;
    LANES r.v[i] = x;
    return r;
}
INLINE vf vf_zero(void) { return vf_set(0); }
INLINE vf vf_load(const float *p) {
    vf r;
    memcpy(r.v, p, 64);
    return r;
}
INLINE void vf_store(float *p, vf x) { memcpy(p, x.v, 64); }
#define VF_EACH(name, expression)  \
    INLINE vf name(vf a, vf b) {   \
        vf r;                      \
        LANES r.v[i] = expression; \
        return r;                  \
    }
VF_EACH(vf_add, a.v[i] + b.v[i])
VF_EACH(vf_sub, a.v[i] - b.v[i])
VF_EACH(vf_mul, a.v[i] * b.v[i])
VF_EACH(vf_div, a.v[i] / b.v[i])
VF_EACH(vf_max, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
VF_EACH(vf_min, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
INLINE vf vf_fma(vf a, vf b, vf c) {
    vf r;
#if defined(__FP_FAST_FMAF)
    LANES r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
#else
    LANES r.v[i] = a.v[i] * b.v[i] + c.v[i];
#endif
    return r;
}
INLINE float round_even_(float x) { /* exact below 2^22, which all callers stay under */
    if (!(x > -4194304.0f && x < 4194304.0f)) return x;
    float magic = x < 0 ? -8388608.0f : 8388608.0f;
    volatile float r = x + magic;
    return r - magic;
}
INLINE vf vf_round(vf a) {
    LANES a.v[i] = round_even_(a.v[i]);
    return a;
}
INLINE vf vf_scale2(vf a, vf n) {
    LANES a.v[i] *= f32_of_bits((uint32_t)((int32_t)n.v[i] + 127) << 23);
    return a;
}
INLINE vf vf_f16(const void *p) {
    vf r;
    LANES {
        uint16_t h;
        memcpy(&h, (const char *)p + 2 * i, 2);
        r.v[i] = f32_of_f16(h);
    }
    return r;
}
INLINE vf vf_bf16(const void *p) {
    vf r;
    LANES {
        uint16_t h;
        memcpy(&h, (const char *)p + 2 * i, 2);
        r.v[i] = f32_of_bits((uint32_t)h << 16);
    }
    return r;
}
INLINE vf vf_every_other_bf16(const void *p, int odd) {
    vf r;
    LANES {
        uint16_t h;
        memcpy(&h, (const char *)p + 4 * i + 2 * odd, 2);
        r.v[i] = f32_of_bits((uint32_t)h << 16);
    }
    return r;
}
INLINE vf vf_even_bf16(const void *p) { return vf_every_other_bf16(p, 0); }
INLINE vf vf_odd_bf16(const void *p) { return vf_every_other_bf16(p, 1); }
INLINE vf vf_i8(const void *p) {
    vf r;
    LANES r.v[i] = (float)((const int8_t *)p)[i];
    return r;
}
INLINE vf vf_f8(const void *p) {
    vf r;
    LANES r.v[i] = f32_of_f8(((const uint8_t *)p)[i]);
    return r;
}
INLINE float vf_sum(vf a) {
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; i++) a.v[i] += a.v[i + step];
    return a.v[0];
}
INLINE float vf_top(vf a) {
    float m = a.v[0];
    LANES m = a.v[i] > m ? a.v[i] : m;
    return m;
}
INLINE vi vi_set(int32_t x) {
    vi r;
    LANES r.v[i] = x;
    return r;
}
INLINE vi vi_add(vi a, vi b) {
    LANES a.v[i] += b.v[i];
    return a;
}
INLINE vf vi_float(vi a) {
    vf r;
    LANES r.v[i] = (float)a.v[i];
    return r;
}
INLINE vi vi_bits(const void *p, int shift, int mask) {
    uint32_t lanes[16];
    vi r;
    memcpy(lanes, p, 64);
    LANES r.v[i] = (int32_t)(lanes[i] >> shift) & mask;
    return r;
}
INLINE vb vb_load(const void *p) {
    vb r;
    memcpy(r.v, p, 64);
    return r;
}
INLINE vb vb_low(vb a) {
    for (int i = 0; i < 64; i++) a.v[i] &= 15;
    return a;
}
INLINE vb vb_high(vb a) {
    for (int i = 0; i < 64; i++) a.v[i] >>= 4;
    return a;
}
typedef struct { int8_t v[4]; } vq;
INLINE vq vq_load(const int8_t *p) {
    vq r;
    memcpy(r.v, p, 4);
    return r;
}
INLINE vi dot_bytes(vi c, vb w, vq x) {
    const int8_t *b = x.v;
    LANES c.v[i] += w.v[4 * i] * b[0] + w.v[4 * i + 1] * b[1] + w.v[4 * i + 2] * b[2] + w.v[4 * i + 3] * b[3];
    return c;
}
INLINE vi dot_nibbles(vi c, vb w, vq x) { return dot_bytes(c, w, x); }
INLINE int32_t vf_top_bits(vf a, vf b) {
    int32_t m = 0;
    LANES {
        int32_t bits = (int32_t)(bits_of_f32(a.v[i]) & 0x7fffffff), other = (int32_t)(bits_of_f32(b.v[i]) & 0x7fffffff);
        if (other > bits) bits = other;
        m = bits > m ? bits : m;
    }
    return m;
}
INLINE void vf_to_bytes(vf a, int8_t *out) { LANES out[i] = (int8_t)round_even_(a.v[i]); }
#endif

#if !defined(__AVX512VNNI__) /* which has masks */
INLINE vf vf_load_some(const float *p, int n) {
    float t[16] = {0};
    memcpy(t, p, (size_t)n * 4);
    return vf_load(t);
}
INLINE void vf_store_some(float *p, vf x, int n) {
    float t[16];
    vf_store(t, x);
    memcpy(p, t, (size_t)n * 4);
}
#endif

/* Pairs of bf16: vp = 16 of them. A lane of a dot product gains both products of its pair. */
#if defined(__AVX512BF16__)
typedef __m512bh vp;
INLINE vp vp_load(const void *p) { return (vp)_mm512_loadu_si512(p); }
INLINE vp vp_repeat(const uint16_t *p) {
    int32_t pair;
    memcpy(&pair, p, 4);
    return (vp)_mm512_set1_epi32(pair);
}
INLINE vf dot_pair(vf sum, vp a, vp b) { return _mm512_dpbf16_ps(sum, a, b); }
INLINE void put_bf16(uint16_t *out, vf low, vf high) { _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(high, low)); }
#else
typedef struct { vf even, odd; } vp;
INLINE vp vp_load(const void *p) { return (vp){vf_even_bf16(p), vf_odd_bf16(p)}; }
INLINE vp vp_repeat(const uint16_t *p) {
    return (vp){vf_set(f32_of_bits((uint32_t)p[0] << 16)), vf_set(f32_of_bits((uint32_t)p[1] << 16))};
}
INLINE vf dot_pair(vf sum, vp a, vp b) { return vf_fma(a.odd, b.odd, vf_fma(a.even, b.even, sum)); }
INLINE void put_bf16(uint16_t *out, vf low, vf high) {
    float lanes[32];
    vf_store(lanes, low), vf_store(lanes + 16, high);
    for (int i = 0; i < 32; i++) out[i] = bf16_of_f32(lanes[i]);
}
#endif

/* The first of 32 floats whose bits without sign are these. */
INLINE int first_of_top(const float *x, int32_t top) {
#if defined(__AVX512VNNI__)
    const __m512i mask = _mm512_set1_epi32(0x7fffffff), bits = _mm512_set1_epi32(top);
    const uint32_t low = _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_loadu_si512(x), mask), bits);
    const uint32_t high = _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_loadu_si512(x + 16), mask), bits);
    return __builtin_ctz(low | high << 16);
#else
    int at = 0;
    while ((int32_t)(bits_of_f32(x[at]) & 0x7fffffff) != top) at++;
    return at;
#endif
}

INLINE int16_t sum_16(const int8_t *p) {
#if defined(__x86_64__) /* distances from 0 of the bytes plus 128 */
    __m128i sums = _mm_sad_epu8(_mm_xor_si128(_mm_loadu_si128((const void *)p), _mm_set1_epi8(-128)), _mm_setzero_si128());
    return (int16_t)(_mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128);
#elif defined(TIER_NEON)
    return vaddlvq_s8(vld1q_s8(p));
#else
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += p[i];
    return (int16_t)sum;
#endif
}

/* 2^x for x <= 0 (and up to 127): a polynomial on [-0.5, 0.5], relative error below 2^-22. Below -126, and for
 * -infinity, 0; NaN stays NaN. */
INLINE vf vf_exp2(vf x) {
    vf low = vf_set(-126.0f);
    vf clipped = vf_max(low, x); /* the second operand of a comparison with NaN is kept */
    vf whole = vf_round(clipped), part = vf_sub(clipped, whole);
    vf y = vf_set(1.535336188319500e-4f);
    y = vf_fma(y, part, vf_set(1.339887440266574e-3f));
    y = vf_fma(y, part, vf_set(9.618437357674640e-3f));
    y = vf_fma(y, part, vf_set(5.550332471162809e-2f));
    y = vf_fma(y, part, vf_set(2.402264791363012e-1f));
    y = vf_fma(y, part, vf_set(6.931472028550421e-1f));
    y = vf_fma(y, part, vf_set(1.0f));
    return vf_scale2(y, whole);
}

INLINE vf vf_number(const void *base, int64_t index, int number) {
    if (number == NUMBER_F16) return vf_f16((const uint16_t *)base + index);
    if (number == NUMBER_BF16) return vf_bf16((const uint16_t *)base + index);
    if (number == NUMBER_I8) return vf_i8((const int8_t *)base + index);
    if (number == NUMBER_F8) return vf_f8((const uint8_t *)base + index);
    return vf_load((const float *)base + index);
}
INLINE float number_at(const void *base, int64_t index, int number) {
    if (number == NUMBER_F16) return f32_of_f16(((const uint16_t *)base)[index]);
    if (number == NUMBER_BF16) return f32_of_bits((uint32_t)((const uint16_t *)base)[index] << 16);
    if (number == NUMBER_I8) return (float)((const int8_t *)base)[index];
    if (number == NUMBER_F8) return f32_of_f8(((const uint8_t *)base)[index]);
    return ((const float *)base)[index];
}
INLINE void number_put(void *base, int64_t index, int number, float x) {
    if (number == NUMBER_F16) ((uint16_t *)base)[index] = f16_of_f32(x);
    else if (number == NUMBER_BF16) ((uint16_t *)base)[index] = bf16_of_f32(x);
    else ((float *)base)[index] = x;
}
#endif
