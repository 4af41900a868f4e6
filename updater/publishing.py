"""Conditions of VPAs: written when they change, one VPA at a time, and told once as an event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from updater.metrics import OwnMetrics
from updater.mirrors import Mirrors
from updater.ownership import VpaKey
from updater.troubles import Troubles
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError, Forbidden, NotFound
from vpa.cluster.events import WARNING, Recorder, Reference
from vpa.cluster.pacing import Clock, monotonic
from vpa.cluster.resources import VERTICAL_AUTOSCALERS
from vpa.cluster.statuses import write_conditions
from vpa.conditions import find
from vpa.objects.autoscalers import Condition, VerticalPodAutoscaler

log = logging.getLogger(__name__)

Wanted = Mapping[str, Condition | None]

WRITERS: Final = 4
SELDOM: Final = 600.0
"""Seconds between two writes where only a message changed, or where another removes what we write."""
DENIED: Final = "Conditions of VPAs cannot be written"


class Publisher:
    """Takes what conditions should be at any time; `run` writes them."""

    def __init__(
        self,
        connection: Connection,
        mirrors: Mirrors,
        recorder: Recorder,
        metrics: OwnMetrics,
        troubles: Troubles,
        *,
        now: Callable[[], datetime],
        clock: Clock = monotonic,
    ) -> None:
        self._connection = connection
        self._mirrors = mirrors
        self._recorder = recorder
        self._metrics = metrics
        self._troubles = troubles
        self._now = now
        self._clock = clock
        self._waiting: dict[VpaKey, dict[str, Condition | None]] = {}
        self._written: dict[VpaKey, tuple[float, dict[str, Condition | None]]] = {}
        self._told: dict[tuple[VpaKey, str], str] = {}
        self._wake = asyncio.Event()
        self._started = clock()
        self._denied_until = float("-inf")

    def put(self, vpa: VerticalPodAutoscaler, wanted: Wanted) -> None:
        """The conditions of these types are to be so; None: there is to be none."""
        key = vpa.metadata.namespace, vpa.metadata.name
        present = (vpa.status.conditions if vpa.status is not None else None) or []
        for kind, condition in wanted.items():
            self._tell(vpa, key, condition, find(present, kind), kind)
        if self._clock() >= self._denied_until and self._is_due(key, present, wanted):
            self._waiting.setdefault(key, {}).update(wanted)
            self._wake.set()

    def forget(self, alive: Mapping[VpaKey, object]) -> None:
        """Drop what is known of VPAs that are gone."""
        for key in [key for key in self._written if key not in alive]:
            del self._written[key]
        for told in [told for told in self._told if told[0] not in alive]:
            del self._told[told]

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as writers:
            for _ in range(WRITERS):
                writers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            key = next(iter(self._waiting))
            wanted = self._waiting.pop(key)
            vpa = self._mirrors.vpas.get(key)
            if vpa is not None:
                await self._write(key, vpa, wanted)

    async def _write(
        self, key: VpaKey, vpa: VerticalPodAutoscaler, wanted: dict[str, Condition | None]
    ) -> None:
        self._written[key] = self._clock(), wanted
        try:
            await write_conditions(self._connection, vpa, wanted, now=self._now())
        except NotFound:
            return
        except ClusterError as error:
            self._metrics.condition_writes.inc(result="error")
            if isinstance(error, Forbidden):
                self._denied_until = self._clock() + SELDOM
                self._waiting.clear()
                self._troubles.bad(DENIED, error)
            else:
                self._written.pop(key, None)  # the next pass asks again
                log.warning("The conditions of VPA %s/%s are not written: %s", *key, error)
        else:
            self._metrics.condition_writes.inc(result="ok")
            self._troubles.good(DENIED)

    def _tell(
        self,
        vpa: VerticalPodAutoscaler,
        key: VpaKey,
        condition: Condition | None,
        present: Condition | None,
        kind: str,
    ) -> None:
        """An event for what is new; what a predecessor of ours has written is not."""
        if condition is None:
            self._told.pop((key, kind), None)
            return
        before = self._told.get((key, kind), present.reason if present is not None else None)
        self._told[key, kind] = condition.reason
        if before != condition.reason:
            about = Reference.of(VERTICAL_AUTOSCALERS, vpa.metadata)
            self._recorder.emit(about, condition.reason, condition.message, type=WARNING)

    def _is_due(self, key: VpaKey, present: list[Condition], wanted: Wanted) -> bool:
        at, before = self._written.get(key, (self._started, None))
        seldom = self._clock() - at >= SELDOM
        found = {kind: find(present, kind) for kind in wanted}
        if all(_shows(found[kind], condition) for kind, condition in wanted.items()):
            return False
        if seldom:
            return True
        differs = any(not _is_like(found[kind], condition) for kind, condition in wanted.items())
        repeats = before is not None and all(
            kind in before and _is_like(before[kind], condition) for kind, condition in wanted.items()
        )
        return differs and not repeats


def _shows(present: Condition | None, wanted: Condition | None) -> bool:
    if present is None or wanted is None:
        return present is wanted
    return _is_like(present, wanted) and present.message == wanted.message


def _is_like(present: Condition | None, wanted: Condition | None) -> bool:
    """The same but for the message."""
    if present is None or wanted is None:
        return present is wanted
    return (present.status, present.reason) == (wanted.status, wanted.reason)
