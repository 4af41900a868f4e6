"""Writes statuses: the newest wish for each VPA, a few at a time, until it is done or cannot be.

Wishes wait here while the API server is away or slow; a newer one for the same VPA replaces the older. Who
else writes the fields that only we should write is noticed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recommender.autoscalers import VpaKey
from recommender.troubles import Troubles
from vpa import statuses
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError, Conflict, NotFound, ServerError, TooManyRequests, Unreachable
from vpa.cluster.leases import LeadershipLostError
from vpa.cluster.resources import VERTICAL_AUTOSCALERS
from vpa.cluster.statuses import write_status
from vpa.cluster.writes import patch
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.rules import Rules
from vpa.statuses import Difference, Wanted

log = logging.getLogger(__name__)

PAUSE = 2.0
"""Seconds before a write is tried again after the API server refused or did not answer."""
REFUSED_PAUSE = 60.0
"""Seconds before one VPA's status is tried again after the API server would not have it."""
WARY = 60.0
"""Seconds between two writes of a VPA whose status somebody else writes too."""
WARY_FOR = 600.0
"""Seconds after the last foreign write for which we are wary."""

_PASSING = (Unreachable, TooManyRequests, ServerError, Conflict, LeadershipLostError)


@dataclass(slots=True)
class _Written:
    """Our last write of a VPA's status."""

    version: str
    content: tuple[Any, ...]
    at: float


class Publisher:
    """The writer of statuses."""

    def __init__(
        self,
        connection: Connection,
        current: Callable[[VpaKey], VerticalPodAutoscaler | None],
        *,
        owned: frozenset[str],
        workers: int,
        rules: Rules,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        foreign: Callable[[VerticalPodAutoscaler], None],
    ) -> None:
        """*current*: the VPA as the cache has it, None if it is not ours (any more). *owned*: types of
        conditions that only we write. *foreign* is told of a VPA that somebody else has written."""
        self.results: Counter[str] = Counter()
        """Writes by result: ``written``, ``unneeded``, ``failed``, ``refused``."""
        self._connection = connection
        self._current = current
        self._owned = owned
        self._workers = workers
        self._rules = rules
        self._clock = clock
        self._now = now
        self._foreign = foreign
        self._troubles = Troubles()
        self._wishes: OrderedDict[VpaKey, Wanted] = OrderedDict()
        self._busy: dict[VpaKey, tuple[Any, ...]] = {}
        self._written: dict[VpaKey, _Written] = {}
        self._wary: dict[VpaKey, float] = {}
        self._refused_until: dict[VpaKey, float] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    # Wishes

    def put(self, key: VpaKey, wanted: Wanted, *, urgent: bool = False) -> None:
        """Write *wanted* as soon as possible, *urgent* ones first."""
        self._wishes[key] = wanted
        if urgent:
            self._wishes.move_to_end(key, last=False)
        self._idle.clear()
        self._wake.set()

    def forget(self, key: VpaKey) -> None:
        """The VPA is not ours any more."""
        self._wishes.pop(key, None)
        self._written.pop(key, None)
        self._wary.pop(key, None)
        self._refused_until.pop(key, None)

    def written_at(self, key: VpaKey) -> float | None:
        """When the status was last written by us, on the monotonic clock."""
        found = self._written.get(key)
        return None if found is None else found.at

    async def wait_idle(self, timeout: float) -> None:  # noqa: ASYNC109 - an outage must not stop the loop
        """Wait until nothing is to be written, but not longer than *timeout* seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            log.info("Not all statuses could be written in %g s; they are tried on", timeout)

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._workers):
                tasks.create_task(self._work(), name=f"status writer {number}")

    async def _work(self) -> None:
        while True:
            key, pause = self._next()
            if key is None:
                self._wake.clear()
                if not self._wishes and not self._busy:
                    self._idle.set()
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            await self._write(key, self._wishes.pop(key))

    def _next(self) -> tuple[VpaKey | None, float | None]:
        """A VPA to write, or how long to wait for the next."""
        pause = None
        for key in self._wishes:
            if key in self._busy:
                continue
            wait = self._held_back(key)
            if wait <= 0:
                return key, None
            pause = wait if pause is None else min(pause, wait)
        return None, pause

    def _held_back(self, key: VpaKey) -> float:
        """Seconds for which the VPA is not to be written: it was refused, or somebody else writes it too."""
        now = self._clock()
        refused = self._refused_until.get(key, now) - now
        if refused > 0:
            return refused
        since = self._wary.get(key)
        if since is None:
            return 0.0
        if now - since > WARY_FOR:
            del self._wary[key]
            return 0.0
        written = self._written.get(key)
        return 0.0 if written is None else written.at + WARY - now

    # Writing

    async def _write(self, key: VpaKey, wanted: Wanted) -> None:
        vpa = self._current(key)
        if vpa is None:
            return
        self._busy[key] = ()
        try:
            changed = await self._send(vpa, wanted)
        except _PASSING as error:
            self.results["failed"] += 1
            self._troubles.bad("Writing statuses", error)
            self._wishes.setdefault(key, wanted)
            await asyncio.sleep(PAUSE)
        except NotFound:
            self.forget(key)
        except Exception as error:  # one VPA's trouble must not cost the others
            self.results["refused"] += 1
            self._refused_until[key] = self._clock() + REFUSED_PAUSE
            self._wishes.setdefault(key, wanted)
            said = self._troubles.bad(f"Writing the status of {'/'.join(key)}", error)
            if said and not isinstance(error, ClusterError):
                log.exception("Writing the status of %s failed unexpectedly", "/".join(key))
        else:
            self._refused_until.pop(key, None)
            self._troubles.good("Writing statuses")
            self._troubles.good(f"Writing the status of {'/'.join(key)}")
            self.results["written" if changed is not None else "unneeded"] += 1
            if changed is not None:
                content = statuses.ours(changed.status, self._owned)
                self._written[key] = _Written(changed.metadata.resource_version, content, self._clock())
        finally:
            del self._busy[key]
            self._wake.set()

    async def _send(self, vpa: VerticalPodAutoscaler, wanted: Wanted) -> VerticalPodAutoscaler | None:
        """Write, and return the VPA as it is then; None if nothing was to be written."""
        key = (vpa.metadata.namespace, vpa.metadata.name)
        sent = False
        now = self._now()

        def change(current: VerticalPodAutoscaler) -> Mapping[str, Any] | None:
            nonlocal sent
            status = current.status
            if statuses.difference(status, wanted, threshold=0.0, now=now) is Difference.NONE:
                sent = False
                return None
            sent = True
            self._busy[key] = statuses.ours(statuses.compose(status, wanted, now), self._owned)
            return statuses.merge_patch(status, wanted, now)

        if self._rules.own_conditions_only:
            changed = await write_status(self._connection, vpa, change)
        elif change(vpa) is None:
            return None
        else:
            status = statuses.whole_status(vpa.status, wanted, now)
            changed = await patch(
                self._connection,
                VERTICAL_AUTOSCALERS,
                vpa.metadata.name,
                [{"op": "add", "path": "/status", "value": status}],
                kind=VerticalPodAutoscaler,
                namespace=vpa.metadata.namespace,
                subresource="status",
                style="json",
            )
        return changed if sent else None

    # Others

    def seen(self, old: VerticalPodAutoscaler, new: VerticalPodAutoscaler) -> bool:
        """A VPA changed in the cluster. Whether its status is as we wrote it, as far as it is ours."""
        key = (new.metadata.namespace, new.metadata.name)
        content = statuses.ours(new.status, self._owned)
        if content == statuses.ours(old.status, self._owned):
            return True
        written = self._written.get(key)
        if content == self._busy.get(key) or (written is not None and content == written.content):
            return True
        if written is None or _is_older(new.metadata.resource_version, written.version):
            return written is not None
        if self._rules.wary_of_other_writers and key not in self._busy:
            self.results["foreign"] += 1
            self._wary[key] = self._clock()
            self._foreign(new)
        return False


def _is_older(version: str, than: str) -> bool:
    return version.isdigit() and than.isdigit() and int(version) < int(than)
