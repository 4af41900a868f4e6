"""Several addresses of one API, in order: what is open moves to the next and comes back."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cluster.clients import QUICK, connect, listed, make, until, versions
from tests.testbed.cluster import Cluster
from tests.testbed.faults import FaultProxy
from vpa.cluster.leases import Election
from vpa.cluster.reflectors import running


@pytest.fixture
def pair(cluster: Cluster) -> Iterator[tuple[FaultProxy, FaultProxy]]:
    """Two addresses of the API."""
    with cluster.fault_proxy() as first, cluster.fault_proxy() as second:
        yield first, second


@pytest.mark.parametrize("fault", ["refuse", "drop", "stall"])
async def test_watch_and_lease_go_on_at_the_next_address(
    cluster: Cluster, namespace: str, pair: tuple[FaultProxy, FaultProxy], fault: str
) -> None:
    first, second = pair
    async with await connect(cluster, servers=[first.url, second.url]) as connection:
        copy = versions(connection, namespace, pace=replace(QUICK, inactivity=1.5))
        election = Election(
            connection,
            namespace=namespace,
            name="lock",
            lease_duration=6.0,
            renew_deadline=4.0,
            retry_period=0.5,
        )
        async with running(copy, timeout=10), election.held():
            assert second.count() == 0
            getattr(first, fault)()
            first.break_connections()
            started = time.monotonic()
            async with await connect(cluster) as direct:
                await make(direct, namespace, "a")
                fresh = await listed(direct, namespace)
            await until(lambda: dict(copy.items()) == fresh, "the news by the other address")
            print(f"{fault}: watch resumed after {time.monotonic() - started:.2f} s")
            assert copy.counters.lists == 1
            await asyncio.sleep(3.0)
            assert election.leading
            first.heal()
            first.accept()
            first.forget()
            await until(lambda: first.count(), "the first address to be used again", seconds=40.0)
            assert election.leading


async def test_a_write_that_was_refused_at_one_address_is_made_at_the_next(
    cluster: Cluster, namespace: str, pair: tuple[FaultProxy, FaultProxy]
) -> None:
    first, second = pair
    first.refuse()
    async with await connect(cluster, servers=[first.url, second.url]) as connection:
        started = time.monotonic()
        for number in range(20):
            await make(connection, namespace, f"c{number}")
        assert time.monotonic() - started < 8.0  # not a wait for each
    assert second.count(method="POST") == 20


async def test_an_address_that_swallows_connections_costs_a_second_once(
    cluster: Cluster, namespace: str, pair: tuple[FaultProxy, FaultProxy]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, nobody speaks TLS
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        async with await connect(cluster, servers=[url, pair[0].url]) as connection:
            started = time.monotonic()
            for number in range(20):
                await make(connection, namespace, f"c{number}")
            assert 1.0 <= time.monotonic() - started < 8.0


async def test_when_no_address_answers_the_tries_are_spread(
    cluster: Cluster, namespace: str, pair: tuple[FaultProxy, FaultProxy]
) -> None:
    first, second = pair
    async with await connect(cluster, servers=[first.url, second.url]) as connection:
        copy = versions(connection, namespace)
        async with running(copy, timeout=10):
            for proxy in pair:
                proxy.refuse()
                proxy.break_connections()
            before = connection.requests.total()
            await asyncio.sleep(3.0)
            assert connection.requests.total() - before <= 20  # at the quickened pace of tests
            second.accept()
            async with await connect(cluster) as direct:
                await make(direct, namespace, "a")
            await until(lambda: len(copy) == 1, "the news")


@pytest.mark.cluster
async def test_when_one_of_two_api_servers_is_killed_the_other_is_used() -> None:
    """Two real API servers over one store: copies and leases go on, and nothing is listed afresh."""
    with Cluster(apiservers=2) as cluster:
        cluster.create_namespace("pair")
        async with await connect(cluster, servers=cluster.servers) as connection:
            copy = versions(connection, "pair", pace=QUICK)
            election = Election(
                connection,
                namespace="pair",
                name="lock",
                lease_duration=6.0,
                renew_deadline=4.0,
                retry_period=0.5,
            )
            async with running(copy, timeout=10), election.held():
                await make(connection, "pair", "before")
                await asyncio.to_thread(cluster.process("kube-apiserver").kill)
                started = time.monotonic()
                await make(connection, "pair", "after")
                await until(lambda: len(copy) == 2, "the news by the other server")
                print(f"killed API server: watch resumed after {time.monotonic() - started:.2f} s")
                await asyncio.sleep(5.0)
                assert election.leading
                assert copy.counters.lists == 1
