/* Counter-based Gumbel noise and fixed-point weights, bit for bit what kernels/inferd_kernels/reference/noise.py computes.
 *
 * Everything here is single IEEE operations in a fixed order (no fused multiplication), so that C, torch on a CPU and
 * torch on a GPU give the same bits. Compilers turn these vectors into whatever the tier has.
 */

typedef float v16f __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t v16i __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t v16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef int64_t v16l __attribute__((vector_size(128), aligned(8), may_alias));

#define NOISE_MOST 22.25f /* above any noise */

INLINE v16f v16f_set(float x) { return (v16f){} + x; }
INLINE v16f v16f_load(const float *p) {
    v16f x;
    memcpy(&x, p, 64);
    return x;
}
INLINE v16f v16f_tail(const float *p, int64_t left) {
    v16f x = {0};
    memcpy(&x, p, left < 16 ? (size_t)left * 4 : 64);
    return x;
}
INLINE float v16f_top(v16f x) {
    vf same;
    memcpy(&same, &x, 64);
    return vf_top(same);
}
INLINE v16f v16f_pick(v16i mask, v16f a, v16f b) { return (v16f)((mask & (v16i)a) | (~mask & (v16i)b)); }

/* ln(m * 2^e) with t = m - 1, m in [sqrt(1/2), sqrt(2)): the polynomial of Cephes' logf. */
INLINE v16f ln_parts(v16f t, v16f e) {
    v16f z = t * t, y = v16f_set(7.0376836292e-2f);
    y = y * t + -1.1514610310e-1f;
    y = y * t + 1.1676998740e-1f;
    y = y * t + -1.2420140846e-1f;
    y = y * t + 1.4249322787e-1f;
    y = y * t + -1.6668057665e-1f;
    y = y * t + 2.0000714765e-1f;
    y = y * t + -2.4999993993e-1f;
    y = y * t + 3.3333331174e-1f;
    y = y * t * z;
    y = y + e * -2.12194440e-4f;
    y = y + z * -0.5f;
    return (t + y) + e * 0.693359375f;
}

INLINE v16i ln_exponent(v16f x) { return ((v16i)x - 0x3f3504f3) >> 23; }
INLINE v16f ln_rest(v16f x, v16i e) { return (v16f)((v16i)x - (e << 23)) + -1.0f; }

INLINE v16u mix32(v16u x) { /* murmur3's finaliser */
    x ^= x >> 16, x *= 0x85ebca6bu;
    x ^= x >> 13, x *= 0xc2b2ae35u;
    return x ^ x >> 16;
}

struct noise_key {
    uint32_t first, second;
};

INLINE uint64_t splitmix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

INLINE struct noise_key noise_key(int64_t seed, int64_t position) {
    uint64_t mixed = splitmix(splitmix((uint64_t)seed) + (uint64_t)position * 0x9e3779b97f4a7c15u);
    return (struct noise_key){(uint32_t)mixed, (uint32_t)(mixed >> 32)};
}

/* 31 random bits of each token id. */
INLINE v16i noise_bits(struct noise_key key, v16u tokens) {
    return (v16i)(mix32(mix32((tokens * 0x9e3779b1u) ^ key.first) + key.second) & 0x7fffffffu);
}

/* -ln(-ln(1 - u)) of u made from the bits. */
INLINE v16f noise_of(v16i bits) {
    v16f u = (__builtin_convertvector(bits, v16f) + 0.5f) * 4.656612873077392578125e-10f;
    v16f most = v16f_set(0.999999940395355224609375f);
    u = v16f_pick(u < most, u, most);
    v16f w = u * -1.0f + 1.0f;
    v16i e = ln_exponent(w);
    v16f t = v16f_pick(e == 0, u * -1.0f, ln_rest(w, e));
    v16f x = ln_parts(t, __builtin_convertvector(e, v16f)) * -1.0f;
    e = ln_exponent(x);
    return ln_parts(ln_rest(x, e), __builtin_convertvector(e, v16f)) * -1.0f;
}

/* 2^40 e^d, cut to a whole number, for d <= 0: sums of these do not depend on their order. */
INLINE v16l fixed_weights(v16f d) {
    v16f least = v16f_set(-126.0f), x = d * 1.44269504f;
    x = v16f_pick(x > least, x, least);
    v16f whole = (x + 12582912.0f) - 12582912.0f, part = x - whole; /* to the nearest, ties to even */
    v16f y = v16f_set(1.535336188319500e-4f);
    y = y * part + 1.339887440266574e-3f;
    y = y * part + 9.618437357674640e-3f;
    y = y * part + 5.550332471162809e-2f;
    y = y * part + 2.402264791363012e-1f;
    y = y * part + 6.931472028550421e-1f;
    y = y * part + 1.0f;
    v16i scale = (__builtin_convertvector(whole, v16i) + 127) << 23;
    return __builtin_convertvector(y * (v16f)scale * 1099511627776.0f, v16l);
}
