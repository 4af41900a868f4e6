"""Leader election on a real Lease, with clocks that the tests move; and the status lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cluster.clients import connect, make, until
from tests.testbed.cluster import Cluster
from vpa.cluster import errors, heartbeats, reads, writes
from vpa.cluster.connection import Connection
from vpa.cluster.leases import Election, LeadershipLostError
from vpa.cluster.resources import LEASES
from vpa.objects.meta import ObjectMeta


class Time:
    """A monotonic clock that only moves when told, or when somebody sleeps on it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
async def connection(cluster: Cluster) -> AsyncIterator[Connection]:
    async with await connect(cluster) as opened:
        yield opened


def candidate(connection: Connection, namespace: str, name: str, **options: Any) -> tuple[Election, Time]:
    time = Time()
    options = {"clock": time, "sleep": time.sleep, **options}
    return Election(connection, namespace=namespace, name="lock", identity=name, **options), time


def real(connection: Connection, namespace: str, name: str) -> Election:
    """A candidate in real time, ten times as quick as usual."""
    return Election(
        connection,
        namespace=namespace,
        name="lock",
        identity=name,
        lease_duration=1.5,
        renew_deadline=1.0,
        retry_period=0.2,
    )


async def spec(connection: Connection, namespace: str, name: str = "lock") -> dict[str, Any]:
    found = await reads.get(connection, LEASES, name, kind=dict[str, Any], namespace=namespace)
    return dict(found["spec"])


async def test_the_first_candidate_writes_a_lease_as_client_go_does(
    connection: Connection, namespace: str
) -> None:
    moment = datetime(2026, 8, 1, 14, 30, 5, tzinfo=UTC).astimezone()  # whole seconds, some local zone
    election, _ = candidate(connection, namespace, "a", now=lambda: moment)
    assert not election.leading
    await election.acquire()
    assert election.leading
    assert await spec(connection, namespace) == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-08-01T14:30:05.000000Z",
        "renewTime": "2026-08-01T14:30:05.000000Z",
    }


async def test_another_waits_until_it_has_seen_no_renewal_for_the_whole_duration(
    connection: Connection, namespace: str
) -> None:
    first, _ = candidate(connection, namespace, "a")
    await first.acquire()
    second, time = candidate(connection, namespace, "b")
    await second.acquire()
    assert 15.0 <= time.now - 1000.0 <= 15.0 + 2.4
    found = await spec(connection, namespace)
    assert (found["holderIdentity"], found["leaseTransitions"]) == ("b", 1)
    assert second.term == 1


async def test_a_renewal_starts_the_wait_of_the_others_anew(connection: Connection, namespace: str) -> None:
    first, _ = candidate(connection, namespace, "a")
    await first.acquire()
    second, time = candidate(connection, namespace, "b")
    taken: dict[float, bool] = {}
    for moment in (0.0, 14.9):
        time.now = 1000.0 + moment
        taken[moment] = await second._try(timeout=3.0)
    assert await first._try(timeout=3.0)
    for moment in (15.1, 30.0, 30.2):
        time.now = 1000.0 + moment
        taken[moment] = await second._try(timeout=3.0)
    assert taken == {0.0: False, 14.9: False, 15.1: False, 30.0: False, 30.2: True}


async def test_the_holder_stops_before_anybody_else_may_start(connection: Connection, namespace: str) -> None:
    election, time = candidate(connection, namespace, "a")
    await election.acquire()
    time.now += 9.9
    assert election.leading
    election.check()
    time.now += 0.2  # not a single request was needed to know it
    assert not election.leading
    with pytest.raises(LeadershipLostError, match=f"not the leader: lease {namespace}/lock is not ours"):
        election.check()


@pytest.mark.parametrize("hours", [-24, 24])
async def test_a_jump_of_the_wall_clock_neither_costs_nor_gives_the_lease(
    connection: Connection, namespace: str, hours: int
) -> None:
    moment = datetime.now(UTC)
    first, time_of_first = candidate(connection, namespace, "a", now=lambda: moment)
    await first.acquire()
    moment += timedelta(hours=hours)
    time_of_first.now += 2.0
    assert await first._try(timeout=3.0)
    second, time = candidate(connection, namespace, "b")
    await second.acquire()
    assert time.now - 1000.0 >= 15.0


async def test_a_longer_duration_that_the_holder_was_promised_is_kept(
    connection: Connection, namespace: str
) -> None:
    first, _ = candidate(connection, namespace, "a", lease_duration=60.0)
    await first.acquire()
    second, time = candidate(connection, namespace, "b")
    await second.acquire()
    assert time.now - 1000.0 >= 60.0


async def test_a_released_lease_is_taken_at_once(connection: Connection, namespace: str) -> None:
    first, _ = candidate(connection, namespace, "a")
    await first.acquire()
    await first.release()
    assert not first.leading
    found = await spec(connection, namespace)
    assert (found["holderIdentity"], found["leaseDurationSeconds"]) == ("", 1)
    second, time = candidate(connection, namespace, "b")
    await second.acquire()
    assert time.now == 1000.0
    assert (await spec(connection, namespace))["leaseTransitions"] == 1


async def test_a_renewal_keeps_when_it_was_acquired_and_what_others_put_into_the_lease(
    connection: Connection, namespace: str
) -> None:
    body = {
        "metadata": {"name": "lock", "labels": {"team": "red"}},
        "spec": {"leaseTransitions": 7, "preferredHolder": "b", "strategy": "OldestEmulationVersion"},
    }
    await writes.create(connection, LEASES, body, kind=dict, namespace=namespace)
    election, time = candidate(connection, namespace, "a")
    await election.acquire()
    before = await spec(connection, namespace)
    time.now += 2.0
    assert await election._try(timeout=3.0)
    after = await spec(connection, namespace)
    assert after["renewTime"] > before["renewTime"]
    assert {**after, "renewTime": before["renewTime"]} == before
    assert after["leaseTransitions"] == 8
    kept = await reads.get(connection, LEASES, "lock", kind=dict[str, Any], namespace=namespace)
    assert kept["metadata"]["labels"] == {"team": "red"}


async def test_of_two_that_try_at_the_same_moment_one_wins(connection: Connection, namespace: str) -> None:
    for _ in range(5):
        pair = [candidate(connection, namespace, name)[0] for name in ("a", "b")]
        won = await asyncio.gather(*(election._try(timeout=5.0) for election in pair))
        assert sorted(won) == [False, True]
        await pair[won.index(True)].release()


async def test_a_lease_that_somebody_deletes_is_made_anew(connection: Connection, namespace: str) -> None:
    election = real(connection, namespace, "a")
    async with election.held():
        await writes.delete(connection, LEASES, "lock", namespace=namespace)
        await asyncio.sleep(1.2)
        assert election.leading
        assert (await spec(connection, namespace))["holderIdentity"] == "a"


async def test_while_held_it_is_renewed_and_afterwards_released(
    connection: Connection, namespace: str
) -> None:
    election = real(connection, namespace, "a")
    async with election.held():
        await asyncio.sleep(1.5)
        assert election.leading
    assert not election.leading
    assert (await spec(connection, namespace))["holderIdentity"] == ""


async def test_what_the_body_raises_is_passed_on_and_the_lease_released(
    connection: Connection, namespace: str
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with real(connection, namespace, "a").held():
            raise ZeroDivisionError
    assert (await spec(connection, namespace))["holderIdentity"] == ""


async def test_cancelling_the_body_from_outside_stays_a_cancellation(
    connection: Connection, namespace: str
) -> None:
    election = real(connection, namespace, "a")

    async def work() -> None:
        async with election.held():
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await until(lambda: election.leading, "leadership")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await spec(connection, namespace))["holderIdentity"] == ""


async def test_a_lease_that_another_overwrites_is_lost_and_the_body_cancelled(
    connection: Connection, namespace: str
) -> None:
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled = True
            raise

    async def lead() -> None:
        async with real(connection, namespace, "a").held():
            body = {"spec": {"holderIdentity": "thief"}}
            await writes.patch(connection, LEASES, "lock", body, kind=dict, namespace=namespace)
            await work()

    with pytest.raises(LeadershipLostError, match=f"lease {namespace}/lock is lost: thief holds it"):
        await lead()
    assert cancelled
    assert (await spec(connection, namespace))["holderIdentity"] == "thief"


@pytest.mark.parametrize("fault", ["stall", "drop", "500"])
async def test_without_the_server_the_lease_is_lost_at_the_renew_deadline(
    cluster: Cluster, namespace: str, fault: str
) -> None:
    with cluster.fault_proxy() as proxy:
        async with await connect(cluster, proxy.url) as connection:
            election = real(connection, namespace, "a")
            loop = asyncio.get_running_loop()
            await election.acquire()
            started = loop.time()
            if fault == "500":
                proxy.answer(500)
            else:
                getattr(proxy, fault)()
            with pytest.raises(LeadershipLostError):
                await election.keep()
            assert 0.5 <= loop.time() - started < 1.4
            assert proxy.count(method="PUT") <= 8


async def test_one_renewal_that_hangs_does_not_cost_the_lease(cluster: Cluster, namespace: str) -> None:
    with cluster.fault_proxy() as proxy:
        async with await connect(cluster, proxy.url) as connection, real(connection, namespace, "a").held():
            proxy.stall(method="PUT", count=1)  # written, but no answer: the next one meets a conflict
            await asyncio.sleep(1.5)
        async with await connect(cluster) as connection:
            assert (await spec(connection, namespace))["holderIdentity"] == ""


async def test_renewals_do_not_wait_behind_other_requests_nor_at_the_fence(
    cluster: Cluster, namespace: str
) -> None:
    async with await connect(cluster, qps=1, burst=1) as connection:
        election = real(connection, namespace, "a")
        connection.fence = election.check
        async with election.held():
            others = [asyncio.create_task(make(connection, namespace, f"c{n}")) for n in range(20)]
            await asyncio.sleep(1.5)
            assert election.leading
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)


async def test_upstream_s_permissions_are_enough(cluster: Cluster, namespace: str) -> None:
    account = await asyncio.to_thread(cluster.service_account, namespace, "leader")
    lock = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    rules = [
        lock | {"verbs": ["create"]},
        lock | {"resourceNames": ["lock"], "verbs": ["get", "watch", "update"]},
    ]
    await asyncio.to_thread(lambda: account.grant(rules, namespace=namespace))
    async with await Connection.open(kubeconfig=str(account.kubeconfig)) as connection:
        election, time = candidate(connection, namespace, "a")
        await election.acquire()
        time.now += 2.0
        assert await election._try(timeout=3.0)
        await election.release()


@pytest.mark.parametrize("durations", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
async def test_durations_that_do_not_fit_are_refused(
    connection: Connection, namespace: str, durations: tuple[float, float, float]
) -> None:
    with pytest.raises(errors.ConfigurationError, match="lease duration > renew deadline > retry period"):
        Election(
            connection,
            namespace=namespace,
            name="lock",
            lease_duration=durations[0],
            renew_deadline=durations[1],
            retry_period=durations[2],
        )


NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("created", "renewed", "alive"),
    [
        (59, None, True),
        (60, None, False),  # exactly the timeout is too long
        (3600, 59, True),
        (3600, 60, False),
        (10, 3600, True),
        (None, None, False),
        (3600, -30, True),  # its clock is ahead of ours
    ],
)
def test_a_status_lease_is_alive_for_its_timeout_after_creation_or_renewal(
    created: int | None, renewed: int | None, alive: bool
) -> None:
    def before(seconds: int | None) -> datetime | None:
        return None if seconds is None else NOW - timedelta(seconds=seconds)

    lease = heartbeats.Lease(
        metadata=ObjectMeta(creation_timestamp=before(created)),
        spec=heartbeats.LeaseSpec(renew_time=before(renewed)),
    )
    assert heartbeats.is_alive(lease, now=NOW, timeout=60) is alive


async def test_the_status_lease_is_created_without_and_renewed_with_a_time(
    connection: Connection, namespace: str
) -> None:
    first = heartbeats.Heartbeat(connection, namespace=namespace, name="status", holder="host-a")
    second = heartbeats.Heartbeat(connection, namespace=namespace, name="status", holder="host-b")
    with pytest.raises(errors.NotFound):
        await heartbeats.read(connection, namespace=namespace, name="status")
    await first.beat()
    assert await spec(connection, namespace, "status") == {
        "holderIdentity": "host-a",
        "leaseDurationSeconds": 10,
    }
    lease = await heartbeats.read(connection, namespace=namespace, name="status")
    assert heartbeats.is_alive(lease, now=datetime.now(UTC), timeout=60)
    await second.beat()
    lease = await heartbeats.read(connection, namespace=namespace, name="status")
    assert lease.spec.holder_identity == "host-b"
    assert lease.spec.renew_time is not None


async def test_replicas_that_beat_at_the_same_moment_do_not_mind(
    connection: Connection, namespace: str
) -> None:
    beats = [
        heartbeats.Heartbeat(connection, namespace=namespace, name="status", holder=f"host-{n}")
        for n in range(5)
    ]
    for _ in range(3):
        await asyncio.gather(*(heartbeat.beat() for heartbeat in beats))


async def test_a_heartbeat_goes_on_after_failures(
    cluster: Cluster, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.fault_proxy() as proxy:
        async with await connect(cluster, proxy.url) as connection:
            heartbeat = heartbeats.Heartbeat(
                connection, namespace=namespace, name="status", holder="h", interval=0.1
            )
            proxy.answer(403)
            task = asyncio.create_task(heartbeat.run())
            await until(lambda: heartbeat.failures >= 3, "three failures")
            proxy.heal()
            await until(lambda: heartbeat.failures == 0, "a beat")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert len([record for record in caplog.records if "status lease" in record.message]) == 1
