"""Reads history from Prometheus for VPAs that wait for it, in the background, however long it takes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field

from recommender.autoscalers import HistoryState, Served, VpaKey
from recommender.engine import Engine
from recommender.merging import Join, drop_initial, settle
from recommender.metrics import RecommenderMetrics
from recommender.mirrors import Mirrors
from recommender.records import PodRecord
from recommender.settings import PROMETHEUS, Settings
from vpa.cluster.events import NORMAL, WARNING
from vpa.durations import SECOND
from vpa.histograms import NEVER
from vpa.matching import TargetKey
from vpa.metrics.history.attribution import Controller, PodKey, Workload
from vpa.metrics.history.batches import COMPLETE, HistoryBatch
from vpa.metrics.history.grids import Grid, history_grid
from vpa.metrics.history.loading import HistoryError, HistoryLoader, Past, Progress
from vpa.metrics.history.planning import Target
from vpa.metrics.prometheus import names
from vpa.metrics.prometheus.access import Access
from vpa.metrics.prometheus.client import TOO_SLOW, Client
from vpa.metrics.prometheus.errors import NoAddressError, PrometheusError
from vpa.objects.autoscalers import VerticalPodAutoscaler

log = logging.getLogger(__name__)

PATIENCE = 1800.0
"""Seconds after which VPAs wait no longer for history that does not come: a Prometheus that is away for
ever must not keep the updater from working for ever. It is still read should it come later."""
FIRST_IMPRESSION = 30.0
"""Seconds for which a VPA without a recommendation gets none from thin data."""
GATHERING = 0.2
"""Seconds in which news of history are gathered before they are published."""
ROLLOUTS = 2
"""A guess: each container had a predecessor in the time asked for."""
HIGHEST = 8
"""Owners of owners are followed so far."""

Emit = Callable[[VerticalPodAutoscaler, str, str, str], None]
"""An event about a VPA: reason, message, type."""
Publish = Callable[[Collection[VpaKey]], Awaitable[None]]


@dataclass(slots=True)
class _Load:
    """One run of the loader."""

    targets: frozenset[TargetKey]
    progress: Progress = field(default_factory=Progress)
    task: asyncio.Task[None] | None = None
    said: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Kind of error → what was said of it."""


class HistoryReader:
    """Reads history; without ``--storage=prometheus`` it does nothing."""

    def __init__(
        self,
        settings: Settings,
        client: Client | None,
        engine: Engine,
        mirrors: Mirrors,
        *,
        emit: Emit,
        now: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """*now*: nanoseconds; *clock*: monotonic seconds."""
        self._settings = settings
        self._client = client
        self._engine = engine
        self._mirrors = mirrors
        self._emit = emit
        self._now = now
        self._clock = clock
        self._since: dict[VpaKey, float] = {}
        self._loads: list[_Load] = []
        self._done: set[TargetKey] = set()
        self._changed: set[VpaKey] = set()
        self._wake = asyncio.Event()

    # VPAs

    def expect(self, served: Served) -> None:
        """A VPA came, or has another target: its history is to be read."""
        if self._client is not None:
            for container in list(served.initial):
                drop_initial(self._engine.tracker, served, container)
            served.impressions.clear()
            served.history = HistoryState.FIRST
            self._since[served.key] = self._clock()

    def forget(self, served: Served) -> None:
        """The VPA is not ours any more."""
        self._since.pop(served.key, None)
        if served.controller is not None and not self._engine.autoscalers.at(served.controller):
            self._done.discard(served.controller)

    # Begin

    def start(self) -> None:
        """Once in each tick: begin to read what VPAs wait for, and wait no longer than is good."""
        if self._client is None:
            return
        asked = {target for load in self._loads for target in load.targets}
        wanted: set[TargetKey] = set()
        for served in self._engine.autoscalers:
            if served.history is HistoryState.SETTLED or not served.resolved or served.fetching:
                continue
            target = served.controller
            if target is None or (target in self._done and target not in asked and self._has_rows(target)):
                self._settle(served)
            else:
                self._bound(served)
                if target not in asked:
                    wanted.add(target)
        if wanted:
            self._begin(self._client, wanted)

    def _has_rows(self, target: TargetKey) -> bool:
        tracker = self._engine.tracker
        return not self._engine.autoscalers.by_controller or any(group.rows for group in tracker.at(target))

    def _bound(self, served: Served) -> None:
        """A first recommendation waits a moment only, and nobody waits for ever."""
        waited = self._clock() - self._since.setdefault(served.key, self._clock())
        state = served.history
        if waited > PATIENCE and state is not HistoryState.LATE:
            served.history = HistoryState.LATE
            problems = [text for load in self._loads for text in load.progress.problems]
            why = problems[-1] if problems else "no answer has come"
            text = f"History is not waited for any longer, but still read should it come: {why}"
            self._emit(served.vpa, "HistoryUnavailable", text, WARNING)
        elif waited > FIRST_IMPRESSION and state is HistoryState.FIRST and not _has_recommendation(served):
            served.history = HistoryState.READING
        if served.history is not state:
            self._engine.autoscalers.dirty.add(served.key)

    def _begin(self, client: Client, wanted: set[TargetKey]) -> None:
        for load in list(self._loads):
            if load.progress.tries and not load.progress.done and load.task is not None:
                load.task.cancel()  # it has got nothing yet: one load asks for all
                self._loads.remove(load)
                wanted |= load.targets
        load = _Load(frozenset(wanted))
        self._loads.append(load)
        load.task = asyncio.create_task(self._read(client, load), name="history")

    # Read

    async def _read(self, client: Client, load: _Load) -> None:
        targets = sorted(load.targets)
        settings = self._settings.history
        loader = HistoryLoader(
            client=client,
            names=names.from_flags(settings, self._settings.given),
            rules=self._settings.rules,
            concurrency=settings.prometheus_query_concurrency,
            watch=lambda progress: self._watch(load, progress),
        )
        log.info("Reading history", extra={"workloads": len(targets)})
        started = self._clock()
        try:
            await loader.load(
                [self._asked(target) for target in targets],
                self._grid(),
                past=self._past({target.namespace for target in targets}),
                deliver=self._deliver,
            )
        except HistoryError as error:
            log.warning("History is left out: %s", error)
            self._give_up(targets, str(error))
        except Exception as error:
            log.exception("Reading history failed unexpectedly")
            self._give_up(targets, f"{type(error).__name__}: {error}")
        finally:
            if load in self._loads:
                self._loads.remove(load)
        self._report(load, self._clock() - started)

    def _grid(self) -> Grid:
        history = self._settings.history
        return history_grid(
            now=self._now() / SECOND,
            length=int(history.history_length.seconds),
            step=int(history.history_resolution.seconds),
        )

    def _asked(self, target: TargetKey) -> Target:
        groups = self._engine.tracker.at(target)
        present = sum(count for group in groups for count in group.containers.values())
        series = max(present, 1) * ROLLOUTS
        return Target(namespace=target.namespace, kind=target.kind, name=target.name, series=series)

    def _watch(self, load: _Load, progress: Progress) -> None:
        """What goes wrong is said when it does, once for each kind: it may go on for long."""
        load.progress = progress
        error = progress.error
        if error is not None and (kind := _kind(error)) not in load.said:
            load.said[kind] = str(error)
            log.warning("Reading history: %s", error)

    def _past(self, namespaces: set[str]) -> Past:
        """What the cluster knows of these namespaces."""
        workloads = tuple(
            Workload(record.key.namespace, record.key.kind, record.key.name, record.selector)
            for mirror in self._mirrors.workloads.values()
            for record in mirror.values()
            if record.key.namespace in namespaces and record.owner is None
        )
        live: dict[PodKey, Controller] = {}
        started: dict[PodKey, float] = {}
        for key, tracked in self._engine.tracker.pods.items():
            if key[0] not in namespaces or tracked.gone:
                continue
            record = tracked.record
            group = tracked.group.key
            top = (group.kind, group.name) if group.kind else self._top(record)
            if top is not None:
                live[key] = top
            if record.started != NEVER and not record.finished:
                started[key] = record.started / SECOND
        return Past(workloads=workloads, live=live, started=started)

    def _top(self, record: PodRecord) -> Controller | None:
        """The top-most controller of a pod, as far as it is known."""
        if record.owner is None:
            return None
        kind, name = record.owner.kind, record.owner.name
        for _ in range(HIGHEST):
            mirror = self._mirrors.workloads.get(kind)
            found = mirror.get((record.namespace, name)) if mirror is not None else None
            if found is None or found.owner is None:
                break
            kind, name = found.owner.kind, found.owner.name
        return kind, name

    # Take in

    async def _deliver(self, batch: HistoryBatch) -> None:
        """Bring a batch into the rows."""
        engine = self._engine
        join = Join(engine.tracker, engine.autoscalers, batch, now=self._now())
        try:
            for _ in join.feed():
                await asyncio.sleep(0)
            if batch.stage == COMPLETE:
                self._complete(batch, join)
            else:
                keys = join.impress()
                for key in keys:
                    served = engine.autoscalers.served[key]
                    if served.history is HistoryState.FIRST:
                        served.history = HistoryState.READING
                self._tell(keys)
        finally:
            join.close()

    def _complete(self, batch: HistoryBatch, join: Join) -> None:
        readers = {target: join.readers(target) for target in join.targets}
        keys, rows = join.complete()
        self._engine.lifetimes.touch(rows, self._now())
        self._done.update(join.targets)
        loaded = batch.loaded()
        for target, some in readers.items():
            for served in some:
                self._since.pop(served.key, None)
                self._emit(served.vpa, "HistoryLoaded", loaded[target].words(), NORMAL)
        self._tell(keys)

    def _settle(self, served: Served) -> None:
        self._since.pop(served.key, None)
        settle(self._engine.tracker, self._engine.autoscalers, served, now=self._now())
        self._tell({served.key})

    def _give_up(self, targets: Collection[TargetKey], why: str) -> None:
        """What these VPAs wait for does not come."""
        autoscalers = self._engine.autoscalers
        self._done.update(targets)
        for key in [key for target in targets for key in autoscalers.at(target)]:
            served = autoscalers.served[key]
            if served.history is not HistoryState.SETTLED:
                self._emit(served.vpa, "HistoryUnavailable", f"There is no history: {why}", WARNING)
                self._settle(served)

    def _report(self, load: _Load, seconds: float) -> None:
        progress = load.progress
        for note in (*progress.notes, *progress.problems):
            if note not in load.said.values():
                log.info("%s", note)
        log.info(
            "History is read",
            extra={
                "workloads": len(load.targets),
                "queries": progress.done,
                "givenUp": progress.lost,
                "points": progress.counts.points,
                "leftOut": progress.counts.words(),
                "incompleteAnswers": progress.doubts.answers,
                "mended": progress.doubts.mended,
                "seconds": round(seconds, 1),
            },
        )

    # Publish

    def _tell(self, keys: Collection[VpaKey]) -> None:
        self._changed.update(keys)
        self._wake.set()

    async def run(self, publish: Publish) -> None:
        """Publish what history changes as it comes. Runs until cancelled; then nothing is read any more."""
        try:
            while True:
                await self._wake.wait()
                await asyncio.sleep(GATHERING)
                self._wake.clear()
                keys, self._changed = self._changed, set()
                await publish(keys)
        finally:
            tasks = [load.task for load in self._loads if load.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _has_recommendation(served: Served) -> bool:
    status = served.vpa.status
    return status is not None and status.recommendation is not None


def _kind(error: PrometheusError) -> tuple[str, ...]:
    """What makes two errors the same for whoever reads the log."""
    causes = error.causes if isinstance(error, NoAddressError) else ()
    return tuple(type(one).__name__ for one in (error, *causes))


@contextlib.asynccontextmanager
async def opened(settings: Settings, metrics: RecommenderMetrics) -> AsyncIterator[Client | None]:
    """The client that *settings* ask for; None where history does not come from Prometheus."""
    history = settings.history
    if history.storage != PROMETHEUS:
        yield None
        return
    async with client_of(settings, metrics) as client:
        yield client


def client_of(
    settings: Settings, metrics: RecommenderMetrics, *, limit: float | None = None, too_slow: str = TOO_SLOW
) -> Client:
    """A client for Prometheus that keeps upstream's metrics of its requests.

    *limit*: seconds in which an answer must have come even where ``--prometheus-query-timeout`` is longer;
    *too_slow*: what is said of one that has not.
    """

    def note(code: str, method: str, seconds: float) -> None:
        metrics.prometheus_requests.inc(code=code, method=method)
        metrics.prometheus_duration.observe(seconds, code=code, method=method)

    history = settings.history
    timeout = history.prometheus_query_timeout / SECOND
    return Client(
        Access.from_flags(history),
        timeout=timeout if limit is None else min(timeout, limit),
        concurrency=history.prometheus_query_concurrency,
        too_slow=too_slow,
        note=note,
    )
