"""core/v1 Events for people: never more than needed, and never in the way of the caller.

The same event again raises the count of the first; many events of one reason on one object become one; writes
keep to a rate, and while they wait, counts add up. When the queue is full, new ones are dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from vpa.cluster.codec import encode
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError, Forbidden, NotFound, ServerError, TooManyRequests, Unreachable
from vpa.cluster.leases import utc_now
from vpa.cluster.pacing import Clock, TokenBucket, monotonic
from vpa.cluster.resources import EVENTS, Resource
from vpa.objects.meta import ObjectMeta

logger = logging.getLogger(__name__)

NORMAL, WARNING = "Normal", "Warning"
SIMILAR = 10
"""Different messages of one reason on one object within WINDOW, after which they become one event."""
WINDOW = 600.0
"""Seconds after which an event that was not repeated is forgotten, and its next occurrence is a new one."""
SPACING = 60.0
"""Seconds between two writes of one event: repetitions in between only add up."""
COMBINED = "(combined from similar events): "
LONGEST_MESSAGE = 1024
BURST = 100
RETRY_AFTER = 5.0


class Reference(NamedTuple):
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, resource: Resource, metadata: ObjectMeta) -> Reference:
        return cls(resource.api_version, resource.kind, metadata.namespace, metadata.name, metadata.uid)


class _Subject(NamedTuple):
    """What similar events share."""

    about: Reference
    type: str
    reason: str


class _Key(NamedTuple):
    subject: _Subject
    message: str


@dataclass(slots=True)
class _Series:
    """One event as it stands in the cluster, and what has happened since it was written."""

    message: str
    first: datetime
    last: datetime
    pending: int = 0
    count: int = 0
    name: str = ""
    next_write: float = 0.0
    used: float = 0.0


@dataclass(slots=True)
class _Similar:
    messages: set[str] = field(default_factory=set)
    since: float = 0.0


class Recorder:
    """Takes events at any time; :meth:`run` writes them."""

    def __init__(
        self,
        connection: Connection,
        *,
        component: str,
        host: str = "",
        per_minute: float = 300.0,
        queue: int = 1000,
        clock: Clock = monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """*component* is the events' source, e.g. "vpa-updater"; *queue*: how many may wait to be written."""
        self._connection = connection
        self._component = component
        self._host = host
        self._bucket = TokenBucket(qps=per_minute / 60, burst=min(BURST, per_minute), clock=clock)
        self._queue = queue
        self._clock = clock
        self._now = now
        self._series: dict[_Key, _Series] = {}
        self._pending: dict[_Key, None] = {}  # in order of arrival
        self._similar: dict[_Subject, _Similar] = {}
        self._wake = asyncio.Event()
        self._refused = False
        self.dropped = 0
        """Events that were never written: the queue was full, or the server refused them."""
        self.written = 0

    def emit(self, about: Reference, reason: str, message: str, *, type: str = NORMAL) -> None:  # noqa: A002
        """Record that *reason* happened to *about*; returns at once."""
        key = self._key(_Subject(about, type, reason), message[:LONGEST_MESSAGE])
        if key not in self._pending:
            if len(self._pending) >= self._queue:
                self.dropped += 1
                return
            self._pending[key] = None
        now = self._now()
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(message, now, now)
        if key.message == COMBINED:
            series.message = (COMBINED + message)[:LONGEST_MESSAGE]
        series.pending += 1
        series.last = now
        series.used = self._clock()
        self._wake.set()

    def _key(self, subject: _Subject, message: str) -> _Key:
        similar = self._similar.setdefault(subject, _Similar(since=self._clock()))
        if self._clock() - similar.since > WINDOW:
            similar.messages.clear()
            similar.since = self._clock()
        if message not in similar.messages:
            if len(similar.messages) >= SIMILAR:
                return _Key(subject, COMBINED)
            similar.messages.add(message)
        return _Key(subject, message)

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            now = self._clock()
            due = [key for key in self._pending if self._series[key].next_write <= now]
            for key in due:
                await self._bucket.take()
                await self._write(key)
            if not due:
                self._forget()
                moments = [self._series[key].next_write for key in self._pending]
                await self._sleep_until(min(moments, default=now + WINDOW))

    async def flush(self, timeout: float) -> None:  # noqa: ASYNC109
        """Write what is waiting, at most *timeout* seconds long: for the end of a process."""
        try:
            async with asyncio.timeout(timeout):
                for key in list(self._pending):
                    if not self._series[key].name or self._series[key].next_write <= self._clock():
                        await self._write(key)
        except TimeoutError:
            pass

    async def _sleep_until(self, moment: float) -> None:
        """Sleep, but not past the arrival of another event."""
        try:
            async with asyncio.timeout(max(0.0, moment - self._clock())):
                await self._wake.wait()
            self._wake.clear()
        except TimeoutError:
            pass

    def _forget(self) -> None:
        old = self._clock() - WINDOW
        for key, series in list(self._series.items()):
            if series.used < old and key not in self._pending:
                del self._series[key]
        for subject in [subject for subject, similar in self._similar.items() if similar.since < old]:
            del self._similar[subject]

    async def _write(self, key: _Key) -> None:
        self._pending.pop(key, None)
        series = self._series[key]
        added, series.pending = series.pending, 0
        try:
            await self._send(key.subject, series, added)
        except (Unreachable, ServerError, TooManyRequests) as error:
            series.pending += added
            wait = error.retry_after if isinstance(error, ServerError | TooManyRequests) else None
            series.next_write = self._clock() + (RETRY_AFTER if wait is None else max(wait, RETRY_AFTER))
            self._pending[key] = None
        except ClusterError as error:
            self.dropped += added
            if not (self._refused and isinstance(error, Forbidden)):  # a missing role is said once
                logger.warning(
                    "event %s on %s is lost: %s", key.subject.reason, key.subject.about.name, error
                )
            self._refused = self._refused or isinstance(error, Forbidden)
        else:
            self.written += 1
            series.count += added
            series.next_write = self._clock() + SPACING

    async def _send(self, subject: _Subject, series: _Series, added: int) -> None:
        about = subject.about
        namespace = about.namespace or "default"
        if series.name:
            body = {
                "count": series.count + added,
                "lastTimestamp": _seconds(series.last),
                "message": series.message,
            }
            try:
                await self._connection.request(
                    "PATCH",
                    EVENTS.path(namespace, series.name),
                    body=encode(body),
                    content_type="application/merge-patch+json",
                )
                return
            except NotFound:  # events live for an hour; this one is over
                series.count, series.first = 0, series.last
        series.name = f"{about.name[:230]}.{time.time_ns():x}"
        event = self._event(subject, series, namespace, added)
        try:
            await self._connection.request("POST", EVENTS.path(namespace), body=encode(event))
        except ClusterError:
            series.name = ""
            raise

    def _event(self, subject: _Subject, series: _Series, namespace: str, count: int) -> dict[str, Any]:
        about = subject.about
        involved = {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": namespace},
            "involvedObject": {name: value for name, value in involved.items() if value},
            "reason": subject.reason,
            "message": series.message,
            "type": subject.type,
            "source": {"component": self._component} | ({"host": self._host} if self._host else {}),
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": _seconds(series.first),
            "lastTimestamp": _seconds(series.last),
            "count": count,
        }


def _seconds(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
