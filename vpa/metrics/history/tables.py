"""Answers laid on the grid, checked, joined: from many matrices to one sorted table. Pure.

All work is on flat arrays; there is no Python object for a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vpa.metrics.history import amounts
from vpa.metrics.history.grids import Grid
from vpa.metrics.history.planning import CPU, RESOURCES
from vpa.metrics.prometheus.decoding import Labels, Matrix
from vpa.metrics.prometheus.names import Names
from vpa.metrics.prometheus.queries import CPU_PARTS, SOURCES
from vpa.rules import Rules

NANOSECONDS = 1_000_000_000

Key = tuple[str, str, str]
"""(namespace, pod, container)."""


@dataclass(slots=True)
class Counts:
    """What was noticed in answers and left out of the table, by kind."""

    points: int = 0
    """Points in the table."""
    not_a_number: int = 0
    """NaN and infinite values."""
    negative: int = 0
    """Values below 0: a counter that was reset under a recording rule."""
    off_grid: int = 0
    """Points at times that were not asked for, as Trickster's fast forward adds one."""
    duplicates: int = 0
    """Points of further series of one container: summed where they are its parts, else the largest counts."""
    nameless: int = 0
    """Series without the labels of namespace, pod or container."""
    gaps: int = 0
    """Times between the first and last point of a container that have none."""

    def add(self, other: Counts) -> None:
        """Count *other* too."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def words(self) -> str:
        """All that is not 0, for a message."""
        named = {
            "not_a_number": "not a number",
            "negative": "negative (counter reset)",
            "off_grid": "off the grid",
            "duplicates": "of duplicate series",
            "nameless": "series without names",
            "gaps": "missing",
        }
        parts = (f"{getattr(self, name)} {text}" for name, text in named.items() if getattr(self, name))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Part:
    """One answer on the grid: ``keys`` and, for each point, its key, time and amount.

    ``index`` int32[points] into keys; ``at`` int32[points] into the grid; ``values`` int64[points].
    """

    grid: Grid
    keys: list[Key]
    index: NDArray[np.int32]
    at: NDArray[np.int32]
    values: NDArray[np.int64]
    counts: Counts

    def holes(self) -> int:
        """Times at which no container has a point, between times at which some have."""
        if not len(self.at):
            return 0
        filled = np.bincount(self.at, minlength=self.grid.points) > 0
        first, last = np.flatnonzero(filled)[[0, -1]]
        return int(np.count_nonzero(~filled[first : last + 1]))


def lay(matrix: Matrix, *, grid: Grid, resource: str, names: Names, rules: Rules) -> Part:
    """*matrix* on *grid*; what does not belong there is left out and counted."""
    counts = Counts()
    keys: list[Key] = []
    known: dict[Key, int] = {}
    numbers = np.empty(len(matrix.labels), np.int64)
    for number, labels in enumerate(matrix.labels):
        key = _key(labels, names)
        if key is None:
            counts.nameless += 1
            numbers[number] = -1
            continue
        found = known.setdefault(key, len(keys))
        if found == len(keys):
            keys.append(key)
        numbers[number] = found
    series = matrix.index()
    at = np.rint((matrix.times - grid.start) / grid.step).astype(np.int64)
    good = numbers[series] >= 0
    on_grid = (matrix.times == grid.start + at * grid.step) & (at >= 0) & (at < grid.points)
    counts.off_grid = int(np.count_nonzero(good & ~on_grid))
    good &= on_grid
    finite = np.isfinite(matrix.values)
    counts.not_a_number = int(np.count_nonzero(good & ~finite))
    good &= finite
    positive = matrix.values >= 0
    counts.negative = int(np.count_nonzero(good & ~positive))
    good &= positive
    series, at, values = series[good], at[good], matrix.values[good]
    index = numbers[series]
    if len(keys) < len(matrix.labels) - counts.nameless or _repeats(series, at, grid.points):
        before = len(values)
        index, at, values = _combined(matrix.labels, series, index, at, values, resource)
        counts.duplicates = before - len(values)
    counts.points = len(values)
    convert = amounts.millicores if resource == CPU else amounts.whole_bytes
    return Part(
        grid=grid,
        keys=keys,
        index=index.astype(np.int32),
        at=at.astype(np.int32),
        values=convert(values, rules),
        counts=counts,
    )


def _key(labels: Labels, names: Names) -> Key | None:
    namespace = labels.get(names.namespace)
    pod = labels.get(names.pod)
    container = labels.get(names.container)
    return (namespace, pod, container) if namespace and pod and container else None


def _repeats(series: NDArray[np.int64], at: NDArray[np.int64], points: int) -> bool:
    """Whether a series has two points at one time."""
    places = series * points + at
    return bool(np.any(places[1:] <= places[:-1])) and len(np.unique(places)) < len(places)


def _combined(
    labels: list[Labels],
    series: NDArray[np.int64],
    index: NDArray[np.int64],
    at: NDArray[np.int64],
    values: NDArray[np.float64],
    resource: str,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """One point for each container and time: copies don't count twice, parts of its CPU add up."""
    if resource == CPU:
        sources: dict[tuple[str, ...], int] = {}
        parts: dict[tuple[str, ...], int] = {}
        source = np.zeros(len(labels), np.int64)
        part = np.zeros(len(labels), np.int64)
        for number, one in enumerate(labels):
            name = tuple(one.get(label, "") for label in SOURCES)
            source[number] = sources.setdefault(name, len(sources))
            name += tuple(one.get(label, "") for label in CPU_PARTS)
            part[number] = parts.setdefault(name, len(parts))
        columns = (index, source[series], part[series], at)
        (index, from_, _, at), values = _grouped(columns, values, np.maximum)
        (index, _, at), values = _grouped((index, from_, at), values, np.add)
    (index, at), values = _grouped((index, at), values, np.maximum)
    return index, at, values


def _grouped(
    columns: tuple[NDArray[np.int64], ...], values: NDArray[np.float64], operation: np.ufunc
) -> tuple[tuple[NDArray[np.int64], ...], NDArray[np.float64]]:
    """*values* with equal *columns* made one by *operation*; sorted by the columns."""
    if not len(values):
        return columns, values
    order = np.lexsort(columns[::-1])
    columns = tuple(column[order] for column in columns)
    changes = np.any([np.diff(column) != 0 for column in columns], axis=0)
    starts = np.flatnonzero(np.concatenate([[True], changes]))
    return tuple(column[starts] for column in columns), operation.reduceat(values[order], starts)


@dataclass(frozen=True, slots=True)
class Points:
    """Points of several containers, sorted by container and time.

    ``index`` int64[points] into the keys, ``times`` int64 nanoseconds since the epoch, ``values`` int64
    millicores or bytes; container *i* has ``[ends[i - 1], ends[i])``.
    """

    index: NDArray[np.int64]
    times: NDArray[np.int64]
    values: NDArray[np.int64]
    ends: NDArray[np.int64]

    def of(self, i: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(times, values) of container *i*, views in the order of time."""
        span = slice(int(self.ends[i - 1]) if i else 0, int(self.ends[i]))
        return self.times[span], self.values[span]

    def by_time(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """(index, times, values) of one time after the other; each has a container at most once."""
        order = np.argsort(self.times, kind="stable")
        bounds = np.flatnonzero(np.diff(self.times[order], prepend=-1, append=-1))
        for low, high in pairwise(bounds):
            chosen = order[low:high]
            yield self.index[chosen], self.times[chosen], self.values[chosen]

    def thinned(self, interval: NDArray[np.int64]) -> Points:
        """Those points that leave a trace in memory peaks, which is a fraction of all.

        *interval* int64[containers] nanoseconds: length of each container's windows, the first of which
        begins with its first point. Of each window stay the first point and the first of the largest, and
        the last point of all: fed to a new instance they lead where all points lead.
        """
        if not len(self.times):
            return self
        starts = np.concatenate([np.zeros(1, np.int64), self.ends])[:-1]
        window = (self.times - self.times[starts[self.index]]) // interval[self.index]
        opens = np.concatenate([[True], (np.diff(self.index) != 0) | (np.diff(window) != 0)])
        at = np.flatnonzero(opens)
        group = np.cumsum(opens) - 1
        largest = np.flatnonzero(self.values == np.maximum.reduceat(self.values, at)[group])
        first_largest = largest[np.concatenate([[True], np.diff(group[largest]) != 0])]
        kept = opens
        kept[first_largest] = True
        kept[self.ends[self.ends > starts] - 1] = True
        index = self.index[kept]
        return Points(
            index=index,
            times=self.times[kept],
            values=self.values[kept],
            ends=np.searchsorted(index, np.arange(len(self.ends)), side="right"),
        )

    def gaps(self, step: int) -> int:
        """Times, *step* seconds apart, without a point between the first and last one of a container."""
        starts = np.concatenate([np.zeros(1, np.int64), self.ends])[:-1]
        some = self.ends > starts
        first, last = self.times[starts[some]], self.times[self.ends[some] - 1]
        return int(((last - first) // (step * NANOSECONDS) + 1).sum()) - len(self.times)


@dataclass(slots=True)
class Table:
    """What the parts of one shard add up to."""

    grid: Grid
    keys: dict[Key, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    _parts: dict[str, list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]]] = field(
        default_factory=lambda: {resource: [] for resource in RESOURCES}
    )

    def add(self, resource: str, part: Part) -> None:
        """Take *part* in; of two points at one place the later added one counts."""
        numbers = np.array([self.keys.setdefault(key, len(self.keys)) for key in part.keys], np.int32)
        offset = (part.grid.start - self.grid.start) // self.grid.step
        self._parts[resource].append((numbers[part.index], (part.at + offset).astype(np.int32), part.values))
        self.counts.add(part.counts)

    def copy(self) -> Table:
        """The table as it is now, for a reader in another thread; the arrays are shared."""
        parts = {resource: list(some) for resource, some in self._parts.items()}
        return Table(self.grid, dict(self.keys), replace(self.counts), parts)

    def points(self, resource: str) -> Points:
        """All points of *resource*."""
        parts = self._parts[resource]
        index = np.concatenate([np.empty(0, np.int32), *(one[0] for one in parts)]).astype(np.int64)
        at = np.concatenate([np.empty(0, np.int32), *(one[1] for one in parts)])
        values = np.concatenate([np.empty(0, np.int64), *(one[2] for one in parts)])
        places = index * self.grid.points + at
        order = np.argsort(places, kind="stable")
        places = places[order]
        last = np.concatenate([places[1:] != places[:-1], np.ones(min(len(places), 1), bool)])
        order = order[last]
        index, at, values = index[order], at[order], values[order]
        times = (self.grid.start + at.astype(np.int64) * self.grid.step) * NANOSECONDS
        ends = np.searchsorted(index, np.arange(len(self.keys)), side="right")
        return Points(index=index, times=times, values=values, ends=ends)
