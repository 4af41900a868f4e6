"""The recommender's loop: read usage, decide, write, report.

News from the cluster is taken in as it comes (`recommender.news`); a tick reads usage and looks at everything
once. A kill for lack of memory does not wait for the tick.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from recommender.autoscalers import Served, VpaKey
from recommender.decisions import Verdict
from recommender.engine import Engine
from recommender.history import HistoryReader
from recommender.mirrors import Mirrors
from recommender.news import News
from recommender.placement import Placement
from recommender.publisher import Publisher
from recommender.saving import Saver
from recommender.settings import Settings
from recommender.sources import Source
from recommender.troubles import Patience, Troubles
from recommender.upkeep import Upkeep
from vpa.cluster import reads
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError
from vpa.cluster.events import WARNING, Recorder, Reference
from vpa.cluster.reflectors import Key
from vpa.cluster.resources import VERTICAL_AUTOSCALERS
from vpa.cluster.targets import Targets
from vpa.durations import SECOND
from vpa.matching import TargetKey
from vpa.objects.meta import PartialObject
from vpa.objects.workloads import WELL_KNOWN
from vpa.scopes import scope_label

log = logging.getLogger(__name__)

GATHERING = 0.2
"""Seconds in which kills are gathered before they are acted on: replicas die together."""
TARGETS_AT_A_TIME = 10
PATIENCE = 5.0
"""Seconds for which a tick waits for controllers to be looked up; the rest comes in later ones."""


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """The time: wall clock in nanoseconds, and seconds that never jump."""

    now: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic


class Recommender:
    """One running recommender; `recommender.assembly` puts it together."""

    def __init__(
        self,
        settings: Settings,
        *,
        connection: Connection,
        mirrors: Mirrors,
        engine: Engine,
        placement: Placement,
        targets: Targets,
        news: News,
        upkeep: Upkeep,
        history: HistoryReader,
        saver: Saver,
        publisher: Publisher,
        recorder: Recorder,
        source: Source,
        clocks: Clocks,
    ) -> None:
        self.engine = engine
        self._settings = settings
        self._connection = connection
        self._mirrors = mirrors
        self._placement = placement
        self._targets = targets
        self._news = news
        self._upkeep = upkeep
        self._history = history
        self._saver = saver
        self._publisher = publisher
        self._recorder = recorder
        self._source = source
        self._clocks = clocks
        self._troubles = Troubles()
        self._scoped: set[TargetKey] = set()
        self._told: set[tuple[Key, str]] = set()
        self._usage_at = clocks.monotonic()
        self._resolving, self._placing = Patience(PATIENCE), Patience(PATIENCE)

    async def tick(self) -> None:
        """One round: read, decide, write, report."""
        step = self.engine.metrics.execution_latency.time
        with step(step="total"):
            with step(step="LoadVPAs"):
                await self._resolving.wait_for(self._resolve_targets)
            with step(step="LoadPods"):
                await self._placing.wait_for(self._place_pods)
                self._news.add_kills(await self._upkeep.load_checkpoints())
                self._history.start()
            with step(step="LoadMetrics"):
                await self._read_usage()
                self._record_kills()
            with step(step="DeleteRemovedPods"):
                self.engine.tracker.sweep()
            with step(step="UpdateVPAs"):
                verdict = self.engine.decide(now=self._clocks.now(), clock=self._clocks.monotonic())
                await self._carry_out(verdict)
                self.engine.decisions.publish_figures(verdict.run)
            with step(step="MaintainCheckpoints"):
                if self._settings.writes_checkpoints:
                    await self._upkeep.maintain_checkpoints(
                        clock=self._clocks.monotonic(), now=self._clocks.now()
                    )
            with step(step="GarbageCollect"):
                if self._upkeep.forget_history(clock=self._clocks.monotonic(), now=self._clocks.now()):
                    self._placement.forget_controllers()
        await self._tell_of_poison()

    async def act_on_kills(self) -> None:
        """Whenever containers were killed: learn from it and write at once. Runs until cancelled."""
        while True:
            await self._news.killed.wait()
            await asyncio.sleep(GATHERING)
            self._news.killed.clear()
            await self._placing.wait_for(self._place_pods)
            concerned = self._record_kills()
            if concerned:
                await self.show(concerned)

    async def show(self, keys: Collection[VpaKey]) -> None:
        """Write what has just come to be known of these VPAs."""
        now, clock = self._clocks.now(), self._clocks.monotonic()
        await self._carry_out(self.engine.decide(now=now, clock=clock, keys=keys), urgent=True)

    def _record_kills(self) -> set[VpaKey]:
        kills, self._news.kills = self._news.kills, []
        concerned: set[VpaKey] = set()
        for kill in kills:
            found = self.engine.record(kill, self._clocks.now())
            for key in found:
                self._saver.hurry((*key, kill.container))
            concerned |= found
            log.info(
                "A container was killed for lack of memory",
                extra={
                    "pod": f"{kill.namespace}/{kill.pod}",
                    "container": kill.container,
                    "memory": kill.memory,
                    "vpas": len(found),
                },
            )
        return concerned

    # Read

    async def _resolve_targets(self) -> None:
        served = self.engine.autoscalers.served
        due = self._news.unresolved | {key for key, one in served.items() if _may_change_unseen(one)}
        self._news.unresolved = set()
        slots = asyncio.Semaphore(TARGETS_AT_A_TIME)

        async def resolve(one: Served) -> None:
            async with slots:
                target = await self._targets.resolve(one.key[0], one.vpa.spec.target_ref)
            if served.get(one.key) is one:
                self.engine.autoscalers.resolved(one, target)

        await asyncio.gather(*(resolve(served[key]) for key in due if key in served))
        if due:
            self._placement.consider_again()

    async def _place_pods(self) -> None:
        scoped = {
            one.controller
            for one in self.engine.autoscalers
            if one.controller is not None and scope_label(one.vpa)
        }
        if scoped:
            await self._mirrors.need_nodes()
            self._placement.consider_again()
        for target in scoped | self._scoped:  # labels of nodes change, and scopes come and go
            self._placement.rescope(target)
        self._scoped = scoped
        await self._placement.settle()

    async def _read_usage(self) -> None:
        source, metrics = self._source, self.engine.metrics
        try:
            reading = await source.poll()
        except Exception as error:  # whatever a source raises, the loop goes on without usage
            metrics.usage_responses.inc(is_error="true", client_name=source.name)
            if self._troubles.bad(source.title, error) and not isinstance(error, ClusterError):
                log.debug("%s failed", source.title, exc_info=True)
        else:
            metrics.usage_responses.inc(is_error="false", client_name=source.name)
            fed = self.engine.feed(reading, self._clocks.now())
            if len(reading) or not self.engine.tracker.pods:
                self._usage_at = self._clocks.monotonic()
                self._troubles.good(source.title)
            else:
                self._troubles.bad(source.title, "it names no containers, though there are pods")
            if fed.ahead:
                problem = f"{fed.ahead} containers are stamped in the future, so a clock is wrong somewhere"
                self._troubles.bad("Times of usage", problem)
            else:
                self._troubles.good("Times of usage")
        self.engine.own.usage_age.set(self._clocks.monotonic() - self._usage_at)

    def give_up(self) -> None:
        """Cancel what goes on beside the ticks."""
        self._resolving.give_up()
        self._placing.give_up()

    # Write and report

    async def _carry_out(self, verdict: Verdict, *, urgent: bool = False) -> None:
        for key, wanted in verdict.writes.items():
            self._publisher.put(key, wanted, urgent=urgent)
        if not self._settings.rules.spread_checkpoints:  # upstream's ticks end when everything is written
            await self._publisher.wait_idle(self._settings.loop.recommender_interval / SECOND)

    async def _tell_of_poison(self) -> None:
        """VPAs that cannot be read are named in an event of their own."""
        for key, poison in list(self._mirrors.vpas.poison.items()):
            if (key, poison.version) in self._told:
                continue
            try:
                found = await reads.get(
                    self._connection, VERTICAL_AUTOSCALERS, key[1], kind=PartialObject, namespace=key[0]
                )
            except ClusterError:
                continue
            self._told.add((key, poison.version))
            about = Reference.of(VERTICAL_AUTOSCALERS, found.metadata)
            message = f"This VPA is left out because it cannot be read: {poison.problem}"
            self._recorder.emit(about, "Unreadable", message, type=WARNING)


def _may_change_unseen(served: Served) -> bool:
    """Whether the VPA's target is looked up in each tick, because no watch tells of it."""
    ref = served.vpa.spec.target_ref
    return bool(served.problem) or ref is None or ref.kind not in WELL_KNOWN
