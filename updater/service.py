"""The updater's loop: read, decide, act, look what became of it, report.

Watches keep copies of the cluster; a pass looks at all pods of all VPAs once in every interval. Containers
that die do not wait for it, and new pods are looked at as they come: do they carry their target?
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

from updater import standing
from updater.acting import Actor
from updater.deciding import Decider
from updater.features import Features
from updater.metrics import AllMetrics
from updater.mirrors import Mirrors
from updater.news import News, deaths
from updater.ownership import Ownership
from updater.reporting import Reports
from updater.settings import Settings
from updater.surroundings import World
from updater.troubles import Troubles
from vpa import modes
from vpa.disruptions import Managed, Memory, Surroundings
from vpa.durations import SECOND
from vpa.reasons import Reason
from vpa.telemetry import logs
from vpa.telemetry.health import Health
from vpa.updates.breakers import Watched

log = logging.getLogger(__name__)

GATHERING: Final = 0.2
"""Seconds in which news are gathered before they are looked at: replicas die, and come, together."""


class Updater:
    """One running updater; `updater.assembly` puts it together."""

    def __init__(
        self,
        settings: Settings,
        *,
        mirrors: Mirrors,
        ownership: Ownership,
        news: News,
        world: World,
        features: Features,
        decider: Decider,
        actor: Actor,
        reports: Reports,
        memory: Memory,
        metrics: AllMetrics,
        troubles: Troubles,
        health: Health,
        now: Callable[[], datetime],
        stopping: asyncio.Event,
    ) -> None:
        self.memory = memory
        self._settings = settings
        self._rules = settings.rules
        self._mirrors = mirrors
        self._ownership = ownership
        self._news = news
        self._world = world
        self._features = features
        self._decider = decider
        self._actor = actor
        self._reports = reports
        self._metrics = metrics
        self._troubles = troubles
        self._health = health
        self._now = now
        self._stopping = stopping
        self._surroundings: Surroundings | None = None
        self._held_back = False
        """Pods wait for the first replacement to be seen with its target."""
        self._proof = asyncio.Event()
        """It was seen: the pass goes on."""

    # When

    async def run(self) -> None:
        """A pass every interval, the first one after one, until asked to stop."""
        interval = self._settings.loop.updater_interval / SECOND
        loop = asyncio.get_running_loop()
        due = loop.time() + interval
        while True:
            await self._wait(due)
            if self._stopping.is_set():
                return
            started = loop.time()
            try:
                await self.tick()
            except Exception:
                log.exception("A pass failed; the next one comes as usual")
            else:
                self._health.alive()
            if loop.time() - started > interval:
                log.warning("A pass took longer than --updater-interval; some are left out")
            if loop.time() >= due:
                due = max(due + interval, loop.time())

    async def _wait(self, until: float) -> None:
        """Wait for the time, a proof, or the end."""
        waiting = [asyncio.create_task(one.wait()) for one in (self._proof, self._stopping)]
        try:
            timeout = max(0.0, until - asyncio.get_running_loop().time())
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        self._proof.clear()

    async def act_on_deaths(self) -> None:
        """Whenever containers die, or their VPA recommends something new, look at their pods at once."""
        while self._rules.oom_at_once:  # upstream looks in the next pass
            await self._news.urgent.wait()
            await asyncio.sleep(GATHERING)
            owners, keys = self._news.take_urgent()
            try:
                managed = await self._ownership.some(owners)
                managed += await self._ownership.of_keys(keys - {one.key for one in managed})
                sick = [one for one in managed if any(map(deaths, one.pods))]
                if sick:
                    log.log(logs.V1, "Containers die; their pods are looked at", extra={"vpas": len(sick)})
                    await self._pass(sick)
            except Exception:
                log.exception("What died could not be looked at; the next pass will")

    async def look_out(self) -> None:
        """Look at new pods of VPAs whose pods were evicted: do they come with their target?"""
        while True:
            await self._news.arrived.wait()
            await asyncio.sleep(GATHERING)
            new = self._news.take_new()
            waiting = {key for key, one in self.memory.breakers.watched.items() if one.waiting}
            if not waiting or self._surroundings is None:
                continue
            managed = await self._ownership.some(new, among=waiting)
            findings = await self._decider.look(managed, self._surroundings)
            self._reports.found(findings, self._mirrors.vpas)
            if self._held_back and self.memory.breakers.trusts(self._now()):
                self._proof.set()

    # What

    async def begin(self) -> None:
        """Look at everything once without doing anything: what is there is no news."""
        await self._features.refresh()
        await self._ownership.resolve()
        now = self._now()
        for one in await self._ownership.all():
            until = standing.stopped_until(one.vpa)
            if until is not None and until > now and self._rules.break_eviction_loops:
                seen = {pod.metadata.uid for pod in one.pods}
                self.memory.breakers.watched[one.key] = Watched(seen=seen, failures=1, until=until)
        self._news.begin()

    async def tick(self) -> None:
        """One pass over all VPAs."""
        step = self._metrics.loop.execution_latency.time
        with step(step="total"):
            stale = self._mirrors.stale()
            if stale is not None:
                self._troubles.bad("Nothing is done", stale)
                return
            self._troubles.good("Nothing is done")
            await self._features.refresh()
            with step(step="ListVPAs"):
                await self._ownership.resolve()
            with step(step="FilterPods"):
                managed = await self._ownership.all()
            if await self._pass(managed, apart=self._apart(managed)) and self._rules.more_conditions:
                self._reports.without_pods({one.key for one in managed}, self._mirrors.vpas)
            self._forget()

    async def _pass(self, managed: Sequence[Managed], *, apart: Counter[Reason] | None = None) -> bool:
        """Decide, act and report, unless nothing may be done; *apart* counts all other pods there are."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.loop.updater_interval / SECOND
        step = self._metrics.loop.execution_latency.time if apart is not None else _untimed
        if apart is not None:
            self._held_back = False  # one proof, one more pass
        with step(step="AdmissionInit"):
            ready = await self._world.webhook_ready(self._now())
            if not ready and not self._rules.resize_apart_from_eviction:
                log.warning("Admission Controller status is not valid. Skipping update loop")
                return False
            surroundings = self._world.now(webhook_ready=ready)
        with step(step="EvictPods"):
            plan, surroundings, findings = await self._decider.decide(managed, surroundings)
            self._reports.found(findings, self._mirrors.vpas)
            await self._actor.carry_out(plan, seconds=end - loop.time())
        held_back = self._reports.passed(plan, surroundings, apart=apart)
        if apart is not None:
            self._held_back, self._surroundings = held_back, surroundings
            for rule, available in self._available().items():
                self._metrics.own.available.set(float(available), rule=rule)
        return True

    def _apart(self, managed: Sequence[Managed]) -> Counter[Reason]:
        """The pods that nothing is planned for."""
        modes_off = self._ownership.without_part
        apart = Counter(
            {Reason.MODE_OFF: modes_off[modes.OFF], Reason.MODE_INITIAL: modes_off[modes.INITIAL]}
        )
        planned = sum(len(one.pods) for one in managed) + apart.total()
        apart[Reason.NO_VPA] = max(len(self._mirrors.pods) - planned, 0)
        return apart

    def _available(self) -> dict[str, bool]:
        """Rule → can it be kept here?"""
        found = self._mirrors.check()
        if self._rules.keep_memory_limit_above_use:
            found["keep_memory_limit_above_use"] = self._world.reads_use
        return found

    def _forget(self) -> None:
        """Drop what is remembered of pods and VPAs that are gone."""
        uids = {pod.metadata.uid for pod in self._mirrors.pods.values()}
        self.memory.attempts.forget(uids)
        self.memory.breakers.forget(self._mirrors.vpas.keys())
        self._reports.forget(self._mirrors.vpas, uids)


@contextlib.contextmanager
def _untimed(*, step: str) -> Iterator[None]:
    yield
