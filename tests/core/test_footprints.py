"""What a pod takes from a node, and how quotas and disruption budgets count it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.updater_kit import make_node, make_pod, make_pods
from vpa.objects import meta
from vpa.objects.limits import PodDisruptionBudget, ResourceQuota
from vpa.objects.nodes import Taint
from vpa.objects.pods import Pod, PodSpec, Toleration
from vpa.sizes.footprints import LIMITS, footprint, qos_class
from vpa.sizes.nodes_fit import Rooms, admits, tolerates
from vpa.updates.pdbs import DisruptionBudgets
from vpa.updates.quotas import Quotas, applies

MILLI = 10**6


def spec(data: dict[str, Any]) -> PodSpec:
    return meta.convert(data, PodSpec)


def container(name: str, cpu: str | None = None, limit: str | None = None, **fields: Any) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if cpu is not None:
        resources["requests"] = {"cpu": cpu}
    if limit is not None:
        resources["limits"] = {"cpu": limit}
    return {"name": name, "resources": resources, **fields}


@pytest.mark.parametrize(
    ("data", "cpu"),
    [
        ({"containers": [container("a", "100m"), container("b", "200m")]}, 300),
        ({"containers": [container("a", limit="100m")]}, 100),
        ({"containers": [container("a", "100m")], "initContainers": [container("i", "500m")]}, 500),
        (
            {
                "containers": [container("a", "100m")],
                "initContainers": [container("s", "50m", restartPolicy="Always"), container("i", "500m")],
            },
            550,
        ),
        (
            {
                "containers": [container("a", "100m")],
                "initContainers": [container("i", "120m"), container("s", "50m", restartPolicy="Always")],
            },
            150,
        ),
        ({"containers": [container("a", "100m")], "overhead": {"cpu": "10m"}}, 110),
        ({"containers": [container("a", "100m")], "resources": {"requests": {"cpu": "1"}}}, 1000),
    ],
    ids=[
        "sum",
        "limit is request",
        "init",
        "sidecar before init",
        "sidecar after init",
        "overhead",
        "pod level",
    ],
)
def test_a_pod_takes_what_the_scheduler_counts(data: dict[str, Any], cpu: int) -> None:
    assert footprint(spec(data)) == {"cpu": cpu * MILLI}


def test_limits_are_counted_from_limits_alone() -> None:
    data = {"containers": [container("a", "100m"), container("b", "200m", "300m")]}
    assert footprint(spec(data), LIMITS) == {"cpu": 300 * MILLI}


SIZE = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([{}], "BestEffort"),
        ([{"requests": {"cpu": "0"}}], "BestEffort"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": SIZE}], "Guaranteed"),
        ([{"limits": SIZE, "requests": SIZE}], "Guaranteed"),
        ([{"limits": SIZE, "requests": {**SIZE, "cpu": "500m"}}], "Burstable"),
        ([{"limits": SIZE}, {}], "Burstable"),
        ([{"limits": {"cpu": "1"}}], "Burstable"),
    ],
)
def test_the_qos_class_is_the_api_servers(containers: list[dict[str, Any]], expected: str) -> None:
    data = {"containers": [{"name": f"c{i}", "resources": one} for i, one in enumerate(containers)]}
    assert qos_class(spec(data)) == expected


def test_pod_level_resources_decide_the_qos_class() -> None:
    data = {"containers": [{"name": "c"}], "resources": {"requests": SIZE, "limits": SIZE}}
    assert qos_class(spec(data)) == "Guaranteed"


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "other"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations_are_kubernetes_own(toleration: dict[str, str], expected: bool) -> None:
    taint = Taint(key="k", value="v", effect="NoSchedule")
    assert tolerates(meta.convert(toleration, Toleration), taint) is expected


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ["a", "b"], True),
        ("NotIn", ["a"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["3"], False),
        ("Like", ["a"], False),
    ],
)
def test_node_affinity_is_read_as_the_scheduler_reads_it(
    operator: str, values: list[str], expected: bool
) -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    node = make_node(labels={"zone": "a"})
    assert admits(node, spec({"affinity": {"nodeAffinity": required}})) is expected


def test_a_daemon_sets_own_pods_are_not_counted_against_it() -> None:
    agents = make_pods(1, requests={"cpu": "1"}, owner=("DaemonSet", "agent"))
    rooms = Rooms([make_node()], agents)
    assert rooms.candidates(agents[0])[0][1]["cpu"] == 4000 * MILLI
    assert rooms.candidates(make_pod("other"))[0][1]["cpu"] == 3000 * MILLI


def test_finished_pods_and_pods_of_others_take_no_room() -> None:
    done = make_pod("done", requests={"cpu": "1"}, owner=("DaemonSet", "agent"), phase="Failed")
    rooms = Rooms([make_node()], [done, make_pod("web", requests={"cpu": "3"})])
    assert rooms.candidates(make_pod("other"))[0][1]["cpu"] == 4000 * MILLI


def selecting(scope: str, operator: str, values: list[str] | None = None) -> dict[str, Any]:
    expression = {"scopeName": scope, "operator": operator, "values": values}
    return {"scopeSelector": {"matchExpressions": [expression]}}


@pytest.mark.parametrize(
    ("scope", "best_effort", "expected"),
    [
        ({"scopes": ["BestEffort"]}, True, True),
        ({"scopes": ["BestEffort"]}, False, False),
        ({"scopes": ["NotBestEffort"]}, False, True),
        ({"scopes": ["Terminating"]}, False, False),
        ({"scopes": ["NotTerminating"]}, False, True),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]
                }
            },
            False,
            True,
        ),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}]
                }
            },
            False,
            False,
        ),
        (
            {"scopeSelector": {"matchExpressions": [{"scopeName": "Else", "operator": "Exists"}]}},
            False,
            False,
        ),
    ],
)
def test_a_quota_counts_the_pods_of_its_scopes(
    scope: dict[str, Any], best_effort: bool, expected: bool
) -> None:
    quota = meta.convert({"spec": scope}, ResourceQuota)
    pod = make_pod("p", requests={} if best_effort else None, spec={"priorityClassName": "high"})
    assert applies(quota, pod) is expected


def test_a_quota_without_a_status_counts_the_pods_at_hand() -> None:
    quota = meta.convert(
        {"metadata": {"name": "q", "namespace": "n"}, "spec": {"hard": {"cpu": "250m"}}}, ResourceQuota
    )
    pods = make_pods(2)
    bigger = make_pod("p0", requests={"cpu": "151m"})
    refusal = Quotas([quota], pods).refusal(pods[0], bigger)
    assert refusal is not None
    assert "cpu needs 51m more, of 250m are 200m used" in refusal.message
    assert Quotas([quota], pods[:1]).refusal(pods[0], bigger) is None


def budget(**fields: Any) -> PodDisruptionBudget:
    return meta.convert({"metadata": {"name": "b", "namespace": "n"}, **fields}, PodDisruptionBudget)


ALL = {"selector": {"matchLabels": {"app": "web"}}}


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ({"minAvailable": 3}, 1),
        ({"maxUnavailable": 1}, 1),
        ({"minAvailable": "60%"}, 1),
        ({"maxUnavailable": "50%"}, 2),
        ({"maxUnavailable": 0}, 0),
    ],
)
def test_a_budget_without_a_status_is_computed_from_the_pods_at_hand(
    wanted: dict[str, Any], allowed: int
) -> None:
    pods = make_pods(4)
    budgets = DisruptionBudgets([budget(spec={**ALL, **wanted})], pods)
    let_go = 0
    for pod in pods:
        if budgets.refusal(pod) is None:
            budgets.take(pod)
            let_go += 1
    assert let_go == allowed
    assert (budgets.fresh().refusal(pods[0]) is None) is (allowed > 0), "a new plan begins anew"


def test_a_budget_that_is_not_counted_yet_lets_nothing_go() -> None:
    stale = budget(spec=ALL, status={"disruptionsAllowed": 5, "observedGeneration": 1})
    newer = meta.convert(
        {**meta.to_builtins(stale), "metadata": {"name": "b", "namespace": "n", "generation": 2}},
        PodDisruptionBudget,
    )
    refusal = DisruptionBudgets([newer]).refusal(make_pod("p"))
    assert refusal is not None
    assert "not counted yet" in refusal.message


@pytest.mark.parametrize(
    ("pod", "fields", "may_go"),
    [
        (make_pod("p", phase="Pending"), {}, True),
        (make_pod("p", ready=False), {}, False),
        (make_pod("p", ready=False), {"policy": "AlwaysAllow"}, True),
        (make_pod("p", ready=False), {"healthy": 2}, True),
        (make_pod("p"), {"policy": "AlwaysAllow"}, False),
    ],
)
def test_pods_that_serve_nobody_may_go_where_the_budget_says_so(
    pod: Pod, fields: dict[str, Any], may_go: bool
) -> None:
    status = {"currentHealthy": fields.get("healthy", 1), "desiredHealthy": 2}
    policy = {"unhealthyPodEvictionPolicy": fields["policy"]} if "policy" in fields else {}
    budgets = DisruptionBudgets([budget(spec={**ALL, **policy}, status=status)])
    assert (budgets.refusal(pod) is None) is may_go


def test_a_budget_without_a_selector_selects_nothing_and_an_empty_one_everything() -> None:
    assert DisruptionBudgets([budget(status={})]).of(make_pod("p")) == []
    assert len(DisruptionBudgets([budget(spec={"selector": {}}, status={})]).of(make_pod("p"))) == 1
