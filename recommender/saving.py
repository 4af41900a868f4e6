"""Writes checkpoints: each in its turn, never over one that knows more, all of them at the end."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from recommender.autoscalers import Autoscalers, Served, VpaKey, containers_of, rows_of
from recommender.loading import Stored, stored_of
from recommender.schedule import CheckpointKey, Schedule
from recommender.tracking import Tracker
from recommender.troubles import Troubles
from vpa import checkpoints
from vpa.cluster import reads, writes
from vpa.cluster.connection import Connection
from vpa.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from vpa.cluster.resources import CHECKPOINTS
from vpa.conditions import FETCHING_HISTORY, is_true
from vpa.histograms import NEVER
from vpa.knowledge import NOTHING, Knowledge, of_row, of_state
from vpa.objects.checkpoints import Checkpoint
from vpa.recommendations import merge_rows
from vpa.rules import Rules

log = logging.getLogger(__name__)

PERIOD = 570.0
"""Seconds between two writes of a checkpoint: with waiting and writing it stays within ten minutes."""
SPACING = 120.0
"""Seconds between two writes of a checkpoint for the sake of rising memory peaks."""
RETRY = 10.0
TRIES = 4
LONGEST_NAME = 253


class Content(NamedTuple):
    """What a checkpoint is to hold."""

    status: dict[str, Any]
    peaks: str | None
    """The annotation with the running peaks, None where none is kept."""
    knowledge: Knowledge
    mark: tuple[object, ...]
    """Equal marks mean that nothing has changed in between."""


def object_name(vpa: str, container: str, *, taken: bool = False) -> str:
    """Upstream's name, or one of our own where that is too long or taken by another VPA's container."""
    name = checkpoints.name(vpa, container)
    if not taken and len(name) <= LONGEST_NAME:
        return name
    digest = zlib.crc32(f"{vpa}/{container}".encode())
    return f"{name[: LONGEST_NAME - 9].rstrip('.-')}-{digest:08x}"


class Saver:
    """The writer of checkpoints."""

    def __init__(
        self,
        connection: Connection,
        tracker: Tracker,
        autoscalers: Autoscalers,
        stored: dict[CheckpointKey, Stored],
        *,
        rules: Rules,
        workers: int,
        timeout: float,
        clock: Callable[[], float],
        now: Callable[[], int],
    ) -> None:
        """*stored*: what is known to be stored, shared with the loader. *timeout*: seconds for one write."""
        self.schedule = Schedule(PERIOD)
        self.results: Counter[str] = Counter()
        """Checkpoints by what was done: ``written``, ``unchanged``, ``kept`` (the stored one knows more),
        ``failed``."""
        self._connection = connection
        self._tracker = tracker
        self._autoscalers = autoscalers
        self._stored = stored
        self._rules = rules
        self._workers = workers
        self._timeout = timeout
        self._clock = clock
        self._now = now
        self._troubles = Troubles()
        self._marks: dict[CheckpointKey, tuple[object, ...]] = {}
        self._saved_at: dict[CheckpointKey, float] = {}
        self._served_at: dict[VpaKey, float] = {}
        self._wake = asyncio.Event()

    # Which

    def expect(self, served: Served) -> None:
        """The VPA's containers, as they are now, are to be saved from time to time."""
        now = self._clock()
        for container in containers_of(served):
            self.schedule.add((*served.key, container), now)

    def hurry(self, key: CheckpointKey) -> None:
        """Something important has changed: save it now."""
        self.schedule.hurry(key, self._clock())
        self._wake.set()

    def rose(self, key: CheckpointKey) -> None:
        """A memory peak is higher than any before: save it soon, but do not follow each step of a climb."""
        if self._clock() - self._saved_at.get(key, float("-inf")) >= SPACING:
            self.hurry(key)

    def forget(self, served: Served) -> None:
        """The VPA is not ours any more."""
        for container in containers_of(served):
            self.drop((*served.key, container))
        self._served_at.pop(served.key, None)

    def drop(self, key: CheckpointKey) -> None:
        """The container is not ours any more; its checkpoint stays as it is."""
        self.schedule.drop(key)
        self._marks.pop(key, None)
        self._saved_at.pop(key, None)

    # When

    async def run(self) -> None:
        """Write what is due until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._workers):
                tasks.create_task(self._work(), name=f"checkpoint writer {number}")

    async def _work(self) -> None:
        while True:
            key = self.schedule.take(self._clock())
            if key is not None:
                await self.save(key)
                continue
            due = self.schedule.next_due()
            self._wake.clear()
            try:
                async with asyncio.timeout(1.0 if due is None else max(0.0, min(due - self._clock(), 1.0))):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def save_tick(self) -> None:
        """Upstream's way: in each tick all VPAs, the longest unsaved first, until the time is over."""
        deadline = self._clock() + self._timeout
        queue = sorted(self._autoscalers.served, key=lambda key: self._served_at.get(key, float("-inf")))
        waiting = iter(queue)

        async def work() -> None:
            for key in waiting:
                served = self._autoscalers.served.get(key)
                if served is None or is_true(_conditions(served), FETCHING_HISTORY):
                    continue
                started = self._clock()
                for name in containers_of(served):
                    await self.save((*key, name))
                self._served_at[key] = started
                if self._clock() > deadline:
                    log.info("Checkpoints took longer than %g s; the rest is written next", self._timeout)
                    return

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._workers):
                tasks.create_task(work())

    async def save_all(self, connection: Connection, *, concurrency: int, within: float) -> int:
        """Write all that has changed, the most pressing first: for the end of the process.

        Returns how many there was no time for *within* so many seconds.
        """
        keys = list(self.schedule.in_order() or self._all_keys())
        waiting, left = iter(keys), len(keys)

        async def work() -> None:
            nonlocal left
            for key in waiting:
                await self.save(key, connection=connection)
                left -= 1

        try:
            async with asyncio.timeout(within), asyncio.TaskGroup() as tasks:
                for _ in range(concurrency):
                    tasks.create_task(work())
        except TimeoutError:
            pass
        return left

    def _all_keys(self) -> Iterable[CheckpointKey]:
        return [(*served.key, name) for served in self._autoscalers for name in containers_of(served)]

    # How

    async def save(self, key: CheckpointKey, *, connection: Connection | None = None) -> None:
        """Write one checkpoint, if there is anything new in it."""
        served = self._autoscalers.served.get(key[:2])
        if served is None or served.fetching:
            self.schedule.done(key, self._clock(), again=RETRY)
            return
        content = self.content(served, key[2])
        if content is None:
            self.drop(key)
            return
        if self._rules.spread_checkpoints and (
            self._marks.get(key) == content.mark or (content.knowledge == NOTHING and key not in self._stored)
        ):
            self.results["unchanged"] += 1
            self.schedule.done(key, self._clock())
            return
        try:
            result = await self._write(connection or self._connection, key, content)
        except ClusterError as error:
            self.results["failed"] += 1
            self._troubles.bad("Saving checkpoints", error)
            self.schedule.done(key, self._clock(), again=RETRY)
        except Exception:  # one container's trouble must not cost the others
            self.results["failed"] += 1
            log.exception("Saving checkpoint %s failed unexpectedly", "/".join(key))
            self.schedule.done(key, self._clock())
        else:
            self._troubles.good("Saving checkpoints")
            self.results[result] += 1
            if result == "written":
                self._marks[key] = content.mark
                self._saved_at[key] = self._clock()
            self.schedule.done(key, self._clock())

    def content(self, served: Served, container: str) -> Content | None:
        """What the checkpoint of a container is to hold; None if the container is not seen any more."""
        usage = self._tracker.usage
        rows = rows_of(served, container)
        if not rows:
            return None
        instances = dict(pair for group in served.groups for pair in self._tracker.feeding(group, container))
        now = self._now()
        row, merged = rows[0], len(rows) > 1
        if merged:
            row = int(usage.new_rows(1, now)[0])
            merge_rows(usage, row, rows)
        try:
            status = checkpoints.save(usage, row, now=now, instances=instances.values())
            knowledge = of_row(usage, row)
            mark = (
                *knowledge,
                *(float(bank.total[row]) for bank in (usage.cpu, usage.memory)),
                *(int(bank.reference[row]) for bank in (usage.cpu, usage.memory)),
            )
        finally:
            if merged:
                usage.free_rows(np.array([row]))
        peaks = None
        if self._rules.running_peaks:
            running = checkpoints.running_peaks(usage, instances, now)
            peaks = checkpoints.encode_peaks(running, status)
        return Content(status, peaks, knowledge, mark)

    def is_richer(self, stored: Stored | None, content: Content, container_rows: Iterable[int]) -> bool:
        """Whether the stored checkpoint knows more than *content*, and nothing that has expired."""
        if not self._rules.richer_checkpoints_stay or stored is None:
            return False
        if not content.knowledge.is_less_than(stored.knowledge):
            return False
        newest = stored.knowledge.last_sample
        if newest == NEVER:
            newest = stored.last_update
        usage = self._tracker.usage
        length = max(
            (int(usage.interval[row] * usage.interval_count[row]) for row in container_rows), default=0
        )
        return self._now() - newest < length

    async def _write(self, connection: Connection, key: CheckpointKey, content: Content) -> str:
        rows = rows_of(self._autoscalers.served[key[:2]], key[2])
        for _ in range(TRIES):
            stored = self._stored.get(key)
            if self.is_richer(stored, content, rows):
                return "kept"
            try:
                if stored is None:
                    await self._create(connection, key, content)
                else:
                    await self._patch(connection, key, content, stored)
            except NotFound:
                self._stored.pop(key, None)
            except Conflict:
                await self._read_again(connection, key)
            else:
                return "written"
        raise Conflict(f"checkpoint {'/'.join(key)} changes all the time", code=409)

    async def _patch(
        self, connection: Connection, key: CheckpointKey, content: Content, stored: Stored
    ) -> None:
        operations: list[dict[str, Any]] = [{"op": "add", "path": "/status", "value": content.status}]
        if content.peaks is not None:
            annotation = {"op": "add", "path": f"/metadata/annotations/{checkpoints.PEAKS_ANNOTATION}"}
            if stored.annotated:
                operations.append({**annotation, "value": content.peaks})
            else:
                value = {checkpoints.PEAKS_ANNOTATION: content.peaks}
                operations.append({"op": "add", "path": "/metadata/annotations", "value": value})
        self._keep(
            key,
            content,
            await writes.patch(
                connection,
                CHECKPOINTS,
                stored.name,
                operations,
                kind=Checkpoint,
                namespace=key[0],
                style="json",
                resource_version=stored.version if self._rules.richer_checkpoints_stay else "",
                timeout=self._timeout,
            ),
        )

    async def _create(self, connection: Connection, key: CheckpointKey, content: Content) -> None:
        namespace, vpa, container = key
        metadata: dict[str, Any] = {"name": object_name(vpa, container), "namespace": namespace}
        if content.peaks is not None:
            metadata["annotations"] = {checkpoints.PEAKS_ANNOTATION: content.peaks}
        body = {
            "apiVersion": CHECKPOINTS.api_version,
            "kind": CHECKPOINTS.kind,
            "metadata": metadata,
            "spec": {"vpaObjectName": vpa, "containerName": container},
            "status": content.status,
        }
        for taken in (False, True):
            metadata["name"] = object_name(vpa, container, taken=taken)
            try:
                created = await writes.create(
                    connection,
                    CHECKPOINTS,
                    body,
                    kind=Checkpoint,
                    namespace=namespace,
                    timeout=self._timeout,
                )
            except AlreadyExists:
                await self._read_again(connection, key, name=metadata["name"])
                if key in self._stored:
                    raise
            else:
                self._keep(key, content, created)
                return
        raise Conflict(f"checkpoint names of {'/'.join(key)} are taken", code=409)

    async def _read_again(self, connection: Connection, key: CheckpointKey, *, name: str = "") -> None:
        """Learn what is stored now; an object of that name that is another container's is left alone."""
        known = self._stored.pop(key, None)
        name = name or (known.name if known else object_name(*key[1:]))
        try:
            found = await reads.get(connection, CHECKPOINTS, name, kind=Checkpoint, namespace=key[0])
        except NotFound:
            return
        if (found.spec.vpa_object_name, found.spec.container_name) != key[1:]:
            return
        try:
            knowledge = of_state(checkpoints.decode(found.status))
        except checkpoints.CheckpointError:
            knowledge = NOTHING
        self._stored[key] = stored_of(found, knowledge)

    def _keep(self, key: CheckpointKey, content: Content, written: Checkpoint) -> None:
        self._stored[key] = stored_of(written, content.knowledge)


def _conditions(served: Served) -> Any:
    return served.vpa.status.conditions if served.vpa.status else None
