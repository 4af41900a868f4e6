"""Events in the real cluster: as upstream's, but never more than needed, and never in the way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cluster.clients import connect, make, until
from tests.testbed.cluster import Cluster
from vpa.cluster import events
from vpa.cluster.connection import Connection
from vpa.cluster.events import Recorder, Reference
from vpa.cluster.resources import CONFIG_MAPS, NODES
from vpa.objects.meta import ObjectMeta


class Time:
    """A clock that only moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> datetime:
        return datetime(2026, 8, 1, tzinfo=UTC) + timedelta(seconds=self.now)


@pytest.fixture
async def connection(cluster: Cluster) -> AsyncIterator[Connection]:
    async with await connect(cluster) as opened:
        yield opened


@pytest.fixture
async def about(connection: Connection, namespace: str) -> Reference:
    """A ConfigMap to talk about."""
    made = await make(connection, namespace, "subject")
    return Reference.of(CONFIG_MAPS, made.metadata)


@contextlib.asynccontextmanager
async def writing(recorder: Recorder) -> AsyncIterator[Recorder]:
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def found(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    return cluster.api.list("Event", namespace, fieldSelector="involvedObject.name=subject")


async def test_an_event_looks_as_upstream_s_and_kubectl_shows_it(
    cluster: Cluster, connection: Connection, namespace: str, about: Reference
) -> None:
    recorder = Recorder(connection, component="vpa-updater", host="node-1")
    async with writing(recorder):
        recorder.emit(about, "EvictedByVPA", "Pod was evicted by VPA Updater.")
        await until(lambda: recorder.written == 1, "the event")
    (event,) = found(cluster, namespace)
    assert event["source"] == {"component": "vpa-updater", "host": "node-1"}
    assert event["reportingComponent"] == "vpa-updater"
    assert (event["type"], event["reason"], event["count"]) == ("Normal", "EvictedByVPA", 1)
    assert event["message"] == "Pod was evicted by VPA Updater."
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "namespace": namespace,
        "name": "subject",
        "uid": about.uid,
    }
    assert event["firstTimestamp"] == event["lastTimestamp"]
    shown = cluster.kubectl("describe", "configmap", "subject", "-n", namespace)
    assert "EvictedByVPA" in shown
    assert "vpa-updater" in shown


async def test_the_same_event_again_raises_the_count_after_a_while(
    cluster: Cluster, connection: Connection, namespace: str, about: Reference
) -> None:
    clock = Time()
    recorder = Recorder(connection, component="c", clock=clock, now=clock.wall)
    async with writing(recorder):
        recorder.emit(about, "Again", "m")
        await until(lambda: recorder.written == 1, "the first")
        for _ in range(5):
            clock.now += 5
            recorder.emit(about, "Again", "m")
        await asyncio.sleep(0.2)
        assert found(cluster, namespace)[0]["count"] == 1  # a minute has not passed
        clock.now += events.SPACING
        recorder.emit(about, "Again", "m")
        await until(lambda: recorder.written == 2, "the second write")
    (event,) = found(cluster, namespace)
    assert event["count"] == 7
    assert event["firstTimestamp"] < event["lastTimestamp"]


async def test_many_messages_of_one_reason_on_one_object_become_one_event(
    cluster: Cluster, connection: Connection, namespace: str, about: Reference
) -> None:
    recorder = Recorder(connection, component="c")
    async with writing(recorder):
        for number in range(200):
            recorder.emit(about, "EvictedPod", f"VPA Updater evicted Pod p{number}")
        await until(lambda: recorder.written == events.SIMILAR + 1, "the events")
    seen = found(cluster, namespace)
    assert len(seen) == events.SIMILAR + 1
    combined = [event for event in seen if event["message"].startswith(events.COMBINED)]
    assert [(event["count"], event["message"]) for event in combined] == [
        (190, f"{events.COMBINED}VPA Updater evicted Pod p199")
    ]


async def test_emitting_never_waits_and_what_does_not_fit_is_counted(
    connection: Connection, namespace: str
) -> None:
    recorder = Recorder(connection, component="c", queue=100)
    started = time.monotonic()
    for number in range(10_000):
        metadata = ObjectMeta(name=f"pod-{number}", namespace=namespace)
        recorder.emit(Reference.of(CONFIG_MAPS, metadata), "R", "m")
    assert time.monotonic() - started < 1.0
    assert recorder.dropped == 9_900


async def test_events_keep_to_their_rate(cluster: Cluster, namespace: str) -> None:
    with cluster.fault_proxy() as proxy:
        async with await connect(cluster, proxy.url) as connection:
            recorder = Recorder(connection, component="c", per_minute=60)
            async with writing(recorder):
                for number in range(200):
                    metadata = ObjectMeta(name=f"pod-{number}", namespace=namespace)
                    recorder.emit(Reference.of(CONFIG_MAPS, metadata), "R", "m")
                await until(lambda: recorder.written >= 60, "the burst")
                await asyncio.sleep(1.0)
        assert 60 <= proxy.count(path="*/events", method="POST") <= 64


async def test_an_event_that_has_expired_is_written_anew(
    cluster: Cluster, connection: Connection, namespace: str, about: Reference
) -> None:
    clock = Time()
    recorder = Recorder(connection, component="c", clock=clock, now=clock.wall)
    async with writing(recorder):
        recorder.emit(about, "Again", "m")
        await until(lambda: recorder.written == 1, "the first")
        cluster.api.delete("Event", found(cluster, namespace)[0]["metadata"]["name"], namespace)
        clock.now += events.SPACING
        recorder.emit(about, "Again", "m")
        await until(lambda: recorder.written == 2, "the second")
    assert [event["count"] for event in found(cluster, namespace)] == [1]


async def test_what_is_not_repeated_is_forgotten(
    cluster: Cluster, connection: Connection, namespace: str, about: Reference
) -> None:
    clock = Time()
    recorder = Recorder(connection, component="c", clock=clock, now=clock.wall)
    async with writing(recorder):
        recorder.emit(about, "Again", "m")
        await until(lambda: recorder.written == 1, "the first")
        clock.now += events.WINDOW + 1
        recorder.emit(about, "Other", "m")
        await until(lambda: recorder.written == 2, "the other")
        await until(lambda: len(recorder._series) == 1, "the first to be forgotten")


async def test_an_outage_delays_events_and_loses_none_that_fit(
    cluster: Cluster, namespace: str, about: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "RETRY_AFTER", 0.2)
    with cluster.fault_proxy() as proxy:
        async with await connect(cluster, proxy.url) as connection:
            recorder = Recorder(connection, component="c")
            proxy.answer(500)
            async with writing(recorder):
                recorder.emit(about, "R", "m")
                await until(lambda: proxy.count() >= 2, "two tries")
                proxy.heal()
                await until(lambda: recorder.written == 1, "the event")
    assert len(found(cluster, namespace)) == 1
    assert recorder.dropped == 0


async def test_a_missing_permission_is_said_once_and_costs_nothing_else(
    cluster: Cluster, namespace: str, about: Reference, caplog: pytest.LogCaptureFixture
) -> None:
    account = await asyncio.to_thread(cluster.service_account, namespace, "nobody")
    async with await Connection.open(kubeconfig=str(account.kubeconfig)) as connection:
        recorder = Recorder(connection, component="c")
        async with writing(recorder):
            for number in range(5):
                recorder.emit(about, f"R{number}", "m")
            await until(lambda: recorder.dropped == 5, "five refusals")
    assert len([record for record in caplog.records if "is lost" in record.message]) == 1


async def test_at_the_end_what_is_waiting_is_written(
    cluster: Cluster, connection: Connection, namespace: str, about: Reference
) -> None:
    recorder = Recorder(connection, component="c")
    recorder.emit(about, "Last", "m")
    await recorder.flush(timeout=5.0)
    assert [event["reason"] for event in found(cluster, namespace)] == ["Last"]


async def test_the_end_does_not_wait_for_a_server_that_does_not_answer(
    cluster: Cluster, namespace: str, about: Reference
) -> None:
    with cluster.fault_proxy() as proxy:
        async with await connect(cluster, proxy.url) as connection:
            proxy.stall()
            recorder = Recorder(connection, component="c")
            recorder.emit(about, "Last", "m")
            started = time.monotonic()
            await recorder.flush(timeout=0.5)
            assert time.monotonic() - started < 1.5


async def test_an_event_about_the_cluster_s_own_goes_to_the_default_namespace(
    cluster: Cluster, connection: Connection
) -> None:
    recorder = Recorder(connection, component="c")
    recorder.emit(Reference.of(NODES, ObjectMeta(name="some-node")), "R", "m", type=events.WARNING)
    await recorder.flush(timeout=5.0)
    seen = cluster.api.list("Event", "default", fieldSelector="involvedObject.name=some-node")
    assert [(event["type"], event["involvedObject"].get("namespace")) for event in seen] == [
        ("Warning", None)
    ]
