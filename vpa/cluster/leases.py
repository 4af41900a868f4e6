"""Leader election on a Lease, compatible with client-go's: same fields, same names, either may take over.

One writer at a time rests on one inequality: the holder counts from the moment *before* it sent its last
accepted renewal and gives up after ``renew_deadline``; everybody else counts from the moment *after* they saw
that renewal and waits for ``lease_duration``, which is longer. Both count on a monotonic clock, so that jumps
of the wall clock change nothing; times in the Lease are for people to read. A process that was paused finds
``leading`` False when it wakes up, and the connection's *fence* stops what it was about to write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from vpa.cluster.codec import encode
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError, ConfigurationError, Conflict, NotFound, Unreadable
from vpa.cluster.pacing import Clock, monotonic
from vpa.cluster.resources import LEASES

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT = 2.0
"""Seconds for giving the lease back on exit; without it others wait for its duration."""


class LeadershipLostError(ClusterError):
    """We do not lead (any more): nothing may be written."""


def new_identity() -> str:
    """Who we are in a lease: host name and a random part, for two processes on one host."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def timestamp(now: datetime) -> str:
    """*now* as Kubernetes' MicroTime."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


Record = dict[str, Any]
"""A whole Lease as plain data: fields that we do not know survive our writes."""


class Election:
    """Our candidacy for one lease. Use :meth:`held`, or :meth:`acquire`, :meth:`keep` and :meth:`release`."""

    def __init__(
        self,
        connection: Connection,
        *,
        namespace: str,
        name: str,
        identity: str = "",
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        clock: Clock = monotonic,
        now: Callable[[], datetime] = utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Seconds, as the ``--leader-elect-…`` flags; ``ConfigurationError`` if not so ordered."""
        if not lease_duration > renew_deadline > retry_period > 0:
            raise ConfigurationError(
                "leader election needs lease duration > renew deadline > retry period > 0, but they are "
                f"{lease_duration:g} s, {renew_deadline:g} s and {retry_period:g} s"
            )
        self.identity = identity or new_identity()
        self._connection = connection
        self._namespace = namespace
        self._name = name
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._until = float("-inf")
        self._record: Record = {}
        self._seen = float("-inf")  # when we first saw the record as it is

    @property
    def leading(self) -> bool:
        """May we write at this moment?"""
        return self._clock() < self._until

    @property
    def holder(self) -> str:
        """Identity of the holder as last seen, "" if nobody holds the lease."""
        return str(_spec(self._record).get("holderIdentity") or "")

    @property
    def term(self) -> int:
        """How often the lease has changed hands, as last seen: a later leader has a larger one."""
        return int(_spec(self._record).get("leaseTransitions") or 0)

    def check(self) -> None:
        """Raise ``LeadershipLostError`` unless :attr:`leading`: the fence of a connection."""
        if not self.leading:
            raise LeadershipLostError(f"not the leader: lease {self._namespace}/{self._name} is not ours")

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait until we lead, run the body, give the lease back.

        The body is cancelled when leadership is lost, and ``LeadershipLostError`` is raised instead.
        """
        await self.acquire()
        body = asyncio.current_task()
        lost: LeadershipLostError | None = None
        over = False

        async def guard() -> None:
            nonlocal lost
            try:
                await self.keep()
            except LeadershipLostError as error:
                lost = error
                if body is not None and not over:
                    body.cancel()

        keeper = asyncio.create_task(guard(), name=f"lease {self._name}")
        try:
            yield
        except asyncio.CancelledError:
            if lost is None or body is None or body.uncancel() > 0:
                raise  # somebody else wants us to stop
            raise lost from None
        finally:
            over = True
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            if self.leading:  # else nobody waits for our word, and the server may not answer
                await self.release()

    async def acquire(self) -> None:
        """Wait until we lead."""
        logger.info("waiting for lease %s/%s as %s", self._namespace, self._name, self.identity)
        problem = ""
        while True:
            try:
                if await self._try(timeout=self._renew_deadline):
                    logger.info("leading: lease %s/%s is ours", self._namespace, self._name)
                    return
                problem = ""
            except ClusterError as error:
                if problem != type(error).__name__:  # once, not every two seconds of an outage
                    logger.warning("lease %s/%s: %s", self._namespace, self._name, error)
                problem = type(error).__name__
            await self._pause()

    async def keep(self) -> None:
        """Renew until leadership is lost, which raises ``LeadershipLostError``."""
        reason = "the renew deadline has passed"
        while True:
            await self._pause()
            left = self._until - self._clock()
            if left <= 0:
                break
            try:
                # Three tries fit: one request that hangs must not cost the lease.
                if not await self._try(timeout=min(left, self._renew_deadline / 3)):
                    reason = f"{self.holder or 'nobody'} holds it"
                    break
            except ClusterError as error:
                reason = str(error)
        self._until = float("-inf")
        raise LeadershipLostError(f"lease {self._namespace}/{self._name} is lost: {reason}")

    async def release(self) -> None:
        """Stop leading and let the others know; a failure only costs them the lease's duration."""
        held = self.holder == self.identity
        self._until = float("-inf")  # before anybody can learn that it is free
        if not held:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await self._put_free()
        except (ClusterError, TimeoutError) as error:
            logger.warning("lease %s/%s is not released: %s", self._namespace, self._name, error)

    async def _put_free(self) -> None:
        for _ in range(2):
            free = {
                **_spec(self._record),
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "renewTime": timestamp(self._now()),
                "acquireTime": timestamp(self._now()),
            }
            try:
                self._observe(await self._put({**self._record, "spec": free}, timeout=RELEASE_TIMEOUT))
                return
            except Conflict:  # a renewal that got no answer was written after all
                self._observe(await self._get(timeout=RELEASE_TIMEOUT))
                if self.holder != self.identity:
                    return

    async def _pause(self) -> None:
        await self._sleep(self._retry_period * random.uniform(1.0, 1.2))

    async def _try(self, *, timeout: float) -> bool:  # noqa: ASYNC109
        """Take or renew the lease if that is permitted now; do we hold it?"""
        deadline = self._clock() + timeout
        try:
            return await self._take_or_renew(deadline)
        except NotFound:  # somebody deleted it; the next try makes it anew
            self._record = {}
            raise

    async def _take_or_renew(self, deadline: float) -> bool:
        def left() -> float:
            return max(0.1, deadline - self._clock())

        if self.holder != self.identity:
            try:
                self._observe(await self._get(timeout=left()))
            except NotFound:
                self._record = {}
            if not self._may_take():
                return False
        try:
            await self._write(timeout=left())
        except Conflict:  # written by somebody else, or by a renewal of ours that got no answer
            self._observe(await self._get(timeout=left()))
            if self.holder != self.identity:
                return False
            await self._write(timeout=left())
        return True

    async def _write(self, *, timeout: float) -> None:  # noqa: ASYNC109
        spec = dict(_spec(self._record))
        now = timestamp(self._now())
        if self._record and spec.get("holderIdentity") != self.identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        if spec.get("holderIdentity") != self.identity:
            spec["acquireTime"] = now
        spec |= {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, int(self._lease_duration)),
            "renewTime": now,
        }
        sent = self._clock()
        if self._record:
            written = await self._put({**self._record, "spec": spec}, timeout=timeout)
        else:
            written = await self._post(spec, timeout=timeout)
        self._observe(written)
        self._until = sent + self._renew_deadline

    def _observe(self, record: Record) -> None:
        version, known = _version(record), _version(self._record)
        if version != known:
            self._seen = self._clock()
        self._record = record

    def _may_take(self) -> bool:
        spec = _spec(self._record)
        if not spec.get("holderIdentity") or spec["holderIdentity"] == self.identity:
            return True
        promised = max(self._lease_duration, float(spec.get("leaseDurationSeconds") or 0))
        return self._clock() >= self._seen + promised

    async def _get(self, *, timeout: float) -> Record:  # noqa: ASYNC109
        return await self._send("GET", LEASES.path(self._namespace, self._name), None, timeout)

    async def _put(self, record: Record, *, timeout: float) -> Record:  # noqa: ASYNC109
        return await self._send("PUT", LEASES.path(self._namespace, self._name), encode(record), timeout)

    async def _post(self, spec: Record, *, timeout: float) -> Record:  # noqa: ASYNC109
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        return await self._send("POST", LEASES.path(self._namespace), encode(body), timeout)

    async def _send(self, method: str, path: str, body: bytes | None, timeout: float) -> Record:  # noqa: ASYNC109
        answer = await self._connection.request(method, path, body=body, timeout=timeout, urgent=True)
        try:
            return msgspec.json.decode(answer, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise Unreadable(str(error), method=method, path=path) from error


def _spec(record: Record) -> Record:
    spec: Record = record.get("spec") or {}
    return spec


def _version(record: Record) -> str:
    return str((record.get("metadata") or {}).get("resourceVersion", ""))
