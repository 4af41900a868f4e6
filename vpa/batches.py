"""Batches of samples in which one key may occur several times, and order matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpa.numerics import Ints


def compact(index: Ints) -> slice | Ints:
    """A slice where the indices are consecutive, which makes reading and writing several times quicker."""
    count = len(index)
    if count and int(index[-1]) - int(index[0]) == count - 1 and bool((index[1:] - index[:-1] == 1).all()):
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def in_parts(size: int, add: Callable[..., NDArray[np.bool_]], *batch: NDArray[Any]) -> NDArray[np.bool_]:
    """Hand a long batch over in parts and join what was accepted."""
    parts = [slice(start, start + size) for start in range(0, max(len(batch[0]), 1), size)]
    return np.concatenate([add(*(column[part] for column in batch)) for part in parts])


def fold(ufunc: np.ufunc, column: NDArray[Any], where: slice | Ints, values: NDArray[Any] | int) -> None:
    """``column[i] = ufunc(column[i], value)`` for each index in order, repeated ones included."""
    if isinstance(where, slice):
        ufunc(column[where], values, out=column[where])
    else:
        ufunc.at(column, where, values)


def is_distinct(keys: Ints) -> bool:
    """Whether no key occurs twice; quick for ascending keys, the usual order of a poll."""
    if len(keys) < 2 or bool((keys[1:] > keys[:-1]).all()):
        return True
    return len(np.unique(keys)) == len(keys)


def is_last(keys: Ints) -> NDArray[np.bool_]:
    """Whether an element is the last of its key."""
    last = np.zeros(len(keys), dtype=np.bool_)
    last[np.unique(keys[::-1], return_index=True)[1]] = True
    return last[::-1]


def occurrence(keys: Ints) -> Ints:
    """For each element, how many equal keys stand before it. Shape ``(n,)``."""
    order = np.argsort(keys, kind="stable")
    grouped = keys[order]
    starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]])
    counts = np.diff(np.r_[starts, len(keys)])
    rank = np.empty(len(keys), dtype=np.int64)
    rank[order] = np.arange(len(keys)) - np.repeat(starts, counts)
    return rank


def waves(keys: Ints) -> Iterator[NDArray[np.int64]]:
    """Index arrays that cover the batch, each with distinct keys, each key's elements in their order."""
    if len(keys) == 0:
        return
    if is_distinct(keys):
        yield np.arange(len(keys))
        return
    rank = occurrence(keys)
    order = np.argsort(rank, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(rank[order])) + 1)


def wide_waves(keys: Ints, least: int) -> tuple[list[Ints], list[Ints]]:
    """The waves of at least *least* elements and the first one, and what is left, one index array a key."""
    if is_distinct(keys):
        return [np.arange(len(keys))] if len(keys) else [], []
    rank = occurrence(keys)
    sizes = np.bincount(rank)
    count = max(1, int((sizes >= least).sum()))  # no wave is larger than the one before
    order = np.argsort(rank, kind="stable")
    ends = np.cumsum(sizes[:count])
    waves = np.split(order[: ends[-1]], ends[:-1])
    rest = np.sort(order[ends[-1] :])
    rest = rest[np.argsort(keys[rest], kind="stable")]
    return waves, [run for run in np.split(rest, np.flatnonzero(np.diff(keys[rest])) + 1) if len(run)]


def running_maximum(keys: Ints, values: Ints, initial: Ints) -> Ints:
    """For each element the largest of its *initial* value and of earlier values with the same key.

    *initial* has one element per sample and is the same for equal keys. Shape ``(n,)``.
    """
    order = np.argsort(keys, kind="stable")
    grouped = keys[order]
    opens = np.r_[True, grouped[1:] != grouped[:-1]]
    known, dense = np.unique(np.concatenate((values, initial)), return_inverse=True)
    ranks, floor = dense[: len(values)][order], dense[len(values) :][order]
    before = np.where(opens, floor, np.maximum(np.r_[0, ranks[:-1]], floor))
    offset = np.cumsum(opens) * len(known)  # keeps one group's maximum from leaking into the next
    result = np.empty(len(values), dtype=np.int64)
    result[order] = known[np.maximum.accumulate(before + offset) - offset]
    return result
