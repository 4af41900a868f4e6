"""Writes to the real API server: only what is ours, never over somebody else's change."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cluster.clients import change, config_map, connect, make
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from vpa.cluster import errors, reads, statuses, writes
from vpa.cluster.connection import Connection
from vpa.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, PODS, VERTICAL_AUTOSCALERS
from vpa.objects.autoscalers import Condition, VerticalPodAutoscaler
from vpa.objects.meta import Obj, ObjectMeta, PartialObject

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)


class Data(Obj, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


@pytest.fixture
async def connection(cluster: Cluster) -> AsyncIterator[Connection]:
    async with await connect(cluster) as opened:
        yield opened


async def data(connection: Connection, namespace: str, name: str = "a") -> dict[str, str]:
    found = await reads.get(connection, CONFIG_MAPS, name, kind=Data, namespace=namespace)
    return dict(found.data or {})


async def autoscaler(connection: Connection, namespace: str) -> VerticalPodAutoscaler:
    body = {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": "v"},
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}},
    }
    return await writes.create(
        connection, VERTICAL_AUTOSCALERS, body, kind=VerticalPodAutoscaler, namespace=namespace
    )


@pytest.mark.parametrize(
    ("style", "body"),
    [
        ("merge", {"data": {"y": "2"}}),
        ("strategic", {"data": {"y": "2"}}),
        ("json", [{"op": "add", "path": "/data/y", "value": "2"}]),
        ("apply", config_map("a", y="2")),
    ],
)
async def test_a_patch_of_any_style_changes_only_what_it_names(
    connection: Connection, namespace: str, style: writes.Style, body: Any
) -> None:
    await make(connection, namespace, "a", x="1")
    await writes.patch(
        connection,
        CONFIG_MAPS,
        "a",
        body,
        kind=PartialObject,
        namespace=namespace,
        style=style,
        field_manager="test",
    )
    assert await data(connection, namespace) == {"x": "1", "y": "2"}


@pytest.mark.parametrize(
    ("style", "body"),
    [
        ("merge", {"data": {"y": "2"}}),
        ("json", [{"op": "add", "path": "/data/y", "value": "2"}]),
        ("apply", config_map("a", y="2")),
    ],
)
async def test_a_patch_computed_from_an_old_version_is_a_conflict(
    connection: Connection, namespace: str, style: writes.Style, body: Any
) -> None:
    old = await make(connection, namespace, "a", x="1")
    await change(connection, namespace, "a", x="2")
    with pytest.raises(errors.Conflict):
        await writes.patch(
            connection,
            CONFIG_MAPS,
            "a",
            body,
            kind=PartialObject,
            namespace=namespace,
            style=style,
            field_manager="test",
            resource_version=old.metadata.resource_version,
        )
    assert await data(connection, namespace) == {"x": "2"}


async def test_after_a_conflict_the_change_is_computed_anew_from_what_is_there(
    connection: Connection, namespace: str
) -> None:
    await make(connection, namespace, "a", n="1")
    old = await reads.get(connection, CONFIG_MAPS, "a", kind=Data, namespace=namespace)
    await change(connection, namespace, "a", n="10", other="x")
    asked: list[str] = []

    def increase(current: Data) -> Mapping[str, Any]:
        asked.append((current.data or {})["n"])
        return {"data": {"n": str(int(asked[-1]) + 1)}}

    updated = await writes.update(connection, CONFIG_MAPS, old, increase, kind=Data)
    assert asked == ["1", "10"]
    assert updated.data == {"n": "11", "other": "x"}


async def test_nothing_is_sent_when_nothing_is_to_change(connection: Connection, namespace: str) -> None:
    await make(connection, namespace, "a")
    current = await reads.get(connection, CONFIG_MAPS, "a", kind=Data, namespace=namespace)
    before = connection.requests.total()
    assert await writes.update(connection, CONFIG_MAPS, current, lambda _: None, kind=Data) is current
    assert connection.requests.total() == before


async def test_an_object_that_was_made_anew_is_not_given_what_was_meant_for_the_old_one(
    connection: Connection, namespace: str
) -> None:
    await make(connection, namespace, "a")
    old = await reads.get(connection, CONFIG_MAPS, "a", kind=Data, namespace=namespace)
    await writes.delete(connection, CONFIG_MAPS, "a", namespace=namespace)
    with pytest.raises(errors.NotFound):
        await writes.update(connection, CONFIG_MAPS, old, lambda _: {"data": {"x": "1"}}, kind=Data)
    await make(connection, namespace, "a")
    with pytest.raises(errors.Conflict, match="was deleted and made anew"):
        await writes.update(connection, CONFIG_MAPS, old, lambda _: {"data": {"x": "1"}}, kind=Data)
    assert await data(connection, namespace) == {}


async def test_a_write_without_an_answer_is_looked_up_and_not_done_twice(
    cluster: Cluster, namespace: str
) -> None:
    with cluster.fault_proxy() as proxy:
        async with await connect(cluster, proxy.url) as connection:
            await make(connection, namespace, "a")
            current = await reads.get(connection, CONFIG_MAPS, "a", kind=Data, namespace=namespace)
            proxy.cut(method="PATCH", count=1)  # written, but the answer is lost half way

            def once(current: Data) -> Mapping[str, Any] | None:
                return None if (current.data or {}).get("x") else {"data": {"x": "1"}}

            updated = await writes.update(connection, CONFIG_MAPS, current, once, kind=Data)
            assert updated.data == {"x": "1"}
            assert proxy.count(method="PATCH") == 1


async def test_a_delete_spares_the_successor_of_what_was_meant(
    connection: Connection, namespace: str
) -> None:
    made = await make(connection, namespace, "a")
    with pytest.raises(errors.Conflict):
        await writes.delete(connection, CONFIG_MAPS, "a", namespace=namespace, uid="another")
    await change(connection, namespace, "a", x="1")
    with pytest.raises(errors.Conflict):
        await writes.delete(
            connection,
            CONFIG_MAPS,
            "a",
            namespace=namespace,
            resource_version=made.metadata.resource_version,
        )
    await writes.delete(connection, CONFIG_MAPS, "a", namespace=namespace, uid=made.metadata.uid)
    with pytest.raises(errors.NotFound):
        await writes.delete(connection, CONFIG_MAPS, "a", namespace=namespace)


async def test_a_name_that_is_taken_is_an_error_of_its_own(connection: Connection, namespace: str) -> None:
    await make(connection, namespace, "a")
    with pytest.raises(errors.AlreadyExists):
        await make(connection, namespace, "a")


async def test_conditions_of_other_writers_stay_and_nothing_is_written_twice(
    connection: Connection, namespace: str
) -> None:
    vpa = await autoscaler(connection, namespace)
    mine = {"RecommendationProvided": Condition(type="RecommendationProvided", status="True")}
    theirs = {"NeverHeardOf": Condition(type="NeverHeardOf", status="False", reason="Because", message="m")}
    vpa = await statuses.write_conditions(connection, vpa, theirs, now=NOW)
    vpa = await statuses.write_conditions(connection, vpa, mine, now=NOW)
    version = vpa.metadata.resource_version
    vpa = await statuses.write_conditions(connection, vpa, mine, now=datetime(2027, 1, 1, tzinfo=UTC))
    assert vpa.metadata.resource_version == version
    vpa = await statuses.write_conditions(connection, vpa, {"RecommendationProvided": None}, now=NOW)
    assert vpa.status is not None
    assert vpa.status.conditions == [
        Condition(
            type="NeverHeardOf", status="False", reason="Because", message="m", last_transition_time=NOW
        )
    ]


async def test_two_writers_of_conditions_lose_nothing_in_a_thousand_rounds(
    cluster: Cluster, connection: Connection, namespace: str
) -> None:
    rounds = 1000
    vpa = await autoscaler(connection, namespace)
    theirs = {"Foreign": Condition(type="Foreign", status="True", reason="R", message="stays")}
    vpa = await statuses.write_conditions(connection, vpa, theirs, now=NOW)

    def number(found: VerticalPodAutoscaler, kind: str) -> int:
        conditions = (found.status.conditions if found.status else None) or []
        return next((int(item.message) for item in conditions if item.type == kind), -1)

    async def writer(own: str, other: str) -> int:
        seen = -1
        async with await connect(cluster) as mine:
            current = vpa
            for count in range(rounds):
                status = "True" if count % 2 else "False"
                wanted: dict[str, Condition | None] = {
                    own: Condition(type=own, status=status, message=str(count))
                }
                current = await statuses.write_conditions(mine, current, wanted, now=NOW)
                assert number(current, own) == count
                assert number(current, other) >= seen  # never set back
                seen = number(current, other)
                await asyncio.sleep(random.uniform(0.0, 0.01))
            return mine.requests["PATCH", 409]

    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(writer("A", "B")), group.create_task(writer("B", "A"))]
    conflicts = [done.result() for done in writers]
    final = await reads.get(
        connection, VERTICAL_AUTOSCALERS, "v", kind=VerticalPodAutoscaler, namespace=namespace
    )
    assert final.status is not None
    assert [(item.type, item.message) for item in final.status.conditions or ()] == [
        ("A", str(rounds - 1)),
        ("B", str(rounds - 1)),
        ("Foreign", "stays"),
    ]
    print(f"{2 * rounds} writes, {sum(conflicts)} conflicts")
    assert sum(conflicts) > rounds / 10  # they really met


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """The two running pods of a Deployment."""
    container = {
        "name": "c",
        "image": "i",
        "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "1"}},
    }
    cluster.api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "d"}},
                "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [container]}},
            },
        },
        namespace,
    )
    for _ in attempts(30, "two running pods"):
        found = cluster.api.list("Pod", namespace)
        if [item["status"].get("phase") for item in found] == ["Running"] * 2:
            break
    return found


async def test_an_eviction_takes_the_very_pod_and_keeps_the_budget(
    cluster: Cluster, connection: Connection, namespace: str, pods: list[dict[str, Any]]
) -> None:
    name, uid = pods[0]["metadata"]["name"], pods[0]["metadata"]["uid"]
    with pytest.raises(errors.Conflict):
        await writes.evict(connection, namespace=namespace, name=name, uid="another")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "d"}}},
    }
    cluster.api.create(budget, namespace)
    for _ in attempts(30, "the budget to be counted"):
        if cluster.api.get("PodDisruptionBudget", "b", namespace)["status"].get("currentHealthy") == 2:
            break
    with pytest.raises(errors.TooManyRequests) as caught:
        await writes.evict(connection, namespace=namespace, name=name, uid=uid)
    assert caught.value.has_cause("DisruptionBudget")
    assert caught.value.retry_after is None
    cluster.api.delete("PodDisruptionBudget", "b", namespace)
    await writes.evict(connection, namespace=namespace, name=name, uid=uid)
    with pytest.raises(errors.NotFound):
        await writes.evict(connection, namespace=namespace, name="none", uid=uid)


@pytest.mark.parametrize("style", ["json", "strategic"])
async def test_a_running_pod_is_resized_by_either_kind_of_patch(
    connection: Connection, namespace: str, pods: list[dict[str, Any]], style: str
) -> None:
    name = pods[0]["metadata"]["name"]
    body: Any = (
        [{"op": "add", "path": "/spec/containers/0/resources/requests/cpu", "value": "200m"}]
        if style == "json"
        else {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "200m"}}}]}}
    )
    await writes.resize(connection, namespace=namespace, name=name, body=body)
    pod = await reads.get(connection, PODS, name, kind=dict, namespace=namespace)
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "200m", "memory": "100Mi"}


async def test_a_resize_that_cannot_be_is_told_by_its_cause(
    connection: Connection, namespace: str, pods: list[dict[str, Any]]
) -> None:
    name = pods[0]["metadata"]["name"]
    path = "/spec/containers/0/resources"
    with pytest.raises(errors.Forbidden) as caught:
        await writes.resize(
            connection,
            namespace=namespace,
            name=name,
            body=[{"op": "add", "path": f"{path}/requests/memory", "value": "100Ti"}],
        )
    assert caught.value.has_cause("NodeCapacity")
    with pytest.raises(errors.Invalid):
        await writes.resize(
            connection, namespace=namespace, name=name, body=[{"op": "remove", "path": f"{path}/requests"}]
        )


async def test_a_scale_is_read_and_written_as_a_subresource(
    connection: Connection, namespace: str, pods: list[dict[str, Any]]
) -> None:
    scale = await writes.patch(
        connection,
        DEPLOYMENTS,
        "d",
        {"spec": {"replicas": 3}},
        kind=dict,
        namespace=namespace,
        subresource="scale",
    )
    assert (scale["kind"], scale["spec"], scale["status"]["selector"]) == ("Scale", {"replicas": 3}, "app=d")


async def test_writing_through_a_flood_of_429_takes_its_time_but_arrives(
    cluster: Cluster, namespace: str
) -> None:
    with cluster.fault_proxy() as proxy:
        async with await connect(cluster, proxy.url) as connection:
            proxy.answer(429, retry_after=1, method="POST", count=10)
            await asyncio.gather(*(make(connection, namespace, f"c{number}") for number in range(10)))
        arrivals = [seen.at for seen in proxy.requests if seen.method == "POST"]
    assert len(arrivals) == 20
    assert min(later - earlier for earlier, later in itertools.pairwise([arrivals[9], arrivals[10]])) >= 0.9
