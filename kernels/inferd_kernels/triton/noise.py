"""The noise and the weights of `inferd_kernels.reference.noise`, bit for bit.

    g = -ln(-ln(1 - u)),  u = hash(seed, position, token);   weight = floor(2^40 e^(x - max))

Every step is one IEEE operation, as in the reference: kernels that use this are launched with FUSION_OFF, as a fused
multiplication would round once where the reference rounds twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

FUSION_OFF = {"enable_fp_fusion": False}
"""Launch option."""


@triton.jit
def mix32(b_x):
    """The finaliser of 32-bit murmur3, on int32."""
    b_x = (b_x ^ ((b_x >> 16) & 0xFFFF)) * -2048144789
    b_x = (b_x ^ ((b_x >> 13) & 0x7FFFF)) * -1028477387
    return b_x ^ ((b_x >> 16) & 0xFFFF)


@triton.jit
def exponent_of(b_x):
    """Return e of x = m 2^e with m in [sqrt(1/2), sqrt(2)), for normal x > 0."""
    return (b_x.to(tl.int32, bitcast=True) - 0x3F3504F3) >> 23


@triton.jit
def rest_of(b_x, b_exponent):
    """Return m - 1."""
    return (b_x.to(tl.int32, bitcast=True) - (b_exponent << 23)).to(tl.float32, bitcast=True) - 1.0


@triton.jit
def ln_of(b_t, b_exponent):
    """Return ln((1 + t) 2^e), by the polynomial of Cephes' logf."""
    b_z = b_t * b_t
    b_e = b_exponent.to(tl.float32)
    b_y = b_t * 7.0376836292e-2 + -1.1514610310e-1
    b_y = b_y * b_t + 1.1676998740e-1
    b_y = b_y * b_t + -1.2420140846e-1
    b_y = b_y * b_t + 1.4249322787e-1
    b_y = b_y * b_t + -1.6668057665e-1
    b_y = b_y * b_t + 2.0000714765e-1
    b_y = b_y * b_t + -2.4999993993e-1
    b_y = b_y * b_t + 3.3333331174e-1
    b_y = b_y * b_t * b_z + b_e * -2.12194440e-4
    b_y = b_y + b_z * -0.5
    return b_y + b_t + b_e * 0.693359375


@triton.jit
def gumbel(i_key, i_salt, o_tokens):
    """Return the noise of tokens in a row with keys (i_key, i_salt)."""
    b_mixed = mix32(mix32((o_tokens * -1640531535) ^ i_key) + i_salt)
    b_u = ((b_mixed & 0x7FFFFFFF).to(tl.float32) + 0.5) * 4.656612873077393e-10
    b_u = tl.minimum(b_u, 0.9999999403953552)
    b_w = 1.0 - b_u
    b_exponent = exponent_of(b_w)
    b_exponential = -ln_of(tl.where(b_exponent == 0, -b_u, rest_of(b_w, b_exponent)), b_exponent)  # -ln(1 - u)
    b_exponent = exponent_of(b_exponential)
    return -ln_of(rest_of(b_exponential, b_exponent), b_exponent)


@triton.jit
def fixed_weight(b_x, top):
    """Return e^(x - top) as whole numbers of 2^-40, int64, for x <= top: their sums depend on no order."""
    b_x = tl.maximum((b_x - top) * 1.44269504, -126.0)
    b_whole = (b_x + 12582912.0) - 12582912.0  # 1.5 2^23: rounds to the nearest, half to even
    b_part = b_x - b_whole
    b_y = b_part * 1.535316188319500e-4 + 1.339887440266574e-3
    b_y = b_y * b_part + 9.618437357674640e-3
    b_y = b_y * b_part + 5.550332471162809e-2
    b_y = b_y * b_part + 2.402264791363012e-1
    b_y = b_y * b_part + 6.931472028550421e-1
    b_y = b_y * b_part + 1.0
    b_scale = ((b_whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return (b_y * b_scale * 1099511627776.0).to(tl.int64)
