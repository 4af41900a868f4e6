"""What of a collection is copied, and what becomes of objects that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cluster.clients import QUICK, change, connect, listed, make, until, versions
from tests.testbed.cluster import Cluster
from vpa.cluster import watching
from vpa.cluster.connection import Connection
from vpa.cluster.reflectors import Reflector, running, whole
from vpa.cluster.resources import CONFIG_MAPS, PODS
from vpa.cluster.writes import create, delete, patch
from vpa.objects.meta import Obj, ObjectMeta, PartialObject
from vpa.objects.pods import Pod


class Numbers(Obj, frozen=True):
    """A ConfigMap whose values must be numbers; others cannot be read as one."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, Number] | None = None


class Number(Obj, frozen=True):
    """JSON never has this shape where the API has a string."""


class Sized(Obj, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


@pytest.fixture
async def connection(cluster: Cluster) -> AsyncIterator[Connection]:
    async with await connect(cluster) as opened:
        yield opened


def numbers(connection: Connection, namespace: str) -> Reflector[Any, Numbers]:
    return Reflector(
        connection,
        CONFIG_MAPS,
        kind=Numbers,
        project=whole,
        namespace=namespace,
        field_selector="metadata.name!=kube-root-ca.crt",
        pace=QUICK,
    )


async def test_an_object_that_cannot_be_read_is_left_out_named_and_counted(
    connection: Connection, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    await make(connection, namespace, "good")
    await make(connection, namespace, "bad", x="text")
    copy = numbers(connection, namespace)
    async with running(copy, timeout=10):
        assert list(copy) == [(namespace, "good")]
        assert list(copy.poison) == [(namespace, "bad")]
        await make(connection, namespace, "later", x="text")
        await make(connection, namespace, "fine")
        await until(lambda: (namespace, "fine") in copy, "the event after the bad one")
        assert set(copy.poison) == {(namespace, "bad"), (namespace, "later")}
        assert copy.counters.poison == 2
        assert copy.counters.watches == 1
    assert (
        f"configmaps {namespace}/bad is left out, it cannot be read: Expected `object`, got `str`"
        in caplog.text
    )


async def test_an_object_that_becomes_unreadable_is_dropped_and_comes_back_when_mended(
    connection: Connection, namespace: str
) -> None:
    await make(connection, namespace, "a")
    copy = numbers(connection, namespace)
    async with running(copy, timeout=10):
        told: list[tuple[bool, bool]] = []
        copy.subscribe(lambda old, new: told.append((old is not None, new is not None)))
        await change(connection, namespace, "a", x="text")
        await until(lambda: copy.poison, "the bad version")
        assert len(copy) == 0
        await patch(connection, CONFIG_MAPS, "a", {"data": None}, kind=PartialObject, namespace=namespace)
        await until(lambda: len(copy) == 1, "the good version")
        assert not copy.poison
        assert told == [(False, True), (True, False), (False, True)]


async def test_a_projection_that_fails_leaves_out_that_object_only(
    connection: Connection, namespace: str
) -> None:
    await make(connection, namespace, "a")
    await make(connection, namespace, "b")

    def project(found: PartialObject) -> str:
        if found.metadata.name == "a":
            raise LookupError("no such thing")
        return found.metadata.name

    copy = Reflector(
        connection, CONFIG_MAPS, kind=PartialObject, project=project, namespace=namespace, pace=QUICK
    )
    async with running(copy, timeout=10):
        assert (namespace, "b") in copy
        assert (namespace, "a") not in copy
        assert copy.poison[namespace, "a"].problem == "LookupError: no such thing"


async def test_what_the_projection_does_not_want_is_not_kept(connection: Connection, namespace: str) -> None:
    def project(found: Sized) -> int | None:
        return len(found.data or {}) or None

    copy = Reflector(connection, CONFIG_MAPS, kind=Sized, project=project, namespace=namespace, pace=QUICK)
    async with running(copy, timeout=10):
        await make(connection, namespace, "empty")
        await make(connection, namespace, "a", x="1", y="2")
        await until(lambda: (namespace, "a") in copy, "the object")
        assert copy[namespace, "a"] == 2
        assert (namespace, "empty") not in copy
        await patch(connection, CONFIG_MAPS, "a", {"data": None}, kind=PartialObject, namespace=namespace)
        await until(lambda: (namespace, "a") not in copy, "the object that is not wanted any more")


async def test_an_event_longer_than_a_line_may_be_is_read_from_a_list(
    connection: Connection, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LONGEST_LINE", 100_000)
    copy = versions(connection, namespace)
    async with running(copy, timeout=10):
        await make(connection, namespace, "long", x="x" * 500_000)
        await make(connection, namespace, "after")
        fresh = await listed(connection, namespace)
        await until(lambda: dict(copy.items()) == fresh, "both objects")
        assert copy.counters.lists <= 3


async def test_objects_are_chosen_by_label_and_field_and_leave_when_they_stop_matching(
    connection: Connection, namespace: str
) -> None:
    for name, team in (("a", "red"), ("b", "red"), ("c", "blue")):
        body = {"metadata": {"name": name, "labels": {"team": team}}}
        await create(connection, CONFIG_MAPS, body, kind=PartialObject, namespace=namespace)
    copy = versions(connection, namespace, label_selector="team=red", field_selector="metadata.name!=b")
    async with running(copy, timeout=10):
        assert list(copy) == [(namespace, "a")]
        body = {"metadata": {"labels": {"team": "blue"}}}
        await patch(connection, CONFIG_MAPS, "a", body, kind=PartialObject, namespace=namespace)
        await until(lambda: not copy, "the object that does not match any more")


async def test_without_a_namespace_all_namespaces_are_copied(connection: Connection, namespace: str) -> None:
    await make(connection, namespace, "a")
    copy = versions(connection, "")
    async with running(copy, timeout=10):
        assert (namespace, "a") in copy
        assert len({key[0] for key in copy}) > 1


async def test_metadata_alone_is_asked_for_where_that_is_enough(
    connection: Connection, namespace: str
) -> None:
    await make(connection, namespace, "a", x="1")
    copy = Reflector(
        connection,
        CONFIG_MAPS,
        kind=Sized,
        project=whole,
        namespace=namespace,
        metadata_only=True,
        pace=QUICK,
    )
    async with running(copy, timeout=10):
        assert copy[namespace, "a"].data is None
        await change(connection, namespace, "a", x="2")
        await make(connection, namespace, "b", x="2")
        await until(lambda: (namespace, "b") in copy, "an event of metadata alone")
        assert copy[namespace, "b"].data is None


async def test_pods_are_followed_through_their_life(
    cluster: Cluster, connection: Connection, namespace: str
) -> None:
    phases: list[str] = []
    copy = Reflector(
        connection, PODS, kind=Pod, project=whole, namespace=namespace, field_selector="status.phase!=Pending"
    )
    copy.subscribe(lambda old, new: phases.append(new.status.phase if new else "gone"))
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    async with running(copy, timeout=10):
        await create(connection, PODS, body, kind=PartialObject, namespace=namespace)
        await until(lambda: (namespace, "p") in copy, "the running pod")
        uid = copy[namespace, "p"].metadata.uid
        await delete(connection, PODS, "p", namespace=namespace, uid=uid)
        await until(lambda: not copy, "the end of the pod")
    assert phases[0] == "Running"
    assert phases[-1] == "gone"


async def test_a_large_collection_is_paged_and_a_long_burst_of_events_followed(
    connection: Connection, namespace: str
) -> None:
    for start in range(0, 600, 50):
        await asyncio.gather(*(make(connection, namespace, f"c{n}") for n in range(start, start + 50)))
    copy = versions(connection, namespace, page=100)
    async with running(copy, timeout=10):
        assert len(copy) == 600
        for start in range(0, 600, 50):
            await asyncio.gather(
                *(change(connection, namespace, f"c{n}", x="1") for n in range(start, start + 50))
            )
        fresh = await listed(connection, namespace)
        await until(lambda: dict(copy.items()) == fresh, "all changes")
        assert copy.counters.lists == 1


async def test_an_error_that_nobody_expected_is_healed_by_a_fresh_list(
    connection: Connection, namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copy = versions(connection, namespace)
    async with running(copy, timeout=10):
        with monkeypatch.context() as broken:
            broken.setattr(copy, "_store", lambda found: 1 / 0)
            await make(connection, namespace, "a")
            await until(lambda: copy.last_error is not None, "the error")
            assert str(copy.last_error) == "unexpected ZeroDivisionError: division by zero"
        await until(lambda: (namespace, "a") in copy, "the object")
    assert "the copy is read afresh after an unexpected error" in caplog.text
