"""etcd and kube-apiserver are killed, restarted and paused under reflectors; the copies stay true."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.clients import QUICK, change, connect, listed, make, until, versions
from tests.testbed.cluster import Cluster
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError
from vpa.cluster.reflectors import Reflector, running
from vpa.cluster.resources import CONFIG_MAPS
from vpa.cluster.writes import delete

SPACE = "outages"


@pytest.fixture(scope="module")
def outage_cluster(own_cluster: Cluster) -> Cluster:
    own_cluster.create_namespace(SPACE)
    return own_cluster


@pytest.fixture
async def connection(outage_cluster: Cluster) -> AsyncIterator[Connection]:
    async with await connect(outage_cluster) as opened:
        yield opened


async def equal(copy: Reflector[Any, str], connection: Connection) -> None:
    """Wait until *copy* is what a fresh list says."""
    fresh = await listed(connection, SPACE)
    await until(lambda: dict(copy.items()) == fresh, "the copy to be as a fresh list", seconds=30.0)


async def churn(connection: Connection) -> None:
    """Make, change and delete objects for ever, through every outage."""
    for number in range(1_000_000):
        name = f"c{number % 40}"
        try:
            match random.randrange(3):
                case 0:
                    await make(connection, SPACE, name)
                case 1:
                    await change(connection, SPACE, name, x=str(number))
                case _:
                    await delete(connection, CONFIG_MAPS, name, namespace=SPACE)
        except ClusterError:
            pass
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("victim", ["etcd", "kube-apiserver"])
async def test_a_killed_and_restarted_component_costs_the_copy_nothing(
    outage_cluster: Cluster, connection: Connection, victim: str
) -> None:
    copy = versions(connection, SPACE, pace=QUICK)
    process = outage_cluster.process(victim)
    async with running(copy, timeout=20):
        work = asyncio.create_task(churn(connection))
        await asyncio.sleep(1.0)
        requests = connection.requests["WATCH", 0] + connection.requests["WATCH", 200] + copy.counters.lists
        await asyncio.to_thread(process.kill)
        began = time.monotonic()
        await asyncio.sleep(3.0)
        assert copy.synced  # the old copy is served
        await asyncio.to_thread(process.start)
        await asyncio.to_thread(outage_cluster.wait_until_ready)
        outage = time.monotonic() - began
        await asyncio.sleep(1.0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await equal(copy, connection)
        sent = (
            connection.requests["WATCH", 0]
            + connection.requests["WATCH", 200]
            + copy.counters.lists
            - requests
        )
        print(f"{victim} away for {outage:.1f} s: {sent} requests of the reflector, {copy.counters}")
        assert sent / outage <= 5  # waits grow to 0.4 and 1 s in tests, 30 and 60 s otherwise


async def test_a_server_that_is_paused_is_noticed_and_the_copy_caught_up(
    outage_cluster: Cluster, connection: Connection
) -> None:
    copy = versions(connection, SPACE, pace=replace(QUICK, inactivity=2.0))
    process = outage_cluster.process("kube-apiserver")
    async with running(copy, timeout=20):
        await asyncio.to_thread(process.pause)
        await asyncio.sleep(4.0)
        assert copy.last_error is not None
        await asyncio.to_thread(process.resume)
        await make(connection, SPACE, "after-the-pause")
        await equal(copy, connection)


async def test_a_compacted_history_is_listed_afresh(outage_cluster: Cluster, connection: Connection) -> None:
    """A version from before the server's start is too old: 410, from the real server."""
    copy = versions(connection, SPACE, pace=QUICK)
    async with running(copy, timeout=20):
        copy._version = "1"
        outage_cluster.process("kube-apiserver").kill()
        outage_cluster.process("kube-apiserver").start()
        await asyncio.to_thread(outage_cluster.wait_until_ready)
        await equal(copy, connection)
        assert copy.counters.lists <= 3
