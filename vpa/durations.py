"""Durations in Go's syntax (``1h30m``) and in Prometheus' (``8d``), in whole nanoseconds as upstream's.

A `Duration` is an ``int`` of nanoseconds, so it goes into integer arithmetic unchanged; it prints as Go does.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

NANOSECOND = 1
MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

LONGEST = 2**63 - 1
"""The longest duration that Go can hold (about 292 years)."""

_GO_UNITS = {
    "ns": NANOSECOND,
    "us": MICROSECOND,
    "µs": MICROSECOND,  # U+00B5 micro sign
    "μs": MICROSECOND,  # U+03BC Greek letter mu
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_GO_PART = re.compile(r"(\d+\.?\d*|\.\d+)([^\d.]+)", re.ASCII)

# From long to short. Prometheus prints years and weeks only where they come out even.
_PROMETHEUS_UNITS = {
    "y": 365 * DAY,
    "w": 7 * DAY,
    "d": DAY,
    "h": HOUR,
    "m": MINUTE,
    "s": SECOND,
    "ms": MILLISECOND,
}
_PROMETHEUS_FORM = re.compile(
    "".join(rf"(?:(?P<{unit}>\d+){unit})?" for unit in _PROMETHEUS_UNITS), flags=re.ASCII
)


class Duration(int):
    """A length of time in nanoseconds; ``str()`` gives Go's text, for example ``1h30m0s``."""

    __slots__ = ()

    @property
    def seconds(self) -> float:
        """The same length in seconds, for timers."""
        return self / SECOND

    @classmethod
    def of(cls, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> Duration:
        """The duration of so many days, hours, minutes and seconds together."""
        span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        return cls(span // timedelta(microseconds=1) * MICROSECOND)

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Read Go's syntax: signed decimal numbers, each with a unit, as in ``-1.5h`` or ``2h45m``."""
        return cls(_parse_go(text))

    def __str__(self) -> str:
        return _print_go(self)

    def __repr__(self) -> str:
        return f"Duration({self})"


class PrometheusDuration(Duration):
    """A length of time in Prometheus' syntax: whole numbers of ``y w d h m s ms``, longest first."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> PrometheusDuration:
        """Read Prometheus' syntax, as in ``8d`` or ``1h30m``; only a bare ``0`` needs no unit."""
        if text == "0":
            return cls(0)
        form = _PROMETHEUS_FORM.fullmatch(text)
        if not text or form is None:
            raise ValueError(
                f'"{text}" is not a Prometheus duration; write whole numbers with the units '
                "y, w, d, h, m, s, ms, longest first, such as 8d or 1h30m"
            )
        length = sum(int(form[unit] or 0) * size for unit, size in _PROMETHEUS_UNITS.items())
        if length > LONGEST:
            raise ValueError(f'the duration "{text}" is longer than 292 years')
        return cls(length)

    def __str__(self) -> str:
        rest = int(self)
        parts = []
        for unit, size in _PROMETHEUS_UNITS.items():
            if unit in ("y", "w") and rest % size:
                continue
            count, rest = divmod(rest, size)
            if count:
                parts.append(f"{count}{unit}")
        return "".join(parts) or "0s"


def _parse_go(text: str) -> int:
    sign, digits = (-1, text[1:]) if text[:1] == "-" else (1, text[1:] if text[:1] == "+" else text)
    if digits == "0":
        return 0
    at = 0
    total = 0
    while at < len(digits):
        part = _GO_PART.match(digits, at)
        if part is None:
            break
        size = _GO_UNITS.get(part[2])
        if size is None:
            raise ValueError(
                f'unknown unit "{part[2]}" in the duration "{text}"; Go\'s units are ns, us, ms, s, m, h'
            )
        total += int(Fraction(part[1]) * size)
        at = part.end()
    if not digits or at < len(digits):
        raise ValueError(
            f'"{text}" is not a duration; write numbers with units ns, us, ms, s, m, h, such as 1h30m'
        )
    if total > LONGEST:
        raise ValueError(f'the duration "{text}" is longer than 292 years')
    return sign * total


def _print_go(nanoseconds: int) -> str:
    """Go's canonical text: hours, minutes and seconds once a second is reached, one small unit below that."""
    if nanoseconds == 0:
        return "0s"
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", int(nanoseconds))
    if rest < SECOND:
        unit, size = next(
            (unit, size)
            for unit, size in (("ms", MILLISECOND), ("µs", MICROSECOND), ("ns", NANOSECOND))
            if rest >= size
        )
        return f"{sign}{_decimal(rest, size)}{unit}"
    minutes, seconds = divmod(rest, MINUTE)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(seconds, SECOND)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def _decimal(amount: int, size: int) -> str:
    """``amount / size`` exactly, without trailing zeros; *size* is a power of ten."""
    whole, part = divmod(amount, size)
    if not part:
        return str(whole)
    return f"{whole}.{part:0{len(str(size)) - 1}d}".rstrip("0")
