"""Kubernetes quantities: ``250m`` CPUs, ``64Mi`` bytes; exact, and printed as the API server prints them.

A quantity is a whole number of nanos plus the notation it was written in. Anything finer than a nano is
rounded away from zero, as Kubernetes does. Quantities are immutable; equality, order and hash look at the
value alone, so ``1`` equals ``1000m``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

DECIMAL_SI: Final = "DecimalSI"
BINARY_SI: Final = "BinarySI"
DECIMAL_EXPONENT: Final = "DecimalExponent"

NANO: Final = -9
MICRO: Final = -6
MILLI: Final = -3

FORMAT_ERROR: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
NUMERIC_ERROR: Final = "unable to parse numeric part of quantity"
SUFFIX_ERROR: Final = "unable to parse quantity's suffix"

_MOST: Final = 2**63 - 1
"""A number with a binary suffix is capped here when it is parsed."""

_MOST_DIGITS: Final = 4000
"""Longer numbers are refused: they mean nothing, and a hostile ``1e999999999`` would eat the memory."""

_EXACT_DIGITS: Final = 18
"""Up to so many digits Kubernetes keeps the text as it was written; see :func:`_read_decimal`."""

_WRAPPING_SHIFTS: Final = (1, 2, 3, 6, 9)
"""Multiplying by these powers of ten, Kubernetes keeps the low 64 bits; by others it gives up with 0."""

_SCALES: Final = {
    "n": NANO,
    "u": MICRO,
    "m": MILLI,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_SUFFIXES: Final = {scale: suffix for suffix, scale in _SCALES.items()}
_BINARY: Final = {suffix: 10 * power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_BINARY_SUFFIXES: Final = ("", *_BINARY)
_POWERS: Final = tuple(10**n for n in range(40))

_PATTERN: Final = re.compile(r"([+-]?)(0*)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)")
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)")


class QuantityError(ValueError):
    """A text that is no quantity. ``upstream`` is the exact wording of Kubernetes, which denials repeat."""

    def __init__(self, upstream: str, given: object) -> None:
        super().__init__(f'"{given}" is not a quantity: {upstream}')
        self.upstream = upstream


def _power(n: int) -> int:
    return _POWERS[n] if n < 40 else int(10**n)


def _away_from_zero(value: int, divisor: int) -> int:
    """``value / divisor`` rounded away from zero; *divisor* is positive."""
    return -(-value // divisor) if value >= 0 else value // divisor


class Quantity:
    """An exact amount: ``nanos`` (10⁻⁹ units) and its ``format``.

    The format is ``DecimalSI``, ``BinarySI`` or ``DecimalExponent``, and the empty string for JSON ``null``.
    ``exponent`` is the power of ten that the number was written in; only the floating point value depends
    on it.
    """

    __slots__ = ("_text", "exponent", "format", "nanos")

    def __init__(self, nanos: int, format: str = DECIMAL_SI, *, exponent: int = NANO, text: str = "") -> None:  # noqa: A002
        self.nanos: Final = nanos
        self.format: Final = format
        self.exponent: Final = exponent
        self._text = text

    @staticmethod
    def parse(text: str) -> Quantity:
        """The quantity that *text* means; :class:`QuantityError` if it means none."""
        return _parse(text)

    @staticmethod
    def from_json(value: object) -> Quantity:
        """A JSON token: text, a number, or ``None`` for zero. Blanks around the text are allowed there."""
        if type(value) is str:
            return _parse(value.strip())
        if value is None:
            return _NULL
        if type(value) is int or type(value) is float:
            return _parse(str(value))
        raise QuantityError(FORMAT_ERROR, value)

    @staticmethod
    def from_int(value: int, format: str = DECIMAL_SI) -> Quantity:  # noqa: A002
        """A whole number of units: bytes, CPUs, items."""
        return Quantity(value * 1_000_000_000, format, exponent=0)

    @staticmethod
    def from_milli(value: int, format: str = DECIMAL_SI) -> Quantity:  # noqa: A002
        """A whole number of thousandths, as millicores."""
        return Quantity(value * 1_000_000, format, exponent=MILLI)

    @staticmethod
    def from_scaled(value: int, scale: int, format: str = DECIMAL_SI) -> Quantity:  # noqa: A002
        """``value × 10^scale``."""
        if scale >= NANO:
            return Quantity(value * _power(scale - NANO), format, exponent=scale)
        return Quantity(_away_from_zero(value, _power(NANO - scale)), format)

    def value(self) -> int:
        """The number of whole units, rounded away from zero."""
        return _away_from_zero(self.nanos, 1_000_000_000)

    def milli(self) -> int:
        """The number of thousandths, rounded away from zero."""
        return _away_from_zero(self.nanos, 1_000_000)

    def scaled_value(self, scale: int) -> int:
        """The number of ``10^scale`` units, rounded away from zero."""
        if scale >= NANO:
            return _away_from_zero(self.nanos, _power(scale - NANO))
        return self.nanos * _power(NANO - scale)

    def int64_value(self, scale: int) -> int:
        """:meth:`scaled_value` as Kubernetes' 64-bit accessors give it: past the range it wraps or is 0."""
        exact = self.scaled_value(scale)
        if -_MOST <= exact <= _MOST:
            return exact
        if self.exponent - scale in _WRAPPING_SHIFTS or self.exponent <= 0:
            return (exact + 2**63) % 2**64 - 2**63
        return 0

    def round_up(self, scale: int) -> tuple[bool, Quantity]:
        """(was it exact already, the quantity in whole ``10^scale`` units, rounded away from zero)."""
        if self.exponent >= scale:
            return True, self
        rounded = Quantity.from_scaled(self.scaled_value(scale), scale, self.format)
        return rounded.nanos == self.nanos, rounded

    def approximate_float(self) -> float:
        """The double that Kubernetes computes (mantissa times power of ten); infinite when too big."""
        base = self.nanos // _power(self.exponent - NANO)
        try:
            return float(base) if self.exponent == 0 else float(base) * float(f"1e{self.exponent}")
        except OverflowError:
            return float("inf") if base > 0 else float("-inf")

    @property
    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self.nanos > 0) - (self.nanos < 0)

    @property
    def is_zero(self) -> bool:
        return self.nanos == 0

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __le__(self, other: Quantity) -> bool:
        return self.nanos <= other.nanos

    def __gt__(self, other: Quantity) -> bool:
        return self.nanos > other.nanos

    def __ge__(self, other: Quantity) -> bool:
        return self.nanos >= other.nanos

    def __add__(self, other: Quantity) -> Quantity:
        return self._combined(self.nanos + other.nanos, other)

    def __sub__(self, other: Quantity) -> Quantity:
        return self._combined(self.nanos - other.nanos, other)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nanos, self.format, exponent=self.exponent)

    def _combined(self, nanos: int, other: Quantity) -> Quantity:
        """A sum keeps the left format, unless the left side is zero."""
        kept = self if self.nanos else other
        return Quantity(nanos, kept.format, exponent=min(self.exponent, other.exponent))

    def __str__(self) -> str:
        """The canonical text, or the text as written where Kubernetes keeps it."""
        if not self._text:
            self._text = _canonical(self.nanos, self.format)
        return self._text

    def __repr__(self) -> str:
        return f"Quantity.parse({str(self)!r})"


def _canonical(nanos: int, notation: str) -> str:
    """A whole number with the largest suffix that loses nothing."""
    if nanos == 0:
        return "0"
    if notation == BINARY_SI and abs(nanos) >= 1024 * 1_000_000_000 and nanos % 1_000_000_000 == 0:
        number, power = nanos // 1_000_000_000, 0
        while number % 1024 == 0 and power < 6:
            number, power = number // 1024, power + 1
        return f"{number}{_BINARY_SUFFIXES[power]}"
    number, exponent = nanos, NANO
    while number % 1000 == 0:
        number, exponent = number // 1000, exponent + 3
    if notation in (DECIMAL_SI, BINARY_SI):
        # Past E there is no suffix, and Kubernetes (1.37) prints none.
        return f"{number}{_SUFFIXES.get(exponent, '')}"
    return f"{number}e{exponent}" if exponent else str(number)


@lru_cache(maxsize=1 << 15)
def _parse(text: str) -> Quantity:
    if not text:
        raise QuantityError(FORMAT_ERROR, text)
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise QuantityError(FORMAT_ERROR, text)
    sign, zeros, whole, fraction, suffix = match.groups("")
    digits = (whole or "0") + fraction
    if suffix in _BINARY:
        found = _read_binary(text, digits, len(fraction), _BINARY[suffix])
        if found.exponent == NANO and not (zeros or whole or fraction):
            raise QuantityError(NUMERIC_ERROR, text)  # "Ei" alone; "Mi" alone is zero, as in Kubernetes
    elif suffix in _SCALES:
        found = _read_decimal(text, digits, _SCALES[suffix] - len(fraction), DECIMAL_SI)
    else:
        found = _read_decimal(text, digits, _exponent(suffix, text) - len(fraction), DECIMAL_EXPONENT)
    if sign == "-":
        return Quantity(-found.nanos, found.format, exponent=found.exponent, text=found._text)
    return found


def _exponent(suffix: str, text: str) -> int:
    match = _EXPONENT.fullmatch(suffix)
    if match is None or len(match[1]) > 19:
        raise QuantityError(SUFFIX_ERROR, text)
    return int(match[1])


def _read_decimal(text: str, digits: str, exponent: int, notation: str) -> Quantity:
    """``digits × 10^exponent``; the text is kept when it already looks canonical."""
    if len(digits) + max(exponent - NANO, 0) > _MOST_DIGITS:
        raise QuantityError(NUMERIC_ERROR, text)
    number = int(digits)
    if exponent >= NANO:
        nanos = number * _power(exponent - NANO)
        if len(digits) > _EXACT_DIGITS:
            return Quantity(nanos, notation)
        verbatim = exponent % 3 == 0 and digits[0] != "0" and not digits.endswith("000")
        return Quantity(nanos, notation, exponent=exponent, text=text if verbatim else "")
    if NANO - exponent > len(digits):
        return Quantity(min(number, 1), notation)
    return Quantity(_away_from_zero(number, _power(NANO - exponent)), notation)


def _read_binary(text: str, digits: str, decimals: int, shift: int) -> Quantity:
    """``digits × 10^-decimals × 2^shift``, at most 2⁶³ − 1."""
    if len(digits) > _MOST_DIGITS:
        raise QuantityError(NUMERIC_ERROR, text)
    number = int(digits)
    if not decimals and len(digits) <= 14 - 3 * (shift // 10):
        return Quantity(
            (number << shift) * 1_000_000_000, BINARY_SI, exponent=0, text=text if number & 7 else ""
        )
    nanos = _away_from_zero((number << shift) * 1_000_000_000, 10**decimals)
    if nanos > _MOST * 1_000_000_000:
        return Quantity(_MOST * 1_000_000_000, BINARY_SI, exponent=0)
    return Quantity(nanos, DECIMAL_SI if 0 < nanos < 1_000_000_000 else BINARY_SI)


_NULL: Final = Quantity(0, "", exponent=0)

ZERO_CPU: Final = Quantity(0, DECIMAL_SI, exponent=0)
"""What Kubernetes reads where a resource list has no CPU."""
ZERO_MEMORY: Final = Quantity(0, BINARY_SI, exponent=0)
"""What Kubernetes reads where a resource list has no memory."""


def cpu_millis(cpu: str | Quantity) -> int:
    """Whole millicores, rounded up."""
    quantity = _parse(cpu) if type(cpu) is str else cpu
    return _away_from_zero(quantity.nanos, 1_000_000)  # type: ignore[union-attr]


def memory_bytes(memory: str | Quantity) -> int:
    """Whole bytes, rounded up."""
    quantity = _parse(memory) if type(memory) is str else memory
    return _away_from_zero(quantity.nanos, 1_000_000_000)  # type: ignore[union-attr]
