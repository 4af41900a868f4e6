"""The admission controller's sign of life: a Lease that it renews and the updater reads before it evicts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from vpa.cluster.codec import encode
from vpa.cluster.connection import Connection
from vpa.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from vpa.cluster.leases import timestamp, utc_now
from vpa.cluster.reads import get
from vpa.cluster.resources import LEASES
from vpa.objects.meta import Obj, ObjectMeta

logger = logging.getLogger(__name__)


class LeaseSpec(Obj, frozen=True):
    holder_identity: str = ""
    renew_time: datetime | None = None


class Lease(Obj, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


def is_alive(lease: Lease, *, now: datetime, timeout: float) -> bool:
    """Was *lease* created or renewed less than *timeout* seconds before *now*?"""
    limit = now - timedelta(seconds=timeout)
    times = (lease.metadata.creation_timestamp, lease.spec.renew_time)
    return any(time is not None and time > limit for time in times)


async def read(connection: Connection, *, namespace: str, name: str) -> Lease:
    """The lease as it is; ``NotFound`` if nobody has ever written it."""
    return await get(connection, LEASES, name, kind=Lease, namespace=namespace)


class Heartbeat:
    """Renews the lease *name* every *interval* seconds; several replicas may share it."""

    def __init__(
        self,
        connection: Connection,
        *,
        namespace: str,
        name: str,
        holder: str,
        interval: float = 10.0,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._interval = interval
        self._now = now
        self.failures = 0
        """Beats in a row that failed."""

    async def run(self) -> None:
        """Beat until cancelled, the first time after one interval. Failures are logged and counted."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.beat()
                self.failures = 0
            except ClusterError as error:
                self.failures += 1
                if self.failures == 1:
                    logger.warning("status lease %s/%s: %s", self._namespace, self._name, error)

    async def beat(self) -> None:
        """Write once: create the lease, or renew it. Another replica doing the same at once is as good."""
        try:
            lease: dict[str, Any] = await get(
                self._connection,
                LEASES,
                self._name,
                kind=dict,
                namespace=self._namespace,
                timeout=self._interval,
            )
        except NotFound:
            await self._create()
            return
        spec = lease.get("spec") or {}
        spec |= {"holderIdentity": self._holder, "renewTime": timestamp(self._now())}
        with contextlib.suppress(Conflict):
            await self._connection.request(
                "PUT",
                LEASES.path(self._namespace, self._name),
                body=encode({**lease, "spec": spec}),
                timeout=self._interval,
            )

    async def _create(self) -> None:
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": max(1, int(self._interval)),
            },
        }
        with contextlib.suppress(AlreadyExists):
            await self._connection.request(
                "POST", LEASES.path(self._namespace), body=encode(body), timeout=self._interval
            )
