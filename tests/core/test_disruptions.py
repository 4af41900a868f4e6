"""The plan: what is done to which pod, and the reason where nothing is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.core.updater_kit import (
    HOUR,
    NOW,
    UPSTREAM,
    make_options,
    make_plan,
    make_pod,
    make_pods,
    make_vpa,
    only,
    outcome,
    stamp,
)
from vpa.disruptions import Action
from vpa.objects.pods import Pod
from vpa.reasons import Reason
from vpa.updates.answers import Answer

EVICT = ("evict", "OutsideBounds")
RESIZE = ("resize", "OutsideBounds")


def test_a_pod_outside_its_bounds_is_evicted_within_the_budget_and_the_others_wait() -> None:
    plan = make_plan(make_vpa(), make_pods(5))
    assert outcome(plan) == {
        "p0": EVICT,
        "p1": EVICT,
        "p2": ("none", "BudgetSpent"),
        "p3": ("none", "BudgetSpent"),
        "p4": ("none", "BudgetSpent"),
    }


def test_the_pod_that_needs_most_goes_first() -> None:
    pods = [
        make_pod("little", requests={"cpu": "150m", "memory": "300Mi"}),
        make_pod("too-much", requests={"cpu": "4", "memory": "16Gi"}),
        make_pod("much", requests={"cpu": "10m", "memory": "300Mi"}),
    ]
    plan = make_plan(make_vpa(), pods, options=make_options(eviction_tolerance=1.0))
    assert [one.pod.metadata.name for one in plan.acted] == ["much", "little", "too-much"]


@pytest.mark.parametrize("rules", ["safe", "upstream"])
def test_a_resize_is_preferred_in_mode_in_place_or_recreate(rules: str) -> None:
    from vpa.rules import preset

    plan = make_plan(make_vpa("InPlaceOrRecreate"), make_pods(3), options=make_options(preset(rules)))
    decision = plan.acted[0]
    assert decision.action is Action.RESIZE
    assert decision.patch is not None
    assert decision.patch.resize == [
        {"op": "add", "path": "/spec/containers/0/resources/requests/cpu", "value": "200m"},
        {"op": "add", "path": "/spec/containers/0/resources/requests/memory", "value": "400Mi"},
    ]
    assert len(plan.acted) == 1, "a resize takes from the same budget"


def test_only_what_changes_is_in_the_patch() -> None:
    pod = make_pod("p", requests={"cpu": "200m", "memory": "200Mi"})
    plan = make_plan(make_vpa("InPlaceOrRecreate"), [pod], options=make_options(min_replicas=1))
    patch = only(plan).patch
    assert patch is not None
    assert [one["path"] for one in patch.resize] == ["/spec/containers/0/resources/requests/memory"]
    told = make_plan(make_vpa("InPlaceOrRecreate"), [pod], options=make_options(UPSTREAM, min_replicas=1))
    patch = only(told).patch
    assert patch is not None
    assert len(patch.resize) == 2


def test_a_container_that_the_webhook_did_not_see_is_not_resized() -> None:
    containers = [
        {"name": "main", "resources": {"requests": {"cpu": "100m"}}},
        {"name": "injected", "resources": {"requests": {"cpu": "100m"}}},
    ]
    vpa = make_vpa(
        "InPlaceOrRecreate",
        containers=[
            {"containerName": name, "target": {"cpu": "200m"}, "lowerBound": {"cpu": "200m"}}
            for name in ("main", "injected")
        ],
    )
    pod = make_pod("p", containers=containers, annotations={"vpaObservedContainers": "main"})
    patch = only(make_plan(vpa, [pod], options=make_options(min_replicas=1))).patch
    assert patch is not None
    assert [one["path"] for one in patch.resize] == ["/spec/containers/0/resources/requests/cpu"]


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (make_pod("p", requests={"cpu": "200m", "memory": "400Mi"}), Reason.UP_TO_DATE),
        (make_pod("p", phase="Succeeded"), Reason.POD_FINISHED),
        (make_pod("p", metadata={"deletionTimestamp": stamp(NOW)}), Reason.POD_TERMINATING),
    ],
)
def test_pods_that_need_nothing_say_so(pod: Pod, reason: Reason) -> None:
    decision = only(make_plan(make_vpa(), [pod], options=make_options(min_replicas=1)))
    assert (decision.action, decision.reason) == (Action.NONE, reason)
    assert decision.message


@pytest.mark.parametrize(
    ("age", "cpu", "reason"),
    [
        (13 * HOUR, "200m", Reason.DRIFT),
        (11 * HOUR, "200m", Reason.TOO_YOUNG),
        (13 * HOUR, "251m", Reason.BELOW_THRESHOLD),
        (11 * HOUR, "251m", Reason.WITHIN_BOUNDS),
        (12 * HOUR, "220m", Reason.DRIFT),
    ],
)
def test_within_the_bounds_age_and_distance_decide(age: timedelta, cpu: str, reason: Reason) -> None:
    vpa = make_vpa(target={"cpu": "242m"}, lower={"cpu": "1m"}, upper={"cpu": "4"})
    pod = make_pod("p", requests={"cpu": cpu}, age=age)
    assert only(make_plan(vpa, [pod], options=make_options(min_replicas=1))).reason is reason


def test_an_oom_kill_soon_after_the_start_is_reason_enough_within_the_bounds() -> None:
    vpa = make_vpa(lower={"cpu": "1m"}, upper={"cpu": "4", "memory": "8Gi"})
    killed = {
        "name": "main",
        "state": {
            "terminated": {
                "reason": "OOMKilled",
                "startedAt": stamp(NOW - HOUR / 12),
                "finishedAt": stamp(NOW - HOUR / 60),
            }
        },
    }
    pod = make_pod("p", age=HOUR, status={"containerStatuses": [killed]})
    assert outcome(make_plan(vpa, [pod], options=make_options(min_replicas=1)))["p"] == (
        "evict",
        "QuickOOM",
    )
    later = make_options(UPSTREAM, min_replicas=1)
    assert outcome(make_plan(vpa, [pod], options=later))["p"] == ("none", "TooYoung"), (
        "upstream looks at the last state only"
    )


@pytest.mark.parametrize(
    ("mode", "gates", "reason"),
    [
        ("Off", "", Reason.MODE_OFF),
        ("Initial", "", Reason.MODE_INITIAL),
        ("InPlace", "", Reason.FEATURE_GATE_OFF),
    ],
)
def test_the_update_mode_may_forbid_everything(mode: str, gates: str, reason: Reason) -> None:
    decision = only(make_plan(make_vpa(mode), [make_pod("p")], options=make_options(gates=gates)))
    assert (decision.action, decision.reason) == (Action.NONE, reason)
    assert decision.priority is not None, "the pod is compared all the same"


def test_auto_means_what_the_default_update_mode_says() -> None:
    pods = make_pods(3)
    assert outcome(make_plan(make_vpa("Auto"), pods))["p0"] == EVICT
    assert (
        outcome(make_plan(make_vpa(None), pods, options=make_options(mode="InPlaceOrRecreate")))["p0"]
        == RESIZE
    )


def test_without_a_recommendation_there_is_no_priority() -> None:
    decision = only(make_plan(make_vpa(containers=[]), [make_pod("p")]))
    assert (decision.reason, decision.priority) == (Reason.NO_RECOMMENDATION, None)


def test_a_container_that_opted_out_is_named() -> None:
    vpa = make_vpa(resourcePolicy={"containerPolicies": [{"containerName": "main", "mode": "Off"}]})
    assert only(make_plan(vpa, [make_pod("p")])).reason is Reason.CONTAINER_OPTED_OUT


def test_a_pending_pod_may_be_evicted_at_any_time_and_not_resized() -> None:
    pod = make_pod("p", phase="Pending", ready=None)
    assert outcome(make_plan(make_vpa(), [pod, make_pod("q")], replicas=3))["p"] == EVICT
    told = outcome(make_plan(make_vpa("InPlaceOrRecreate"), [pod, make_pod("q")], replicas=3))
    assert told["p"] == ("none", "PodPending")


def test_a_group_below_its_minimum_is_not_evicted_from() -> None:
    decision = only(make_plan(make_vpa(), [make_pod("p")]))
    assert decision.reason is Reason.TOO_FEW_REPLICAS
    assert "minReplicas" in decision.message
    assert outcome(make_plan(make_vpa(policy={"minReplicas": 1}), [make_pod("p")]))["p"] == EVICT


def test_an_eviction_requirement_that_is_not_met_is_told() -> None:
    wanted = {
        "evictionRequirements": [{"resources": ["cpu"], "changeRequirement": "TargetLowerThanRequests"}]
    }
    decision = make_plan(make_vpa(policy=wanted), make_pods(3)).others()
    first = next(decision)
    assert first.reason is Reason.EVICTION_REQUIREMENT_NOT_MET
    assert "the target of cpu is below the request" in first.message


def test_a_requirement_on_a_resource_without_a_target_is_not_met() -> None:
    wanted = {
        "evictionRequirements": [{"resources": ["memory"], "changeRequirement": "TargetLowerThanRequests"}]
    }
    vpa = make_vpa(target={"cpu": "200m"}, policy=wanted)
    assert outcome(make_plan(vpa, make_pods(3)))["p0"] == ("none", "EvictionRequirementNotMet")
    upstream = make_options(UPSTREAM)
    assert outcome(make_plan(vpa, make_pods(3), options=upstream))["p0"] == EVICT


def test_what_the_api_server_refuses_is_given_back_to_the_next_pod() -> None:
    plan = make_plan(make_vpa(), make_pods(4))
    first = plan.acted[0]
    more = plan.refused(first, Answer(code=403, message="not by you"), NOW)
    assert [one.pod.metadata.name for one in more] == ["p2"]
    reasons = {one.pod.metadata.name: one.reason for one in plan.others()}
    assert reasons == {"p0": Reason.EVICTION_REFUSED, "p3": Reason.BUDGET_SPENT}


def test_after_a_refused_resize_other_pods_are_resized_before_this_one_is_evicted() -> None:
    plan = make_plan(make_vpa("InPlaceOrRecreate"), make_pods(2))
    refusal = Answer(code=403, reason="Forbidden", causes=("NodeCapacity",), message="too small")
    (other,) = plan.refused(plan.acted[0], refusal, NOW)
    assert (other.action, other.pod.metadata.name) == (Action.RESIZE, "p1")
    (instead,) = plan.refused(other, refusal, NOW)
    assert (instead.action, instead.reason) == (Action.EVICT, Reason.RESIZE_FELL_BACK)
    assert instead.pod.metadata.name == "p0"
    assert "too small" in instead.message


def test_a_busy_server_does_not_turn_a_resize_into_an_eviction() -> None:
    plan = make_plan(make_vpa("InPlaceOrRecreate"), make_pods(3))
    assert plan.refused(plan.acted[0], Answer(code=503, message="etcd is away"), NOW) == []
    assert next(iter(plan.others())).reason is Reason.SERVER_BUSY
    options = make_options(UPSTREAM, min_replicas=1)
    plan = make_plan(make_vpa("InPlaceOrRecreate"), make_pods(1), options=options)
    (instead,) = plan.refused(plan.acted[0], Answer(code=503, message="etcd is away"), NOW)
    assert instead.action is Action.EVICT, "upstream evicts after any error"


def test_in_mode_in_place_nothing_is_ever_evicted() -> None:
    plan = make_plan(make_vpa("InPlace"), make_pods(3), options=make_options(gates="InPlace=true"))
    more = plan.refused(plan.acted[0], Answer(code=403, causes=("NodeCapacity",)), NOW)
    assert [one.action for one in more] == [Action.RESIZE], "the next pod has its turn"
    assert all(one.action is not Action.EVICT for one in plan.acted)


def test_a_cluster_that_cannot_resize_falls_back_or_says_so() -> None:
    plan = make_plan(make_vpa("InPlaceOrRecreate"), make_pods(3), can_resize=False)
    assert outcome(plan)["p0"] == ("evict", "ResizeFellBack")
    plan = make_plan(
        make_vpa("InPlace"), make_pods(3), can_resize=False, options=make_options(gates="InPlace=true")
    )
    assert set(outcome(plan).values()) == {("none", "FeatureGateOff")}


def test_a_missing_subresource_is_learned_from_the_first_answer() -> None:
    plan = make_plan(make_vpa("InPlaceOrRecreate"), make_pods(6))
    answer = Answer(code=404, message="the server could not find the requested resource")
    more = plan.refused(plan.acted[0], answer, NOW)
    assert [one.action for one in more] == [Action.EVICT]
    more = plan.refused(plan.acted[1], answer, NOW)
    assert [one.action for one in more] == [Action.EVICT]
    assert [one.action for one in plan.acted[:3]] == [Action.RESIZE] * 3


def test_upstreams_lease_gate_stops_everything_and_ours_only_evictions() -> None:
    pods = make_pods(3)
    vpa = make_vpa("InPlaceOrRecreate")
    assert outcome(make_plan(vpa, pods, webhook_ready=False))["p0"] == RESIZE
    told = outcome(make_plan(vpa, pods, webhook_ready=False, options=make_options(UPSTREAM)))
    assert told["p0"] == ("none", "WebhookNotReady")
    assert outcome(make_plan(make_vpa(), pods, webhook_ready=False))["p0"] == ("none", "WebhookNotReady")


def test_a_plan_is_the_same_however_often_it_is_made() -> None:
    vpa, pods, memory = make_vpa(), make_pods(5), None
    assert outcome(make_plan(vpa, pods, memory=memory)) == outcome(make_plan(vpa, pods, memory=memory))
