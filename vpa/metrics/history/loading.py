"""Loads history: newest days first, whatever fails again later, everything checked and attributed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from vpa.metrics.history.attribution import Attribution, Controller, PodKey, Workload
from vpa.metrics.history.batches import COMPLETE, NEWEST, HistoryBatch, batch
from vpa.metrics.history.fetching import Doubts, Fetcher, decoded, pods_expected
from vpa.metrics.history.grids import Grid
from vpa.metrics.history.owners import LabelsError, Owners, labels_as_upstream
from vpa.metrics.history.planning import CPU, Limits, Piece, Plan, Target, plan, smaller
from vpa.metrics.history.tables import Counts, Table
from vpa.metrics.prometheus import names as naming
from vpa.metrics.prometheus import queries
from vpa.metrics.prometheus.client import Client, Query
from vpa.metrics.prometheus.errors import NoAddressError, PrometheusError
from vpa.metrics.prometheus.names import Names
from vpa.metrics.prometheus.queries import Shard
from vpa.objects.workloads import WELL_KNOWN
from vpa.rules import Rules

FIRST_WAIT = 5.0
LONGEST_WAIT = 300.0
"""Seconds before what failed is asked for again: doubled each time up to the longest, with jitter."""

EMPTY_TRIES = 3
"""An answer without any series is asked for so often where the cluster has pods: a Prometheus that is just
starting, or a proxy that hides an error, looks like that."""

MOST_PROBLEMS = 20
"""So many different errors are kept."""

Deliver = Callable[[HistoryBatch], Awaitable[None]]


class HistoryError(Exception):
    """History could not be loaded and is not tried again (``upstream``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What the cluster knows that helps to read the past."""

    workloads: tuple[Workload, ...] = ()
    """Workloads, with their selectors, that pods of the past may have belonged to."""
    live: Mapping[PodKey, Controller] = field(default_factory=dict)
    """Top-most controller of each pod that exists."""
    started: Mapping[PodKey, float] = field(default_factory=dict)
    """When each running pod started, seconds since the epoch."""


@dataclass(slots=True)
class Progress:
    """How far a load is; the same object all along."""

    pieces: int = 0
    done: int = 0
    waiting: int = 0
    """Pieces that failed and are asked for again."""
    lost: int = 0
    """Pieces that were given up, because asking again would not help; `problems` says why."""
    tries: int = 0
    counts: Counts = field(default_factory=Counts)
    doubts: Doubts = field(default_factory=Doubts)
    notes: list[str] = field(default_factory=list)
    """What was found out about names of metrics and labels."""
    problems: list[str] = field(default_factory=list)
    """Errors that last, newest last."""
    error: PrometheusError | None = None
    """The newest error of a query for usage."""


@dataclass(slots=True)
class _Group:
    """What is delivered together: a shard and its slices by the ends of names."""

    targets: tuple[Target, ...]
    table: Table
    newest: list[Piece] = field(default_factory=list)
    older: list[Piece] = field(default_factory=list)
    empty: int = 0
    said_newest: bool = False

    @property
    def open(self) -> bool:
        return bool(self.newest or self.older)


@dataclass(kw_only=True, slots=True)
class HistoryLoader:
    """Loads the history of targets through one client."""

    client: Client
    names: Names
    rules: Rules
    limits: Limits = field(default_factory=Limits)
    concurrency: int = 4
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random
    watch: Callable[[Progress], None] = lambda progress: None
    """Called whenever something has changed."""

    async def load(self, targets: Iterable[Target], grid: Grid, *, past: Past, deliver: Deliver) -> Progress:
        """Load all history of *targets* on *grid*; batches go to *deliver*, one at a time.

        Under ``safe`` it returns when all is loaded or will never be, however long Prometheus is away; cancel
        it to stop. Under ``upstream`` the first error is a `HistoryError`, and nothing is delivered.
        """
        run = _Run(self, plan(targets, grid, self.limits), tuple(targets), past, deliver)
        await run.all()
        return run.progress


class _Run:
    """One load."""

    def __init__(
        self, loader: HistoryLoader, whole: Plan, targets: tuple[Target, ...], past: Past, deliver: Deliver
    ) -> None:
        self.loader = loader
        self.progress = Progress()
        self.grid = whole.grid
        self.groups = _groups(whole, targets)
        self.progress.pieces = sum(len(one.newest) + len(one.older) for one in self.groups)
        self.attribution = Attribution(workloads=past.workloads, live=past.live)
        self.owners = Owners(
            client=loader.client,
            names=loader.names,
            attribution=self.attribution,
            window=whole.grid.points * whole.grid.step,
            at=whole.grid.end,
            problems=self.progress.problems,
        )
        self.fetcher = Fetcher(
            client=loader.client,
            names=loader.names,
            rules=loader.rules,
            expected=pods_expected(past.started),
            doubts=self.progress.doubts,
        )
        self._deliver = deliver
        self._delivering = asyncio.Lock()
        self._failed: list[tuple[_Group, Piece]] = []

    async def all(self) -> None:
        """Try, wait, try again."""
        if not self.loader.rules.history_survives_errors:
            return await self._as_upstream()
        wait = FIRST_WAIT
        while any(group.open for group in self.groups):
            before = self.progress.done
            await self._once()
            self.progress.tries += 1
            self.progress.waiting = sum(len(one.newest) + len(one.older) for one in self.groups)
            self.loader.watch(self.progress)
            if not self.progress.waiting:
                break
            wait = FIRST_WAIT if self.progress.done > before else min(wait * 2, LONGEST_WAIT)
            await self.loader.sleep(wait * (0.5 + self.loader.jitter()))
        return None

    async def _as_upstream(self) -> None:
        """All or nothing."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for piece in [one for group in self.groups for one in group.newest + group.older]:
                    tasks.create_task(self._fetch_or_fail(piece))
        except* HistoryError as errors:
            raise errors.exceptions[0] from None
        if self.progress.counts.nameless:
            raise HistoryError("cannot get usage history: cannot get container ID from labels of a series")
        try:
            await labels_as_upstream(
                self.loader.client, self.loader.names, self.attribution, at=self.grid.end
            )
        except LabelsError as error:
            raise HistoryError(str(error)) from None
        for group in self.groups:
            await self._hand_over(group, COMPLETE)

    async def _fetch_or_fail(self, piece: Piece) -> None:
        group = next(one for one in self.groups if piece in one.newest or piece in one.older)
        try:
            await self._fetch(group, piece)
        except PrometheusError as error:
            text = f"cannot get usage history: cannot get timeseries for {piece.resource}: {error}"
            raise HistoryError(text) from None

    async def _once(self) -> None:
        """One pass over all that is missing; errors leave their piece for the next pass."""
        self._failed.clear()
        try:
            await self._learn_names()
        except PrometheusError as error:
            self._problem(error)
            return
        for stage in ("newest", "older"):
            todo = iter([(group, piece) for group in self.groups for piece in list(getattr(group, stage))])
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self.loader.concurrency):
                    tasks.create_task(self._work(todo))
        for group, piece in self._failed:
            self._cut(group, piece)

    async def _learn_names(self) -> None:
        """Look which labels and jobs the cluster has; also shows that somebody answers at all."""
        names = self.loader.names
        query = Query.instant(queries.probe(names), at=self.grid.end)
        matrix = await decoded(await self.loader.client.ask(query), query)
        names, note = naming.found(names, matrix.labels)
        self.fetcher.names = self.owners.names = names
        if note and note not in self.progress.notes:
            self.progress.notes.append(note)

    def _cut(self, group: _Group, piece: Piece) -> None:
        """Let what failed, though somebody answers, be asked for in smaller pieces the next time.

        Trickster 2.0.5 breaks the connection when the first of several fetches is too big for it.
        """
        parts = smaller(piece)
        for pieces in (group.newest, group.older):
            if parts and piece in pieces:
                at = pieces.index(piece)
                pieces[at : at + 1] = parts
                self.progress.pieces += len(parts) - 1

    async def _work(self, todo: Iterator[tuple[_Group, Piece]]) -> None:
        for group, piece in todo:
            try:
                await self._fetch(group, piece)
            except PrometheusError as error:
                self._problem(error)
                if not error.transient:
                    self._forget(group, piece)
                    self.progress.lost += 1
                elif not isinstance(error, NoAddressError):
                    self._failed.append((group, piece))
            await self._after(group)
            self.loader.watch(self.progress)

    async def _fetch(self, group: _Group, piece: Piece) -> None:
        parts = await self.fetcher.fetch(piece)
        if piece in group.newest and not any(part.keys for part in parts) and self._must_have_pods(piece):
            group.empty += 1
            if group.empty < EMPTY_TRIES:
                return
        for part in parts:
            group.table.add(piece.resource, part)
            self.progress.counts.add(part.counts)
            await asyncio.sleep(0)
        self._forget(group, piece)
        self.progress.done += 1

    def _must_have_pods(self, piece: Piece) -> bool:
        return piece.resource == CPU and self.fetcher.expected(piece) > 0

    def _forget(self, group: _Group, piece: Piece) -> None:
        for pieces in (group.newest, group.older):
            if piece in pieces:
                pieces.remove(piece)

    def _problem(self, error: PrometheusError) -> None:
        self.progress.error = error
        problems = self.progress.problems
        if str(error) not in problems:
            problems.append(str(error))
            del problems[:-MOST_PROBLEMS]

    async def _after(self, group: _Group) -> None:
        """Hand over what has become ready."""
        async with self._delivering:
            if not group.open:
                stage = COMPLETE
            elif not group.newest and not group.said_newest:
                stage = NEWEST
            else:
                return
            if group.table is _DELIVERED:
                return
            group.said_newest = True
            await self.owners.learn({(ns, pod) for ns, pod, _ in group.table.keys})
            await self._hand_over(group, stage)
            if stage == COMPLETE:
                group.table = _DELIVERED

    async def _hand_over(self, group: _Group, stage: str) -> None:
        # Sorting a million points takes a while: in a thread, numpy lets the event loop run meanwhile.
        made = await asyncio.to_thread(
            batch,
            group.table.copy(),
            stage=stage,
            targets=group.targets,
            verdict=self.attribution.of,
            rules=self.loader.rules,
        )
        await self._deliver(made)


_DELIVERED = Table(Grid(0, 0, 1))
"""Stands for the table of a group that is delivered, so that the memory is free again."""


def _groups(whole: Plan, targets: tuple[Target, ...]) -> list[_Group]:
    """The shards of a plan, slices by the ends of names together, with their pieces."""
    by_namespace: dict[str, list[Target]] = {}
    for target in targets:
        by_namespace.setdefault(target.namespace, []).append(target)
    groups: dict[Shard, _Group] = {}
    for piece in whole.pieces():
        shard = replace(piece.shard, tail="")
        if shard not in groups:
            nearby = (one for name in shard.namespaces for one in by_namespace.get(name, ()))
            groups[shard] = _Group(targets=tuple(_asked_with(shard, nearby)), table=Table(whole.grid))
        group = groups[shard]
        if piece.grid.end == whole.grid.end:
            group.newest.append(piece)
        else:
            group.older.append(piece)
    return list(groups.values())


def _asked_with(shard: Shard, targets: Iterable[Target]) -> Iterator[Target]:
    """Those of *targets*, all of the shard's namespaces, whose pods are asked for with it."""
    prefixes = frozenset(shard.prefixes)
    for target in targets:
        known = target.kind in WELL_KNOWN
        if (known and target.name in prefixes) if prefixes else not (known and shard.excluded):
            yield target
