"""What Trickster says of its own answer in the header ``X-Trickster-Result``."""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER = "X-Trickster-Result"

_FIELD = re.compile(r"\s*([A-Za-z_]+)=(\[[^\]]*\]|[^;]*)(?:;|$)")
_RANGE = re.compile(r"(-?\d+)-(-?\d+)")

Ranges = tuple[tuple[int, int], ...]
"""Ranges of time, first and last millisecond since the epoch."""

HITS = frozenset({"hit", "phit", "rhit", "proxy-hit"})


@dataclass(frozen=True, slots=True)
class TricksterResult:
    """One parsed header."""

    engine: str = ""
    status: str = ""
    fetched: Ranges = ()
    failed: Ranges = ()
    fast_forward: str = ""

    @property
    def partial(self) -> bool:
        """Whether something is missing from an answer that has status 200 all the same."""
        return bool(self.failed) or self.status in ("proxy-error", "error")


def parse(header: str) -> TricksterResult:
    """The fields of *header*; those that are absent or unknown are left out."""
    fields = {name.lower(): value.strip() for name, value in _FIELD.findall(header)}
    return TricksterResult(
        engine=fields.get("engine", ""),
        status=fields.get("status", "").lower(),
        fetched=_ranges(fields.get("fetched", "")),
        failed=_ranges(fields.get("failed", "")),
        fast_forward=fields.get("ffstatus", ""),
    )


def _ranges(text: str) -> Ranges:
    return tuple((int(first), int(last)) for first, last in _RANGE.findall(text))
