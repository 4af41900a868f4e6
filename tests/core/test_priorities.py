"""Which pods change now, and in which order."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from tests.core import vectors
from tests.core.updater_kit import HOUR, NOW, SAFE, UPSTREAM, make_pod, make_vpa, stamp
from vpa.durations import Duration
from vpa.gates import FeatureGates
from vpa.modes import IN_PLACE, update_mode
from vpa.objects import meta
from vpa.objects.autoscalers import ContainerRecommendation, EvictionRequirement, VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules, preset
from vpa.settings import Updating
from vpa.sizes.actual import actual_resources
from vpa.sizes.capping import capped
from vpa.sizes.limit_ranges import NO_RANGES, ranges_of
from vpa.updates.priorities import (
    Acceptance,
    Priority,
    in_order,
    requirements_met,
    update_priority,
    worth_another_try,
)


def _updating(config: dict[str, Any]) -> Updating:
    given: dict[str, Any] = {}
    if "pod_update_threshold" in config:
        given["pod_update_threshold"] = float(config["pod_update_threshold"])
    if "lifetime_threshold_s" in config:
        given["in_recommendation_bounds_eviction_lifetime_threshold"] = Duration.of(
            seconds=config["lifetime_threshold_s"]
        )
    if "evict_after_oom_s" in config:
        given["evict_after_oom_threshold"] = Duration.of(seconds=config["evict_after_oom_s"])
    return Updating(**given)


def _outcome(case: vectors.Case) -> dict[str, Any]:
    given = case["in"]
    rules = preset("upstream")
    vpa = meta.convert(given["vpa"], VerticalPodAutoscaler)
    pods = [meta.convert(pod, Pod) for pod in given["pods"]]
    limit_ranges = [meta.convert(one, LimitRange) for one in given["limit_ranges"]]
    gates = FeatureGates(MappingProxyType(dict.fromkeys(given.get("feature_gates", ()), True)))
    infeasible = {
        uid: [meta.convert(entry, ContainerRecommendation) for entry in entries]
        for uid, entries in given.get("infeasible_attempts", {}).items()
    }
    acceptance = Acceptance.of(
        vpa,
        _updating(given.get("config", {})),
        per_vpa_config=gates.per_vpa_config,
        now=meta.convert(given["now"], datetime),
        rules=rules,
    )
    policy = vpa.spec.update_policy
    shown: list[dict[str, Any]] = []
    accepted: list[tuple[Pod, Priority]] = []
    met: dict[str, bool] = {}
    for pod in pods:
        ranges = ranges_of(
            [one for one in limit_ranges if one.metadata.namespace == pod.metadata.namespace], rules=rules
        )
        recommendations = capped(vpa, pod, ranges, rules=rules).recommendations or []
        actual = actual_resources(pod)
        priority = update_priority(pod, recommendations, actual)
        verdict = acceptance.judge(pod, priority, vpa.spec.resource_policy)
        again = update_mode(vpa) != IN_PLACE or worth_another_try(
            recommendations, infeasible.get(pod.metadata.uid)
        )
        if again and isinstance(verdict, Reason):
            accepted.append((pod, priority))
        met[pod.metadata.name] = policy is None or requirements_met(
            pod, policy.eviction_requirements or (), recommendations, actual, rules=rules
        )
        shown.append(
            {
                "accepted": again and isinstance(verdict, Reason),
                "outside_recommended_range": priority.outside_recommended_range,
                "resource_diff": priority.resource_diff,
                "scale_up": priority.scale_up,
            }
        )
    order = [pod.metadata.name for pod, _ in in_order(accepted)]
    return {
        "order": order,
        "order_after_eviction_requirements": [name for name in order if met[name]],
        "pods": shown,
    }


def test_vector_priority_acceptance_and_order_are_upstreams() -> None:
    vectors.check("priority", vectors.load("priority"), _outcome)


def judge(
    pod: Pod, *, vpa: VerticalPodAutoscaler, rules: Rules = SAFE, gates: str = "", **updating: Any
) -> Reason | Refusal:
    acceptance = Acceptance.of(
        vpa,
        Updating(**updating),
        per_vpa_config=FeatureGates.parse(gates).per_vpa_config,
        now=NOW,
        rules=rules,
    )
    recommendations = capped(vpa, pod, NO_RANGES, rules=rules).recommendations or []
    priority = update_priority(pod, recommendations, actual_resources(pod))
    return acceptance.judge(pod, priority, vpa.spec.resource_policy)


def priority_of(vpa: VerticalPodAutoscaler, pod: Pod) -> tuple[bool, bool, float]:
    recommendations = capped(vpa, pod, NO_RANGES, rules=SAFE).recommendations or []
    found = update_priority(pod, recommendations, actual_resources(pod))
    return found.outside_recommended_range, found.scale_up, found.resource_diff


@pytest.mark.parametrize(
    ("requests", "target", "lower", "upper", "expected"),
    [
        ({"cpu": "2"}, {"cpu": "10"}, {}, {}, (False, True, 4.0)),
        ({"cpu": "4"}, {"cpu": "2"}, {}, {}, (False, False, 0.5)),
        ({"cpu": "2"}, {"cpu": "2"}, {}, {}, (False, False, 0.0)),
        ({"cpu": "4"}, {"cpu": "10"}, {"cpu": "6"}, {"cpu": "14"}, (True, True, 1.5)),
        ({"cpu": "8"}, {"cpu": "2"}, {"cpu": "1"}, {"cpu": "3"}, (True, False, 0.75)),
        ({"cpu": "3", "memory": "10M"}, {"cpu": "6", "memory": "20M"}, {}, {}, (False, True, 2.0)),
        ({}, {"cpu": "500m"}, {}, {}, (True, True, 499.0)),
    ],
)
def test_priority_is_the_sum_of_relative_distances(
    requests: dict[str, str],
    target: dict[str, str],
    lower: dict[str, str],
    upper: dict[str, str],
    expected: tuple[bool, bool, float],
) -> None:
    vpa = make_vpa(target=target, lower=lower, upper=upper)
    assert priority_of(vpa, make_pod("p", requests=requests)) == expected


def test_what_the_kubelet_reports_wins_over_the_spec() -> None:
    status = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}
    pod = make_pod("p", requests={"cpu": "10"}, status=status)
    assert priority_of(make_vpa(target={"cpu": "10"}, lower={}, upper={}), pod) == (False, True, 4.0)


def test_containers_that_the_webhook_did_not_see_do_not_count() -> None:
    pod = make_pod("p", requests={"cpu": "1"}, annotations={"vpaObservedContainers": ""})
    assert priority_of(make_vpa(target={"cpu": "10"}), pod) == (False, False, 0.0)
    broken = make_pod("p", requests={"cpu": "1"}, annotations={"vpaObservedContainers": "main,helper"})
    assert priority_of(make_vpa(target={"cpu": "10"}), broken)[2] == 9.0, "an unreadable list is no list"


def killed(ran: timedelta, ago: timedelta, reason: str = "OOMKilled") -> dict[str, Any]:
    end = {"reason": reason, "startedAt": stamp(NOW - ago - ran), "finishedAt": stamp(NOW - ago)}
    return {"containerStatuses": [{"name": "main", "lastState": {"terminated": end}}]}


@pytest.mark.parametrize(
    ("ran", "ago", "reason", "expected"),
    [
        (2, 1, "OOMKilled", Reason.QUICK_OOM),
        (10, 1, "OOMKilled", Reason.TOO_YOUNG),
        (2, 10, "OOMKilled", Reason.TOO_YOUNG),
        (2, 1, "Error", Reason.TOO_YOUNG),
    ],
)
def test_an_oom_kill_counts_when_it_came_soon_and_is_fresh(
    ran: int, ago: int, reason: str, expected: Reason
) -> None:
    vpa = make_vpa(lower={}, upper={})
    status = killed(timedelta(minutes=ran), timedelta(minutes=ago), reason)
    verdict = judge(make_pod("p", age=HOUR, status=status), vpa=vpa)
    assert (verdict.reason if isinstance(verdict, Refusal) else verdict) is expected


def test_a_vpa_may_set_its_own_time_after_an_oom_kill_behind_its_gate() -> None:
    vpa = make_vpa(lower={}, upper={}, policy={"evictAfterOOMSeconds": 30})
    pod = make_pod("p", age=HOUR, status=killed(timedelta(minutes=2), timedelta(0)))
    assert judge(pod, vpa=vpa) is Reason.QUICK_OOM
    assert isinstance(judge(pod, vpa=vpa, gates="PerVPAConfig=true"), Refusal)


def test_an_oom_kill_of_a_container_that_opted_out_does_not_count() -> None:
    off = {"containerPolicies": [{"containerName": "*", "mode": "Off"}]}
    vpa = make_vpa(lower={}, upper={}, resourcePolicy=off)
    pod = make_pod("p", age=HOUR, status=killed(timedelta(minutes=2), timedelta(0)))
    assert judge(pod, vpa=vpa, rules=UPSTREAM) is not Reason.QUICK_OOM


def test_an_oom_killed_pod_that_has_its_target_is_left_alone() -> None:
    pod = make_pod(
        "p", requests={"cpu": "200m", "memory": "400Mi"}, status=killed(timedelta(minutes=2), timedelta(0))
    )
    verdict = judge(pod, vpa=make_vpa())
    assert isinstance(verdict, Refusal)
    assert verdict.reason is Reason.UP_TO_DATE
    assert "OOM-killed" in verdict.message


def test_pods_that_need_more_go_before_those_that_have_too_much() -> None:
    def one(up: bool, diff: float) -> tuple[Pod, Priority]:
        return make_pod(f"{up}{diff}"), Priority(up, diff, True, True, True)

    ordered = in_order([one(False, 0.5), one(True, 0.25), one(False, 0.25), one(True, 9.0)])
    assert [pod.metadata.name for pod, _ in ordered] == ["True9.0", "True0.25", "False0.5", "False0.25"]


@pytest.mark.parametrize(
    ("target", "requirements", "met"),
    [
        ({"cpu": "200m"}, [(["cpu"], "TargetHigherThanRequests")], True),
        ({"cpu": "50m"}, [(["cpu", "memory"], "TargetHigherThanRequests")], False),
        ({"cpu": "50m", "memory": "1Gi"}, [(["cpu", "memory"], "TargetHigherThanRequests")], True),
        (
            {"cpu": "200m", "memory": "100Mi"},
            [(["cpu"], "TargetHigherThanRequests"), (["memory"], "TargetLowerThanRequests")],
            True,
        ),
        (
            {"cpu": "200m", "memory": "100Mi"},
            [(["cpu"], "TargetHigherThanRequests"), (["memory"], "TargetHigherThanRequests")],
            False,
        ),
        ({"cpu": "200m"}, [([], "TargetHigherThanRequests")], False),
    ],
)
def test_every_requirement_needs_one_of_its_resources(
    target: dict[str, str], requirements: list[tuple[list[str], str]], met: bool
) -> None:
    wanted = [
        EvictionRequirement(resources=names, change_requirement=change) for names, change in requirements
    ]
    vpa, pod = make_vpa(target=target), make_pod("p")
    recommendations = capped(vpa, pod, NO_RANGES, rules=SAFE).recommendations or []
    actual = actual_resources(pod)
    assert requirements_met(pod, wanted, recommendations, actual, rules=SAFE) is met
    assert requirements_met(make_pod("p", requests={}), wanted, recommendations, {}, rules=SAFE)


def test_of_several_infeasible_targets_of_a_container_the_last_counts() -> None:
    def entry(cpu: str) -> ContainerRecommendation:
        return meta.convert({"containerName": "main", "target": {"cpu": cpu}}, ContainerRecommendation)

    assert worth_another_try([entry("300m")], [entry("200m"), entry("400m")])
    assert not worth_another_try([entry("300m")], [entry("400m"), entry("200m")])
