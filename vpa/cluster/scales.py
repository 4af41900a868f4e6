"""``scale`` subresources of controllers that are not known in advance, remembered for a while.

They are asked for with every pod and every VPA, and change next to never. Failures are remembered too, but
shortly, and a value that cannot be refreshed stays in use: one time-out must not make a target unknown.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from vpa.cluster.connection import Connection
from vpa.cluster.discovery import Discovery
from vpa.cluster.errors import ClusterError, NotFound
from vpa.cluster.pacing import Clock, monotonic
from vpa.cluster.reads import get
from vpa.objects.workloads import Scale

REFRESH = 600.0
"""A value is asked for again after this many seconds, or up to twice as many."""
LIFETIME = 3600.0
"""A value that nobody asked for so long is forgotten."""
FRESH_ERROR = 15.0
FRESH_ABSENCE = 60.0
"""Seconds for which a failure, or the answer that there is no such scale, is used."""
TIMEOUT = 10.0


@dataclass(slots=True)
class _Known:
    result: Scale | ClusterError
    refresh_at: float
    used: float


class Scales:
    """Scale objects by group, kind and name."""

    def __init__(self, connection: Connection, discovery: Discovery, *, clock: Clock = monotonic) -> None:
        self._connection = connection
        self._discovery = discovery
        self._clock = clock
        self._known: dict[tuple[str, str, str, str], _Known] = {}
        self._locks: dict[tuple[str, str, str, str], asyncio.Lock] = {}
        self._purge_at = clock() + LIFETIME

    async def get(self, group: str, kind: str, namespace: str, name: str) -> Scale:
        """The scale of an object; ``NotFound`` if it or its scale does not exist, or another
        ``ClusterError``.
        """
        key = (group, kind, namespace, name)
        now = self._clock()
        self._purge(now)
        known = self._known.get(key)
        if known is None or now >= known.refresh_at:
            async with self._locks.setdefault(key, asyncio.Lock()):
                known = self._known.get(key)
                if known is None or self._clock() >= known.refresh_at:  # nobody did it while we waited
                    known = self._known[key] = await self._ask(key, known)
        known.used = now
        if isinstance(known.result, ClusterError):
            raise known.result.with_traceback(None)  # or each time would add to it
        return known.result

    async def _ask(self, key: tuple[str, str, str, str], old: _Known | None) -> _Known:
        group, kind, namespace, name = key
        result: Scale | ClusterError
        try:
            resource = await self._discovery.resource(group, kind)
            if not await self._discovery.has_scale(resource):
                raise NotFound("the server could not find the requested resource", code=404)
            result = await get(
                self._connection,
                resource,
                name,
                kind=Scale,
                namespace=namespace,
                subresource="scale",
                timeout=TIMEOUT,
            )
            fresh = REFRESH * random.uniform(1.0, 2.0)
        except NotFound as error:
            result, fresh = error, FRESH_ABSENCE
        except ClusterError as error:
            result, fresh = error, FRESH_ERROR
            if old is not None and isinstance(old.result, Scale):
                result = old.result
        now = self._clock()
        return _Known(result, now + fresh, now)

    def _purge(self, now: float) -> None:
        if now < self._purge_at:
            return
        self._purge_at = now + LIFETIME / 10
        for key, known in list(self._known.items()):
            if known.used + LIFETIME < now:
                del self._known[key]
                self._locks.pop(key, None)
