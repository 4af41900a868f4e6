"""Dividing a total among parts in proportion to what they ask, in whole units, within each one's bounds."""

from __future__ import annotations

from collections.abc import Sequence


def shrink(values: Sequence[int], least: Sequence[int], total: int) -> list[int] | None:
    """*values* in proportion, their sum at most *total* and none below its *least*; ``None``: impossible."""
    if sum(values) <= total:
        return list(values)
    floors = [min(value, low) for value, low in zip(values, least, strict=True)]
    if sum(floors) > total:
        return None
    fixed: set[int] = set()
    while True:
        left = total - sum(floors[i] for i in fixed)
        whole = sum(value for i, value in enumerate(values) if i not in fixed)
        shares = [
            floors[i] if i in fixed else (value * left // whole if whole else 0)
            for i, value in enumerate(values)
        ]
        short = {i for i, share in enumerate(shares) if share < floors[i]}
        if not short:
            return shares
        fixed |= short


def grow(values: Sequence[int], most: Sequence[int | None], total: int) -> list[int]:
    """*values* in proportion, their sum at least *total* as far as each *most* (``None``: any) allows."""
    result = list(values)
    while True:
        missing = total - sum(result)
        open_ = [i for i, top in enumerate(most) if result[i] > 0 and (top is None or result[i] < top)]
        if missing <= 0 or not open_:
            return result
        whole = sum(result[i] for i in open_)
        left = missing
        for i in open_:
            more = min(-(-result[i] * missing // whole), left)
            top = most[i]
            grown = result[i] + more if top is None else min(result[i] + more, top)
            left -= grown - result[i]
            result[i] = grown
