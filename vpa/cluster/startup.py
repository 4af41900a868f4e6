"""What all services ask of the API server: a connection as their flags say, and a lease to lead by."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from vpa import process
from vpa.cluster.connection import Connection
from vpa.cluster.leases import Election
from vpa.durations import SECOND


async def connect(flags: process.Connection, component: str, *, limited: bool = True) -> Connection:
    """A connection as *flags* say, under the name of *component*.

    Not *limited* in its rate at the end of a process, when all must be written at once.
    """
    return await Connection.open(
        kubeconfig=flags.kubeconfig,
        servers=flags.servers,
        qps=flags.kube_api_qps if limited else 0.0,
        burst=flags.kube_api_burst,
        user_agent=component,
    )


@contextlib.asynccontextmanager
async def leading(connection: Connection, flags: process.LeaderElection) -> AsyncIterator[None]:
    """Hold the lease while the block runs, if *flags* ask for one; *connection* writes only while we lead.

    Raises ``LeadershipLostError`` in the block when the lease is lost.
    """
    if not flags.leader_elect:
        yield
        return
    election = Election(
        connection,
        namespace=flags.leader_elect_resource_namespace,
        name=flags.leader_elect_resource_name,
        lease_duration=flags.leader_elect_lease_duration / SECOND,
        renew_deadline=flags.leader_elect_renew_deadline / SECOND,
        retry_period=flags.leader_elect_retry_period / SECOND,
    )
    async with election.held():
        connection.fence = election.check
        yield
