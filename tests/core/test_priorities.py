"""Which pods change now, and in which order."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from tests.core import vectors
from vpa.actual import actual_resources
from vpa.capping import capped
from vpa.durations import Duration
from vpa.gates import FeatureGates
from vpa.limit_ranges import ranges_of
from vpa.modes import IN_PLACE, update_mode
from vpa.objects import meta
from vpa.objects.autoscalers import ContainerRecommendation, VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.objects.pods import Pod
from vpa.priorities import (
    Acceptance,
    Priority,
    in_order,
    requirements_met,
    update_priority,
    worth_another_try,
)
from vpa.reasons import Reason, Refusal
from vpa.rules import preset
from vpa.settings import Updating

NOW = meta.convert("2026-08-01T12:00:00Z", datetime)
HOUR = timedelta(hours=1)


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
