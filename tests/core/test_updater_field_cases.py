"""Faults that people met with a vertical pod autoscaler, each as an example of its kind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.updater_kit import NOW, SAFE, make_options, make_plan, make_pod, make_vpa, only, outcome
from vpa.cli.objects import Item, Objects
from vpa.cli.plan import plan as plan_objects
from vpa.disruptions import Action
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.objects.pods import Pod
from vpa.objects.workloads import Workload
from vpa.pods import desired
from vpa.reasons import Reason
from vpa.sizes.limit_ranges import ranges_of
from vpa.sizes.sizing import wanted_resources

MI = 1024 * 1024


@pytest.mark.parametrize(
    ("least", "most"),
    [("300Mi", "400Mi"), ("300Mi", "1Gi"), ("800Mi", "1Gi"), ("1500Mi", "4Gi"), ("1Mi", "64Gi")],
)
def test_a_pod_that_has_its_admissible_target_is_never_touched_again(least: str, most: str) -> None:
    limit_range = meta.convert(
        {
            "metadata": {"name": "lr", "namespace": "n"},
            "spec": {"limits": [{"type": "Pod", "min": {"memory": least}, "max": {"memory": most}}]},
        },
        LimitRange,
    )
    ranges = ranges_of([limit_range], rules=SAFE)
    containers = [
        {"name": "main", "resources": {"requests": {"memory": "100Mi"}, "limits": {"memory": "150Mi"}}},
        {"name": "helper", "resources": {"requests": {"memory": "50Mi"}, "limits": {"memory": "100Mi"}}},
    ]
    vpa = make_vpa(
        policy={"minReplicas": 1},
        containers=[
            {
                "containerName": name,
                "lowerBound": {"memory": str(target - 1)},
                "target": {"memory": str(target)},
                "upperBound": {"memory": str(target + near)},
            }
            for name, target, near in (("main", 500 * MI + 7, 1), ("helper", 222 * MI + 3, 900 * MI))
        ],
    )
    pod = make_pod("p", containers=containers)
    wanted = desired(pod, vpa, ranges, rules=SAFE)
    for entry in wanted.recommendations:
        assert entry.target is not None
        assert entry.lower_bound is not None
        assert entry.upper_bound is not None
        assert entry.lower_bound["memory"] <= entry.target["memory"] <= entry.upper_bound["memory"]
    given = wanted_resources(pod, wanted.containers)
    sized = make_pod(
        "p",
        containers=[
            {"name": name, "resources": meta.to_builtins(resources)} for name, resources in given.items()
        ],
    )
    decision = only(make_plan(vpa, [sized], ranges={"n": ranges}))
    assert (decision.action, decision.reason) == (Action.NONE, Reason.UP_TO_DATE)


def test_a_cpu_limit_of_zero_never_makes_an_invalid_pod() -> None:
    pod = make_pod("p", requests={"memory": "200Mi"}, limits={"cpu": "0"})
    vpa = make_vpa("InPlaceOrRecreate", target={"cpu": "627m"})
    decision = only(make_plan(vpa, [pod]))
    assert (decision.action, decision.reason) == (Action.NONE, Reason.ZERO_LIMIT)
    assert "cpu limit of 0" in decision.message
    patch = only(make_plan(make_vpa("InPlaceOrRecreate"), [pod])).patch
    assert patch is not None
    assert [one["path"] for one in patch.resize] == ["/spec/containers/0/resources/requests/memory"]


def test_while_prometheus_is_down_at_start_nothing_is_evicted_on_thin_data() -> None:
    vpa = make_vpa(conditions={"RecommendationProvided": "True", "FetchingHistory": "True"})
    told = outcome(make_plan(vpa, [make_pod("p")], options=make_options(min_replicas=1)))
    assert told["p"] == ("none", "HistoryLoading")


def test_a_best_effort_pod_is_evicted_once_and_then_resized() -> None:
    vpa = make_vpa("InPlaceOrRecreate")
    options = make_options(min_replicas=1)
    first = only(make_plan(vpa, [make_pod("p", requests={})], options=options))
    assert (first.action, first.reason) == (Action.EVICT, Reason.RESIZE_FELL_BACK)
    assert "BestEffort and would be Burstable" in first.message
    burstable = make_pod("p2", requests={"cpu": "150m", "memory": "400Mi"})
    assert only(make_plan(vpa, [burstable], options=options)).action is Action.RESIZE


def test_in_mode_in_place_a_best_effort_pod_is_left_alone_with_the_reason() -> None:
    options = make_options(gates="InPlace=true")
    decision = only(make_plan(make_vpa("InPlace"), [make_pod("p", requests={})], options=options))
    assert (decision.action, decision.reason) == (Action.NONE, Reason.QOS_WOULD_CHANGE)


def test_a_guaranteed_pod_stays_guaranteed_in_place() -> None:
    same = {"cpu": "100m", "memory": "200Mi"}
    decision = only(make_plan(make_vpa("InPlaceOrRecreate"), [make_pod("p", requests=same, limits=same)]))
    assert decision.action is Action.RESIZE
    requests_only = {"containerPolicies": [{"containerName": "*", "controlledValues": "RequestsOnly"}]}
    vpa = make_vpa(
        "InPlaceOrRecreate", target={"cpu": "50m", "memory": "100Mi"}, resourcePolicy=requests_only
    )
    foreseen = only(make_plan(vpa, [make_pod("p", requests=same, limits=same)]))
    assert foreseen.reason is Reason.TOO_FEW_REPLICAS
    assert "would be Burstable" in foreseen.message, "the resize was foreseen to fail, the eviction forbidden"


def test_a_requirement_that_the_target_be_lower_lets_memory_grow_in_place() -> None:
    lower = [{"resources": ["cpu", "memory"], "changeRequirement": "TargetLowerThanRequests"}]
    vpa = make_vpa("InPlaceOrRecreate", policy={"evictionRequirements": lower})
    decision = only(make_plan(vpa, [make_pod("p", requests={"cpu": "200m", "memory": "100Mi"})]))
    assert decision.action is Action.RESIZE


def item(kind: str, struct: type[Any], data: dict[str, Any]) -> Item:
    data = {"kind": kind, **data}
    metadata = data["metadata"]
    return Item(data, meta.convert(data, struct), kind, metadata["namespace"], metadata["name"])


def test_two_stateful_sets_with_one_label_keep_their_own_vpa_and_containers() -> None:
    objects = Objects()
    for name, container in (("s0", "first"), ("s1", "second")):
        labels = {"app": "s"}
        objects.items += [
            item(
                "StatefulSet",
                Workload,
                {
                    "metadata": {"name": name, "namespace": "n"},
                    "spec": {"replicas": 2, "selector": {"matchLabels": labels}},
                },
            ),
            item(
                "VerticalPodAutoscaler",
                VerticalPodAutoscaler,
                {
                    "metadata": {"name": f"vpa-{name}", "namespace": "n"},
                    "spec": {
                        "targetRef": {"kind": "StatefulSet", "name": name},
                        "updatePolicy": {"updateMode": "InPlaceOrRecreate"},
                    },
                    "status": {
                        "recommendation": {
                            "containerRecommendations": [
                                {"containerName": one, "target": {"cpu": "1"}} for one in ("first", "second")
                            ]
                        }
                    },
                },
            ),
        ]
        for index in range(2):
            pod = make_pod(f"{name}-{index}", owner=("StatefulSet", name))
            data = meta.to_builtins(pod)
            data["metadata"]["labels"] = labels
            data["spec"]["containers"][0]["name"] = container
            objects.items.append(item("Pod", Pod, data))
    rows = plan_objects(objects, now=NOW, options=make_options())
    assert {(row["name"], row["vpa"]) for row in rows} == {
        ("s0-0", "vpa-s0"),
        ("s0-1", "vpa-s0"),
        ("s1-0", "vpa-s1"),
        ("s1-1", "vpa-s1"),
    }
    acted = [row for row in rows if row["action"] == "resize"]
    assert [row["patch"][0]["path"] for row in acted] == ["/spec/containers/0/resources/requests/cpu"] * 2
