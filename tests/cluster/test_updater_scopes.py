"""A DaemonSet that a node label splits: its pods get what is recommended for nodes like theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import roles
from tests.cluster.updating import VPA, Scene, requested
from tests.cluster.webhooks import Webhook
from tests.testbed.api import Json
from tests.testbed.cluster import Cluster

LABEL = "testbed.local/size"
TARGETS = {"big": "300m", "small": "50m", "__absent__": "100m"}
WANTED = {"fake-0": "300m", "fake-1": "50m", "fake-2": "100m"}


@pytest.fixture(scope="module", autouse=True)
def webhook(cluster: Cluster) -> Iterator[Webhook]:
    """Our admission controller, for all namespaces."""
    account = cluster.service_account("kube-system", "vpa-admission-controller")
    roles.ours("admission-controller").grant_to(account)
    with Webhook(cluster=cluster, account=account) as running:
        yield running


@pytest.fixture
def scene(cluster: Cluster, namespace: str) -> Iterator[Scene]:
    """One node is big, one is small, and one says nothing; a DaemonSet of 100m runs on all of them."""
    found = Scene(cluster, namespace)
    found.lease()
    label(cluster, {"fake-0": "big", "fake-1": "small"})
    found.workload(kind="DaemonSet", replicas=3)
    yield found
    label(cluster, {"fake-0": None, "fake-1": None})


def label(cluster: Cluster, values: dict[str, str | None]) -> None:
    for node, value in values.items():
        cluster.api.patch("Node", node, body={"metadata": {"labels": {LABEL: value}}})


def vpa(scene: Scene, mode: str) -> None:
    """With a group for each kind of node, as the recommender writes them, and nothing beside them."""
    scene.vpa(kind="DaemonSet", mode=mode, recommend=None, scope=LABEL)
    groups: list[Json] = []
    for value, cpu in TARGETS.items():
        size = {"cpu": cpu, "memory": "100Mi"}
        entry = {"containerName": "main", "target": size, "lowerBound": size, "upperBound": size}
        groups.append({"scopeValue": value, "containerRecommendations": [entry]})
    body = {"status": {"groups": groups}}
    scene.api.patch(VPA, "app", scene.namespace, body=body, subresource="status")


def by_node(scene: Scene) -> dict[str, str]:
    """Node → CPU request of its pod."""
    return {pod["spec"]["nodeName"]: requested(pod)["cpu"] for pod in scene.pods()}


@pytest.mark.parametrize(("mode", "action"), [("Recreate", "evict"), ("InPlaceOrRecreate", "resize")])
async def test_each_pod_is_brought_to_the_target_of_its_node(scene: Scene, mode: str, action: str) -> None:
    before = scene.uids()
    vpa(scene, mode)
    foretold = scene.foretold()
    async with scene.updater() as updater:
        first = {f"{action} OutsideBounds": 1, "none BudgetSpent": 1, "none UpToDate": 1}
        assert await updater.pass_once() == first
        assert sorted(foretold.values()) == sorted(tuple(one.split(" ")) for one in first)
        await updater.passes(4)
        assert updater.decisions() == {"none UpToDate": 3}
    assert by_node(scene) == WANTED
    assert len(before & scene.uids()) == (1 if action == "evict" else 3)


async def test_a_node_that_becomes_another_changes_the_target_of_its_pod(scene: Scene) -> None:
    vpa(scene, "InPlaceOrRecreate")
    async with scene.updater() as updater:
        await updater.passes(4)
        assert by_node(scene) == WANTED
        label(scene.cluster, {"fake-1": "big", "fake-0": "unheard-of"})
        nodes = updater.parts.mirrors.nodes
        await updater.until(
            lambda: (nodes["", "fake-0"].metadata.labels or {}).get(LABEL) == "unheard-of", "the news"
        )
        await updater.passes(3)
        assert updater.decisions() == {"none UpToDate": 2, "none NoRecommendation": 1}
        assert by_node(scene) == WANTED | {"fake-1": "300m"}
