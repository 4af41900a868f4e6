"""Each answer of the API server to an eviction or a resize has its reason, and is remembered as it should."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.cluster import roles
from tests.cluster.updating import OLD, Clock, Running, Scene, sizes
from tests.testbed.api import ApiError, Json
from tests.testbed.cluster import Cluster
from tests.testbed.faults import FaultProxy
from tests.testbed.processes import attempts

EVICTION = "*/eviction"
RESIZE = "*/resize"
SMALL = {"cpu": "999", "memory": "100Mi"}


@pytest.fixture
def scene(cluster: Cluster, namespace: str) -> Scene:
    """A namespace with a fresh admission lease."""
    found = Scene(cluster, namespace)
    found.lease()
    return found


def status(code: int, message: str, *, reason: str = "", causes: tuple[str, ...] = ()) -> str:
    """A failure as the API server writes it."""
    return json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
            "details": {"causes": [{"reason": one} for one in causes]},
        }
    )


def evictions(updater: Running, code: int) -> int:
    """How many evictions were answered so; events are written by POST, too, with 201."""
    return updater.connection.requests["POST", code]


# Evictions


async def test_a_budget_that_refuses_costs_few_tries_and_then_a_pause(scene: Scene) -> None:
    """429 with the cause DisruptionBudget and no time: what is under way is heard, then the group rests."""
    scene.workload(replicas=6)
    scene.disruption_budget(maxUnavailable=0)
    scene.vpa()
    clock = Clock()
    async with scene.updater("--foresee-disruption-budgets=false", now=clock) as updater:
        assert await updater.pass_once() == {"none DisruptionBudgetBlocked": 6}
        tried = evictions(updater, 429)
        assert 2 <= tried <= 4
        await updater.pass_once()
        assert evictions(updater, 429) <= 2 * tried  # others of the group, not the same
        refusals = updater.parts.metrics.own.refusals
        assert refusals.value(action="evict", reason="DisruptionBudgetBlocked") == evictions(updater, 429)
        failed = updater.parts.metrics.loop.failed_evictions
        name = {"vpa_name": "app", "vpa_namespace": scene.namespace, "update_mode": "Recreate"}
        assert failed.value(reason="EvictionError", vpa_size_log2="2", **name) == evictions(updater, 429)


async def test_a_budget_that_was_changed_is_asked_again_after_the_time_it_names(scene: Scene) -> None:
    """429 with the cause and ``Retry-After: 10``."""
    scene.workload(replicas=2)
    scene.vpa()
    body = status(429, "Cannot evict pod as it would violate", causes=("DisruptionBudget",))
    clock = Clock()
    with scene.cluster.fault_proxy() as proxy:
        proxy.answer(429, body=body, retry_after=10, path=EVICTION)
        async with scene.updater(server=proxy.url, now=clock) as updater:
            assert await updater.pass_once() == {"none DisruptionBudgetBlocked": 2}
            seen = proxy.count(path=EVICTION)
            proxy.heal()
            await updater.pass_once()
            assert proxy.count(path=EVICTION) == seen
            clock.advance(seconds=11)
            assert (await updater.pass_once())["evict OutsideBounds"] == 1


async def test_two_budgets_for_one_pod_are_said_on_the_vpa(scene: Scene) -> None:
    """500: nobody can evict such a pod, so the user has to mend it."""
    scene.workload(replicas=4)
    scene.disruption_budget("one", maxUnavailable=1)
    scene.disruption_budget("two", maxUnavailable=2)
    scene.vpa()
    async with scene.updater("--foresee-disruption-budgets=false") as updater:
        assert await updater.pass_once() == {"none DisruptionBudgetBlocked": 4}
        assert 1 <= evictions(updater, 500) <= 2
    clock = Clock()
    async with scene.updater(now=clock) as updater:
        assert await updater.pass_once() == {"none DisruptionBudgetBlocked": 4}
        assert evictions(updater, 500) == 0
        clock.advance(minutes=6)
        await updater.pass_once()
        condition = await updater.condition("UpdatesBlocked", "DisruptionBudgetBlocked")
        assert "several PodDisruptionBudgets select the pod (one, two)" in condition["message"]


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (403, "pod disruption budget app has too many disrupted pods", "DisruptionBudgetBlocked"),
        (400, "name in URL does not match name in Eviction object", "EvictionRefused"),
    ],
    ids=["403", "400"],
)
async def test_what_will_not_change_by_itself_is_left_alone_for_an_hour(
    scene: Scene, code: int, message: str, reason: str
) -> None:
    scene.workload(replicas=2)
    scene.vpa()
    clock = Clock()
    with scene.cluster.fault_proxy() as proxy:
        proxy.answer(code, body=status(code, message), path=EVICTION)
        async with scene.updater(server=proxy.url, now=clock) as updater:
            for _ in range(3):
                decisions = await updater.pass_once()
                clock.advance(minutes=1)
            assert decisions == {f"none {reason}": 2}
            assert proxy.count(path=EVICTION) == 2
            clock.advance(minutes=5)
            await updater.pass_once()
            found = await updater.condition("UpdatesBlocked", reason)
            assert message in found["message"]
            clock.advance(hours=1)
            proxy.heal()
            assert (await updater.pass_once())["evict OutsideBounds"] == 1


async def test_flow_control_stops_the_pass(scene: Scene) -> None:
    """429 without the cause: the server is overloaded, so nobody else is tried either."""
    for name in ("one", "two", "three"):
        scene.workload(name, replicas=2, wait=False)
    for name in ("one", "two", "three"):
        scene.wait_for_pods(2, name)
        scene.vpa(name)
    with scene.cluster.fault_proxy() as proxy:
        proxy.answer(429, retry_after=1, path=EVICTION)
        async with scene.updater("--eviction-rate-limit=5", server=proxy.url) as updater:
            decisions = await updater.pass_once()
            assert decisions.get("none ServerBusy", 0) >= 3
            assert "evict OutsideBounds" not in decisions
            assert proxy.count(path=EVICTION) == 1


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (504, lambda proxy: proxy.answer(504, retry_after=10, path=EVICTION)),
        (0, lambda proxy: proxy.drop(path=EVICTION)),
    ],
    ids=["504", "no answer"],
)
async def test_what_the_server_could_not_do_is_tried_again(
    scene: Scene, code: int, fault: Callable[[FaultProxy], None]
) -> None:
    scene.workload(replicas=2)
    scene.vpa()
    clock = Clock()
    with scene.cluster.fault_proxy() as proxy:
        fault(proxy)
        async with scene.updater(server=proxy.url, now=clock) as updater:
            decisions = await updater.pass_once()
            assert decisions["none ServerBusy"] == 1
            assert evictions(updater, code) == 1
            proxy.heal()
            clock.advance(minutes=1)
            assert (await updater.pass_once())["evict OutsideBounds"] == 1


async def test_without_the_permission_to_evict_few_evictions_are_tried(scene: Scene) -> None:
    """403 by RBAC."""
    scene.workload(replicas=4)
    scene.vpa()
    account = scene.cluster.service_account("kube-system", "vpa-updater-without-evictions")
    rules = [rule for rule in roles.ours("updater").cluster if "pods/eviction" not in rule["resources"]]
    account.grant(rules)
    clock = Clock()
    async with scene.updater(account=account, now=clock) as updater:
        assert await updater.pass_once() == {"none EvictionRefused": 2, "none BudgetSpent": 2}
        found = await updater.condition("UpdatesBlocked", "EvictionRefused")
        assert 'cannot create resource "pods/eviction"' in found["message"]
        for _ in range(3):
            await updater.pass_once()
        assert 1 <= evictions(updater, 403) <= 2
        account.grant(roles.ours("updater").cluster)
        updater.parts.updater._actor._forbidden.clear()  # five minutes later
        await updater.until(lambda: allowed(scene, account.user), "the permission to hold")
        assert (await updater.pass_once())["evict OutsideBounds"] == 2


def allowed(scene: Scene, user: str) -> bool:
    """May *user* evict pods?"""
    attributes = {
        "namespace": scene.namespace,
        "verb": "create",
        "resource": "pods",
        "subresource": "eviction",
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    return bool(scene.api.create(review)["status"]["allowed"])


async def with_an_old_copy(scene: Scene, proxy: FaultProxy, updater: Running) -> None:
    """From now on the updater learns nothing new of pods."""
    path = f"/api/v1/namespaces/{scene.namespace}/pods"
    proxy.stall(watch=True, path=path)
    proxy.answer(500, path=path, method="GET")
    proxy.break_connections()
    await updater.until(
        lambda: proxy.count(path=path, watch=True) >= 2 or updater.parts.mirrors.pods.last_error, "the stall"
    )


@pytest.fixture
async def proxied(scene: Scene) -> AsyncIterator[FaultProxy]:
    with scene.cluster.fault_proxy() as proxy:
        yield proxy
        proxy.heal()


async def test_a_pod_that_is_gone_is_no_failure(scene: Scene, proxied: FaultProxy) -> None:
    """404."""
    scene.workload(replicas=1, kind="ReplicaSet")
    scene.vpa(kind="ReplicaSet", policy={"minReplicas": 1})
    async with scene.updater(server=proxied.url) as updater:
        await updater.catch_up()
        await with_an_old_copy(scene, proxied, updater)
        scene.api.delete("Pod", scene.pods()[0]["metadata"]["name"], scene.namespace)
        await updater.parts.updater.tick()
        assert updater.decisions() == {"none PodGone": 1}
        assert evictions(updater, 404) == 1


async def test_a_pod_that_was_replaced_under_its_name_is_not_evicted(
    scene: Scene, proxied: FaultProxy
) -> None:
    """409: the eviction names the pod's uid."""
    scene.workload(replicas=1, kind="StatefulSet")
    scene.vpa(kind="StatefulSet", policy={"minReplicas": 1})
    async with scene.updater(server=proxied.url) as updater:
        await updater.catch_up()
        await with_an_old_copy(scene, proxied, updater)
        before = scene.uids()
        scene.api.delete("Pod", "app-0", scene.namespace)
        await updater.until(lambda: scene.uids() and scene.uids() != before, "the new pod")
        after = scene.uids()
        await updater.parts.updater.tick()
        assert updater.decisions() == {"none PodChanged": 1}
        assert evictions(updater, 409) == 1
    assert scene.uids() == after


# Resizes


async def test_a_node_that_is_too_small_is_remembered_in_mode_in_place(scene: Scene) -> None:
    """403 with the cause NodeCapacity."""
    scene.workload(replicas=1)
    scene.vpa(mode="InPlace", recommend=SMALL)
    flags = ["--foresee-node-fit=false", "--feature-gates=InPlace=true"]
    clock = Clock()
    async with scene.updater(*flags, now=clock) as updater:
        assert await updater.pass_once() == {"none ResizeInfeasible": 1}
        await updater.pass_once()
        assert updater.connection.requests["PATCH", 403] == 1
        await updater.condition("UpdatesBlocked", "ResizeInfeasible")
        name = {"vpa_name": "app", "vpa_namespace": scene.namespace}
        failed = updater.parts.metrics.loop.failed_updates
        assert failed.value(vpa_size_log2="0", reason="InPlaceUpdateInfeasible", **name) == 1
        clock.advance(minutes=61)
        await updater.pass_once()
        assert updater.connection.requests["PATCH", 403] == 2
        scene.recommend(target={"cpu": "300m", "memory": "100Mi"})
        assert await updater.pass_once() == {"resize OutsideBounds": 1}


async def test_a_resize_that_would_change_the_qos_class_is_refused_by_the_server(scene: Scene) -> None:
    """422."""
    scene.workload(requests={}, replicas=1)
    scene.vpa(mode="InPlace")
    flags = ["--foresee-resize-refusals=false", "--feature-gates=InPlace=true"]
    async with scene.updater(*flags) as updater:
        assert await updater.pass_once() == {"none QoSWouldChange": 1}
        assert updater.connection.requests["PATCH", 422] == 1


async def test_a_quota_that_refuses_a_resize_does_not_lead_to_an_eviction(scene: Scene) -> None:
    """403 "exceeded quota": the new pod would be refused as well."""
    scene.create("v1", "ResourceQuota", "all", {"hard": {"requests.cpu": "250m"}})
    scene.workload(replicas=2)
    scene.vpa(mode="InPlaceOrRecreate")
    before = scene.uids()
    async with scene.updater("--foresee-quota=false") as updater:
        decisions = await updater.pass_once()
        assert decisions == {"none QuotaExceeded": 2}
    assert scene.uids() == before


async def test_a_server_that_is_busy_does_not_turn_a_resize_into_an_eviction(scene: Scene) -> None:
    scene.workload(replicas=2)
    scene.vpa(mode="InPlaceOrRecreate")
    before, clock = scene.uids(), Clock()
    with scene.cluster.fault_proxy() as proxy:
        proxy.answer(503, path=RESIZE)
        async with scene.updater(server=proxy.url, now=clock) as updater:
            assert (await updater.pass_once())["none ServerBusy"] == 1
            proxy.heal()
            clock.advance(minutes=2)
            await updater.passes(2, clock)
    assert scene.uids() == before
    assert sizes(scene.pods()) == {"200m": 2}


RESOURCES: Json = {"kind": "APIResourceList", "resources": [{"name": "pods"}, {"name": "pods/eviction"}]}


@pytest.mark.parametrize("told", ["by discovery", "by an answer"])
async def test_a_cluster_that_cannot_resize_is_found_out_once_and_said(
    scene: Scene, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """404 "the server could not find the requested resource"."""
    scene.workload("falls-back", replicas=4)
    scene.vpa("falls-back", mode="InPlaceOrRecreate")
    scene.workload("waits", replicas=4)
    scene.vpa("waits", mode="InPlace")
    with scene.cluster.fault_proxy() as proxy:
        if told == "by discovery":
            proxy.answer(200, body=json.dumps(RESOURCES), path="/api/v1")
        missing = status(404, "the server could not find the requested resource", reason="NotFound")
        proxy.answer(404, body=missing, path=RESIZE)
        async with scene.updater("--feature-gates=InPlace=true", server=proxy.url) as updater:
            for _ in range(3):
                decisions = await updater.pass_once()
            assert decisions.get("evict ResizeFellBack", 0) + decisions["none LoopBreaker"] >= 1
            under_way = 4  # as many as both budgets allow
            assert proxy.count(path=RESIZE) <= (0 if told == "by discovery" else under_way)
    said = [line for line in caplog.messages if "cannot resize pods in place" in line]
    assert sum("mode InPlaceOrRecreate evicts" in line for line in said) == 1
    assert sizes(scene.pods("waits")) == {"100m": 4}
    assert len(scene.pods("falls-back")) <= 4


async def test_an_admission_policy_that_forbids_evictions_is_quoted(scene: Scene) -> None:
    """403 by a ValidatingAdmissionPolicy."""
    name = f"no-evictions-{scene.namespace}"
    policy: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods/eviction"],
                }
            ]
        },
        "validations": [{"expression": "false", "message": "nobody evicts here"}],
    }
    binding: dict[str, Any] = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}}
        },
    }
    group = "admissionregistration.k8s.io/v1"
    scene.create(group, "ValidatingAdmissionPolicy", name, policy)
    scene.create(group, "ValidatingAdmissionPolicyBinding", name, binding)
    scene.workload(replicas=2, requests=OLD)
    scene.vpa()
    pod = scene.pods()[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    try:
        for _ in attempts(30, "the policy to hold"):
            try:
                path = scene.api.path("Pod", pod, scene.namespace) + "/eviction?dryRun=All"
                scene.api.request("POST", path, {**eviction, "deleteOptions": {"dryRun": ["All"]}})
            except ApiError as error:
                if "nobody evicts here" in str(error):
                    break
        async with scene.updater() as updater:
            assert await updater.pass_once() == {"none EvictionRefused": 2}
            found = await updater.condition("UpdatesBlocked", "EvictionRefused")
            assert "nobody evicts here" in found["message"]
            await updater.pass_once()
            assert evictions(updater, 422) + evictions(updater, 403) == 2
    finally:
        scene.api.delete("ValidatingAdmissionPolicyBinding", name)
        scene.api.delete("ValidatingAdmissionPolicy", name)
