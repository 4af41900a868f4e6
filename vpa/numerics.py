"""Go's floating-point functions, bit for bit.

Upstream computes with Go's own ``math.Pow``, ``math.Log`` and ``math.Exp2``, which are not correctly rounded.
Python's and numpy's differ from them in last bits, which a truncation turns into another byte or another
checkpoint weight. These are the same sequences of IEEE double operations (amd64, no fused multiply-add).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LN2_HI = 6.93147180369123816490e-01
_LN2_LO = 1.90821492927058770002e-10
_L1, _L2, _L3, _L4, _L5, _L6, _L7 = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_P1, _P2, _P3, _P4, _P5 = (
    1.66666666666666657415e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)

AMOUNT_MAX = 10**14
"""Largest amount: millicores for CPU, bytes for memory."""

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


def power(base: float, exponent: int) -> float:
    """Go's ``Pow(base, exponent)`` for a finite positive *base* and a non-negative integer *exponent*."""
    if exponent == 0 or base == 1.0:
        return 1.0
    if exponent == 1:
        return base
    mantissa, shift = math.frexp(base)
    product, total = 1.0, 0
    while exponent:
        if exponent & 1:
            product *= mantissa
            total += shift
        mantissa *= mantissa
        shift *= 2
        if mantissa < 0.5:
            mantissa += mantissa
            shift -= 1
        exponent >>= 1
    return math.ldexp(product, total)


def log(x: float) -> float:
    """Go's natural logarithm of a finite positive *x*."""
    fraction, k = math.frexp(x)
    if fraction < math.sqrt(2) / 2:
        fraction *= 2
        k -= 1
    f = fraction - 1
    s = f / (2 + f)
    z = s * s
    w = z * z
    t1 = z * (_L1 + w * (_L3 + w * (_L5 + w * _L7)))
    t2 = w * (_L2 + w * (_L4 + w * _L6))
    r = t1 + t2
    h = 0.5 * f * f
    return k * _LN2_HI - ((h - (s * (h + r) + k * _LN2_LO)) - f)


def exp2(x: Floats) -> Floats:
    """Go's ``Exp2`` of each element; exact powers of two for whole exponents. Shape is kept."""
    k = np.trunc(x + np.copysign(0.5, x))
    t = x - k
    hi = t * _LN2_HI
    lo = t * -_LN2_LO
    r = hi - lo
    q = r * r
    c = q * _P5
    for coefficient in (_P4, _P3, _P2, _P1):
        c += coefficient
        c *= q
    np.subtract(r, c, out=c)  # the two lines above leave q·(P1 + q·(P2 + …))
    r *= c
    np.subtract(2, c, out=c)
    r /= c
    lo -= r
    lo -= hi
    np.subtract(1, lo, out=lo)
    return np.ldexp(lo, k.astype(np.int32))


def to_amounts(values: Floats) -> Ints:
    """Float → whole amount: truncated, at most 1e14, at least 0; NaN becomes the least int64, as on amd64.

    A later maximum with any minimum lifts that value, so NaN ends as "no evidence".
    """
    bounded = np.clip(values, 0.0, float(AMOUNT_MAX))  # NaN passes through
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(bounded), INT64_MIN, bounded).astype(np.int64)


def scale(amounts: Ints, factor: Floats | float) -> Ints:
    """``amount × factor`` as upstream scales: in floats, then :func:`to_amounts`."""
    with np.errstate(invalid="ignore", over="ignore"):
        return to_amounts(amounts.astype(np.float64) * factor)
