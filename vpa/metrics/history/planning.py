"""From workloads and limits to queries: few, none too big, in an order that serves the impatient. Pure.

A *shard* is a set of pods that is asked for together. Small namespaces share one, big ones are split: by
workload, and at last by the end of the pods' names. Each shard has one CPU and one memory query text,
which is sent for one block of days at a time, the newest blocks of all shards first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from zlib import crc32

from vpa.metrics.history.grids import DAY, Grid, blocks
from vpa.metrics.prometheus import queries
from vpa.metrics.prometheus.names import Names
from vpa.metrics.prometheus.queries import Shard
from vpa.objects.workloads import WELL_KNOWN

CPU = "cpu"
MEMORY = "memory"
RESOURCES = (CPU, MEMORY)

MOST_POINTS = 11_000
"""Points of one series that Prometheus gives in one answer."""

MOST_SAMPLES = 240_000
"""Samples in one answer: about 8 MB, so that few answers at a time need little memory."""

SHARD_ANSWERS = 2
"""The samples of a shard, all blocks together, fill so many answers of the largest size."""

FIRST_BLOCK = DAY // 2
"""The newest block is between this and a day and a half long."""

BYTES_PER_SAMPLE = 31
BYTES_PER_SERIES = 112
"""What an answer takes, measured on Prometheus 3 with three labels."""

NAME_ENDS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""What the name of a pod can end in."""

FEW_POINTS = 12
"""Below so many points of time the labels make up much of an answer."""

CACHED_POINTS = 1024
"""Points of a series that Trickster keeps by default."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Target:
    """A workload whose history is wanted."""

    namespace: str
    kind: str
    name: str
    series: int = 2
    """Containers that it had in the time asked for, all its pods together; a guess is good enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one query may ask for."""

    points: int = MOST_POINTS
    samples: int = MOST_SAMPLES


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One query: a resource of a shard's containers on a part of the grid."""

    resource: str
    shard: Shard
    grid: Grid
    series: int

    @property
    def samples(self) -> int:
        """Samples that the answer has at most."""
        return self.series * self.grid.points

    @property
    def expected_bytes(self) -> int:
        """Size of the answer."""
        return self.series * BYTES_PER_SERIES + self.samples * BYTES_PER_SAMPLE

    def text(self, names: Names, *, peaks: bool) -> str:
        """The query."""
        if self.resource == CPU:
            return queries.cpu_history(names, self.shard, step=self.grid.step)
        return queries.memory_history(names, self.shard, step=self.grid.step, peaks=peaks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All queries of one load, in the order in which they are sent."""

    grid: Grid
    shards: tuple[tuple[Shard, int], ...]
    """Each shard with the series that are expected of it."""
    limits: Limits

    def pieces(self) -> Iterator[Piece]:
        """The newest block of every shard, then the older ones of each shard in turn."""
        rest: list[Piece] = []
        for shard, series in self.shards:
            newest, *older = self._blocks(series)
            yield from _both(shard, newest, series)
            rest.extend(piece for block in older for piece in _both(shard, block, series))
        yield from rest

    def _blocks(self, series: int) -> list[Grid]:
        """Blocks within both limits, the newest first."""
        points = max(min(self.limits.points, self.limits.samples // max(series, 1)), 1)
        first = min(FIRST_BLOCK, self.limits.points * self.grid.step)
        whole = blocks(self.grid, first=first, points=points)
        return [part for block in whole for part in _at_most(block, self.limits.points)]

    def notes(self) -> Iterator[str]:
        """What the reader of a plan should know."""
        if self.grid.points > CACHED_POINTS:
            yield (
                f"{self.grid.points} points a series: a Trickster in between keeps its newest "
                f"{CACHED_POINTS} by default (timeseries_retention_factor), and fetches the others each time"
            )


def _both(shard: Shard, grid: Grid, series: int) -> list[Piece]:
    return [Piece(resource=one, shard=shard, grid=grid, series=series) for one in RESOURCES]


def _at_most(grid: Grid, points: int) -> list[Grid]:
    """*grid* in parts of at most *points* points, the newest first."""
    parts: list[Grid] = []
    end = grid.end
    while end >= grid.start:
        start = max(end - (points - 1) * grid.step, grid.start)
        parts.append(Grid(start, end, grid.step))
        end = start - grid.step
    return parts


def plan(targets: Iterable[Target], grid: Grid, limits: Limits | None = None) -> Plan:
    """The plan for *targets*; the same targets give the same plan in any order."""
    limits = limits or Limits()
    # One block of a day has to fit into an answer, and a shard's whole history into a part of the memory.
    points_a_day = min(max(DAY // grid.step, 1), max(grid.points, 1), limits.points)
    whole = SHARD_ANSWERS * limits.samples // max(grid.points, 1)
    most_series = max(min(limits.samples // points_a_day, whole), 1)
    by_namespace: dict[str, list[Target]] = {}
    for target in sorted(targets):
        by_namespace.setdefault(target.namespace, []).append(target)
    shards: list[tuple[Shard, int]] = []
    small: list[tuple[str, int]] = []
    for namespace, members in by_namespace.items():
        series = sum(member.series for member in members)
        if series <= most_series:
            small.append((namespace, series))
        else:
            shards.extend(_split_namespace(namespace, members, most_series))
    shards.extend(_packed(small, most_series))
    return Plan(grid=grid, shards=tuple(sorted(shards)), limits=limits)


def _packed(small: Sequence[tuple[str, int]], most: int) -> Iterator[tuple[Shard, int]]:
    """Namespaces that fit in one query each, several to a query.

    A hash says which go together: a namespace that comes, grows or goes leaves the other queries, and what
    caches know of them, as they are.
    """
    count = 1
    while True:
        groups: dict[int, list[tuple[str, int]]] = {}
        for namespace, series in small:
            groups.setdefault(crc32(namespace.encode()) % count, []).append((namespace, series))
        sums = [sum(series for _, series in group) for group in groups.values()]
        if max(sums, default=0) <= most or count > 16 * len(small):
            break
        count *= 2
    for group, total in zip(groups.values(), sums, strict=True):
        yield Shard(namespaces=tuple(namespace for namespace, _ in group)), total


def _split_namespace(namespace: str, members: Sequence[Target], most: int) -> Iterator[tuple[Shard, int]]:
    """By workload where its pods are known by name; the others' pods in a shard that excludes these."""
    known: dict[str, int] = {}  # workloads of one name, whatever their kind, have their pods in one query
    others = 0
    for member in members:
        if member.kind in WELL_KNOWN:
            known[member.name] = known.get(member.name, 0) + member.series
        else:
            others += member.series
    prefixes: list[str] = []
    total = 0
    for name, series in sorted(known.items()):
        if prefixes and total + series > most:
            yield from _fitting(Shard(namespaces=(namespace,), prefixes=tuple(prefixes)), total, most)
            prefixes, total = [], 0
        prefixes.append(name)
        total += series
    if prefixes:
        yield from _fitting(Shard(namespaces=(namespace,), prefixes=tuple(prefixes)), total, most)
    if others:
        yield from _fitting(Shard(namespaces=(namespace,), excluded=tuple(sorted(known))), others, most)


def _fitting(shard: Shard, series: int, most: int) -> Iterator[tuple[Shard, int]]:
    """*shard*, cut by the ends of names until its parts are small enough."""
    parts = min(-(-series // most), len(NAME_ENDS))
    if parts == 1:
        yield shard, series
        return
    bounds = [round(part * len(NAME_ENDS) / parts) for part in range(parts + 1)]
    for low, high in pairwise(bounds):
        yield replace(shard, tail=NAME_ENDS[low:high]), -(-series // parts)


def smaller(piece: Piece) -> tuple[Piece, ...]:
    """*piece* in two halves, the newer first; none when it cannot be cut further.

    Its time is cut while an answer is mostly samples, else its pods, of which each costs its labels again.
    """
    if piece.grid.points >= FEW_POINTS:
        return _half_times(piece)
    return _half_pods(piece) or (_half_times(piece) if piece.grid.points > 1 else ())


def _half_times(piece: Piece) -> tuple[Piece, ...]:
    older, newer = piece.grid.halves()
    return replace(piece, grid=newer), replace(piece, grid=older)


def _half_pods(piece: Piece) -> tuple[Piece, ...]:
    shard = piece.shard
    if len(shard.namespaces) > 1:
        parts = [replace(shard, namespaces=part) for part in _halves(shard.namespaces)]
    elif len(shard.prefixes) > 1:
        parts = [replace(shard, prefixes=part) for part in _halves(shard.prefixes)]
    elif len(shard.tail or NAME_ENDS) > 1 and piece.series > 1:
        parts = [replace(shard, tail="".join(part)) for part in _halves(tuple(shard.tail or NAME_ENDS))]
    else:
        return ()
    return tuple(replace(piece, shard=part, series=-(-piece.series // 2)) for part in parts)


def _halves(values: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    middle = len(values) // 2
    return values[:middle], values[middle:]
