"""Batches of samples in which one key may occur several times, and order matters."""

from __future__ import annotations

from collections.abc import Iterator
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
