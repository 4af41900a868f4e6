"""The rules of ``safe``: what the updater does not do, so that nothing gets worse; each has its switch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.updater_kit import (
    ALONE,
    EVICT,
    HOUR,
    NOW,
    RESIZE,
    SAFE,
    UPSTREAM,
    make_node,
    make_options,
    make_plan,
    make_pod,
    make_pods,
    make_vpa,
    only,
    outcome,
    stamp,
    trusting,
    without,
)
from vpa.disruptions import Action
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import ResourceQuota
from vpa.objects.pods import Pod
from vpa.reasons import Reason
from vpa.rules import Rules
from vpa.sizes.nodes_fit import Rooms
from vpa.updates.attempts import Attempt
from vpa.updates.quotas import Quotas

BIG = {"cpu": "6", "memory": "4Gi"}
IN_PLACE = make_options(gates="InPlace=true")


# Node fit


def test_no_pod_is_evicted_to_a_size_that_no_node_holds() -> None:
    vpa = make_vpa(target=BIG)
    rooms = Rooms([make_node(), make_node("node-2", cpu="5")])
    decision = only(make_plan(vpa, [make_pod("p")], rooms=rooms, options=ALONE))
    assert (decision.action, decision.reason) == (Action.NONE, Reason.NO_NODE_FITS)
    assert "the largest that fits the pod has cpu 5, memory 16Gi (node-2)" in decision.message
    off = without("foresee_node_fit", min_replicas=1)
    assert outcome(make_plan(vpa, [make_pod("p")], rooms=rooms, options=off))["p"] == EVICT


def test_what_daemon_sets_take_is_not_room() -> None:
    agent = make_pod("agent", requests={"cpu": "1500m"}, owner=("DaemonSet", "agent"))
    vpa = make_vpa(target={"cpu": "3"})
    rooms = Rooms([make_node()], [agent])
    told = make_plan(vpa, [make_pod("p", requests={"cpu": "1"})], rooms=rooms, options=ALONE)
    assert only(told).reason is Reason.NO_NODE_FITS
    told = make_plan(vpa, [make_pod("p", requests={"cpu": "1"})], rooms=Rooms([make_node()]), options=ALONE)
    assert only(told).action is Action.EVICT


@pytest.mark.parametrize(
    "large",
    [
        make_node("large", cpu="32", unschedulable=True),
        make_node("large", cpu="32", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]),
        make_node("large", cpu="32", labels={"disk": "slow"}),
    ],
    ids=["cordoned", "tainted", "other label"],
)
def test_only_nodes_that_admit_the_pod_count(large: Any) -> None:
    spec = {"nodeSelector": {"disk": "fast"}} if large.metadata.labels else {}
    pod = make_pod("p", spec=spec)
    vpa = make_vpa(target=BIG)
    rooms = Rooms([make_node(labels={"disk": "fast"}), large])
    assert only(make_plan(vpa, [pod], rooms=rooms, options=ALONE)).reason is Reason.NO_NODE_FITS


def test_a_tolerated_taint_and_a_matching_affinity_open_a_node() -> None:
    term = {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["16"]}]}
    spec = {
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        },
    }
    taints = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    rooms = Rooms([make_node(), make_node("large", cpu="32", labels={"cores": "32"}, taints=taints)])
    decision = only(make_plan(make_vpa(target=BIG), [make_pod("p", spec=spec)], rooms=rooms, options=ALONE))
    assert decision.action is Action.EVICT


def test_a_resize_that_its_node_cannot_hold_becomes_an_eviction_where_another_can() -> None:
    rooms = Rooms([make_node(), make_node("large", cpu="32")])
    vpa = make_vpa("InPlaceOrRecreate", target=BIG)
    decision = only(make_plan(vpa, [make_pod("p")], rooms=rooms, options=ALONE))
    assert (decision.action, decision.reason) == (Action.EVICT, Reason.RESIZE_FELL_BACK)
    alone = make_plan(vpa, [make_pod("p")], rooms=Rooms([make_node()]), options=ALONE)
    assert only(alone).reason is Reason.NO_NODE_FITS
    in_place = make_vpa("InPlace", target=BIG)
    assert only(make_plan(in_place, [make_pod("p")], rooms=rooms, options=IN_PLACE)).reason is (
        Reason.RESIZE_INFEASIBLE
    )


def test_a_pod_that_shrinks_in_place_fits_where_it_is() -> None:
    rooms = Rooms([make_node("other", cpu="100m")])
    pod = make_pod("p", requests={"cpu": "1", "memory": "1Gi"})
    assert outcome(make_plan(make_vpa("InPlaceOrRecreate"), [pod], rooms=rooms))["p"] == RESIZE


def test_with_cap_to_node_the_pod_gets_what_the_largest_node_can_hold() -> None:
    options = make_options(min_replicas=1, cap_to_node=True)
    vpa = make_vpa("InPlaceOrRecreate", target=BIG)
    patch = only(make_plan(vpa, [make_pod("p")], rooms=Rooms([make_node()]), options=options)).patch
    assert patch is not None
    assert patch.resize[0] == {"op": "add", "path": "/spec/containers/0/resources/requests/cpu", "value": "4"}


# Quota


def quota(**hard_and_used: tuple[str, str]) -> ResourceQuota:
    named = {name.replace("__", "."): pair for name, pair in hard_and_used.items()}
    return meta.convert(
        {
            "metadata": {"name": "q", "namespace": "n"},
            "status": {
                "hard": {name: pair[0] for name, pair in named.items()},
                "used": {name: pair[1] for name, pair in named.items()},
            },
        },
        ResourceQuota,
    )


def test_no_pod_is_evicted_whose_replacement_a_quota_would_refuse() -> None:
    quotas = Quotas([quota(requests__cpu=("350m", "300m"))])
    decision = next(make_plan(make_vpa(), make_pods(3), quotas=quotas).others())
    assert decision.reason is Reason.QUOTA_EXCEEDED
    assert "requests.cpu needs 100m more, of 350m are 300m used" in decision.message
    off = without("foresee_quota")
    assert outcome(make_plan(make_vpa(), make_pods(3), quotas=quotas, options=off))["p0"] == EVICT


def test_a_plan_counts_what_it_takes_from_a_quota() -> None:
    quotas = Quotas([quota(requests__memory=("2048Mi", "1800Mi"))])
    told = outcome(make_plan(make_vpa(), make_pods(4), quotas=quotas))
    assert [told["p0"], told["p1"]] == [EVICT, ("none", "QuotaExceeded")]


def test_a_quota_refuses_a_resize_too_and_eviction_would_not_help() -> None:
    quotas = Quotas([quota(limits__memory=("500Mi", "400Mi"))])
    pods = make_pods(2, limits={"memory": "200Mi"})
    told = outcome(make_plan(make_vpa("InPlaceOrRecreate"), pods, quotas=quotas))
    assert set(told.values()) == {("none", "QuotaExceeded")}


# May resize and may evict are two questions


def test_a_single_replica_is_resized_but_not_evicted() -> None:
    pod = make_pod("p")
    assert outcome(make_plan(make_vpa("InPlaceOrRecreate"), [pod]))["p"] == RESIZE
    assert outcome(make_plan(make_vpa("Recreate"), [pod]))["p"] == ("none", "TooFewReplicas")
    off = without("resize_apart_from_eviction")
    assert outcome(make_plan(make_vpa("InPlaceOrRecreate"), [pod], options=off))["p"] == (
        "none",
        "TooFewReplicas",
    )


def test_a_resize_that_restarts_the_only_replica_is_no_harmless_one() -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    container = {
        "name": "main",
        "resizePolicy": policy,
        "resources": {"requests": {"cpu": "100m", "memory": "200Mi"}},
    }
    pod = make_pod("p", containers=[container])
    assert only(make_plan(make_vpa("InPlaceOrRecreate"), [pod])).reason is Reason.TOO_FEW_REPLICAS
    cpu_only = make_vpa("InPlaceOrRecreate", target={"cpu": "200m"})
    alone = only(make_plan(cpu_only, [pod]))
    assert alone.action is Action.RESIZE, "CPU restarts nothing"
    assert "restarts" not in alone.message
    two = [make_pod(name, containers=[container]) for name in ("p", "q")]
    decisions = make_plan(make_vpa("InPlaceOrRecreate"), two).acted
    assert [each.action for each in decisions] == [Action.RESIZE]
    assert decisions[0].message.endswith("; by resizePolicy this restarts main")


def test_an_eviction_requirement_does_not_forbid_a_resize() -> None:
    wanted = {
        "evictionRequirements": [{"resources": ["memory"], "changeRequirement": "TargetLowerThanRequests"}]
    }
    vpa = make_vpa("InPlaceOrRecreate", policy=wanted)
    assert outcome(make_plan(vpa, make_pods(3)))["p0"] == RESIZE
    off = without("resize_apart_from_eviction")
    assert outcome(make_plan(vpa, make_pods(3), options=off))["p0"] == ("none", "EvictionRequirementNotMet")


def test_where_the_resize_fails_the_requirement_forbids_the_eviction() -> None:
    wanted = {
        "evictionRequirements": [{"resources": ["memory"], "changeRequirement": "TargetLowerThanRequests"}]
    }
    vpa = make_vpa("InPlaceOrRecreate", policy=wanted)
    told = outcome(make_plan(vpa, make_pods(3), can_resize=False))
    assert told["p0"] == ("none", "EvictionRequirementNotMet")


# The budget is kept in every mode


def test_mode_in_place_keeps_the_budget() -> None:
    told = outcome(make_plan(make_vpa("InPlace"), make_pods(4), options=IN_PLACE))
    assert list(told.values()).count(RESIZE) == 2
    off = without("budget_in_every_mode", gates="InPlace=true")
    told = outcome(make_plan(make_vpa("InPlace"), make_pods(4), options=off))
    assert list(told.values()).count(RESIZE) == 4, "upstream resizes all at once"


def test_mode_in_place_waits_for_a_deferred_resize() -> None:
    deferred = [{"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no room"}]
    pod = make_pod("p", requests={"cpu": "150m", "memory": "400Mi"}, conditions=deferred)
    vpa = make_vpa("InPlace")
    decision = only(make_plan(vpa, [pod], options=IN_PLACE))
    assert (decision.action, decision.reason) == (Action.NONE, Reason.RESIZE_DEFERRED)
    assert "no room" in decision.message
    off = without("budget_in_every_mode", gates="InPlace=true")
    assert only(make_plan(vpa, [pod], options=off)).action is Action.RESIZE


def test_a_deferred_resize_is_replaced_by_a_smaller_one_at_once() -> None:
    deferred = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]
    pod = make_pod("p", requests={"cpu": "300m", "memory": "400Mi"}, conditions=deferred)
    assert only(make_plan(make_vpa("InPlace"), [pod], options=IN_PLACE)).action is Action.RESIZE


# Memory limits and present use


def memory_case(mode: str) -> tuple[VerticalPodAutoscaler, Pod]:
    pod = make_pod(
        "p",
        requests={"cpu": "100m", "memory": "1000Mi"},
        limits={"cpu": "1", "memory": "1000Mi"},
    )
    return make_vpa(mode, target={"cpu": "200m", "memory": "400Mi"}), pod


def test_a_memory_limit_is_not_lowered_below_what_is_in_use() -> None:
    vpa, pod = memory_case("InPlaceOrRecreate")
    use = {("n", "p", "main"): 390 * 1024 * 1024}
    patch = only(make_plan(vpa, [pod], memory_use=use)).patch
    assert patch is not None
    assert {one["path"].rsplit("/", 1)[1] for one in patch.resize} == {"cpu"}, "CPU is given all the same"
    patch = only(make_plan(vpa, [pod], memory_use={("n", "p", "main"): 300 * 1024 * 1024})).patch
    assert patch is not None
    assert "/spec/containers/0/resources/limits/memory" in [one["path"] for one in patch.resize]


def test_a_pod_is_not_evicted_to_a_limit_below_what_is_in_use() -> None:
    vpa, pod = memory_case("Recreate")
    use = {("n", "p", "main"): 390 * 1024 * 1024}
    decision = only(make_plan(vpa, [pod], memory_use=use, options=ALONE))
    assert decision.reason is Reason.LIMIT_BELOW_USAGE
    assert "container main uses 390Mi" in decision.message.replace("memory ", "")
    off = without("keep_memory_limit_above_use", min_replicas=1)
    assert only(make_plan(vpa, [pod], memory_use=use, options=off)).action is Action.EVICT


def test_a_limit_that_the_node_could_not_lower_does_not_end_in_an_eviction() -> None:
    vpa, pod = memory_case("InPlaceOrRecreate")
    error = [
        {
            "type": "PodResizeInProgress",
            "status": "True",
            "reason": "Error",
            "message": "memory limit (419430400) below current usage",
        }
    ]
    pod = make_pod("p", requests={"cpu": "100m", "memory": "400Mi"}, conditions=error)
    assert only(make_plan(vpa, [pod], options=ALONE)).reason is Reason.LIMIT_BELOW_USAGE
    off = without("keep_memory_limit_above_use", min_replicas=1)
    assert only(make_plan(vpa, [pod], options=off)).action is Action.EVICT


# History


@pytest.mark.parametrize("condition", ["FetchingHistory", "LowConfidence"])
def test_while_history_is_short_nothing_is_evicted_and_resizes_only_grow(condition: str) -> None:
    short = {condition: "True"}
    assert outcome(make_plan(make_vpa(conditions=short), make_pods(3)))["p0"] == ("none", "HistoryLoading")
    growing = make_vpa("InPlaceOrRecreate", conditions=short)
    assert outcome(make_plan(growing, make_pods(3)))["p0"] == RESIZE
    mixed = make_plan(growing, [make_pod("p", requests={"cpu": "1", "memory": "200Mi"})])
    patch = only(mixed).patch
    assert patch is not None
    assert [one["path"].rsplit("/", 1)[1] for one in patch.resize] == ["memory"]
    assert "memory 200Mi →" in only(mixed).message
    assert "cpu" not in only(mixed).message, "told as it is done"
    shrinking = make_plan(growing, [make_pod("p", requests={"cpu": "1", "memory": "1Gi"})])
    assert only(shrinking).reason is Reason.HISTORY_LOADING
    off = without("wait_for_history")
    assert outcome(make_plan(make_vpa(conditions=short), make_pods(3), options=off))["p0"] == EVICT


def test_a_pod_that_is_out_of_memory_time_and_again_is_helped_without_history() -> None:
    vpa = make_vpa(conditions={"LowConfidence": "True"})
    end = {"reason": "OOMKilled", "startedAt": stamp(NOW - HOUR / 30), "finishedAt": stamp(NOW - HOUR / 60)}
    status = {"containerStatuses": [{"name": "main", "lastState": {"terminated": end}}]}
    growing = make_pod("p", status=status)
    assert outcome(make_plan(vpa, [growing], options=ALONE))["p"] == ("evict", "QuickOOM")
    mixed = make_pod("p", requests={"cpu": "1", "memory": "200Mi"}, status=status)
    assert only(make_plan(vpa, [mixed], options=ALONE)).reason is Reason.HISTORY_LOADING


def test_a_condition_that_is_false_holds_nothing_up() -> None:
    vpa = make_vpa(conditions={"FetchingHistory": "False", "LowConfidence": "False"})
    assert outcome(make_plan(vpa, make_pods(3)))["p0"] == EVICT


# Timers


def deferred_pod(minutes: int, *, generation: int = 1, observed: int = 1) -> Pod:
    condition = {
        "type": "PodResizePending",
        "status": "True",
        "reason": "Deferred",
        "lastTransitionTime": stamp(NOW - minutes * HOUR / 60),
        "observedGeneration": observed,
    }
    return make_pod(
        "p",
        requests={"cpu": "150m", "memory": "400Mi"},
        conditions=[condition],
        metadata={"generation": generation},
    )


def test_a_deferred_resize_is_late_by_its_own_condition() -> None:
    vpa = make_vpa("InPlaceOrRecreate")
    assert only(make_plan(vpa, [deferred_pod(4)], options=ALONE)).reason is Reason.RESIZE_DEFERRED
    late = only(make_plan(vpa, [deferred_pod(6)], options=ALONE))
    assert (late.action, late.reason) == (Action.EVICT, Reason.RESIZE_FELL_BACK)
    memory = trusting()
    off = without("resize_timers_from_conditions", min_replicas=1)
    first = only(make_plan(vpa, [deferred_pod(6)], options=off, memory=memory))
    assert first.reason is Reason.RESIZE_DEFERRED, "upstream counts from its first sight"


def test_a_later_resize_has_a_timer_of_its_own() -> None:
    vpa = make_vpa("InPlaceOrRecreate")
    memory = trusting()
    memory.attempts.resizes["uid-p"] = Attempt(at=NOW - HOUR / 60, target={})
    told = only(make_plan(vpa, [deferred_pod(600)], options=ALONE, memory=memory))
    assert told.reason is Reason.RESIZE_DEFERRED


def test_a_condition_about_an_older_spec_says_nothing() -> None:
    vpa = make_vpa("InPlaceOrRecreate")
    told = only(make_plan(vpa, [deferred_pod(600, generation=3, observed=2)], options=ALONE))
    assert told.reason is Reason.RESIZE_IN_PROGRESS


def test_a_restart_of_the_updater_does_not_start_the_timers_anew() -> None:
    vpa = make_vpa("InPlaceOrRecreate")
    for memory in (trusting(), trusting()):
        told = only(make_plan(vpa, [deferred_pod(6)], options=ALONE, memory=memory))
        assert told.action is Action.EVICT


def test_every_rule_of_the_updater_is_off_under_upstream() -> None:
    assert SAFE != UPSTREAM
    assert not any(getattr(UPSTREAM, name) for name in Rules.__dataclass_fields__)
