"""Replica groups, their budget, and what may be disrupted."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from tests.core import vectors
from vpa.gates import FeatureGates
from vpa.objects import meta
from vpa.objects.autoscalers import ContainerRecommendation, VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.reasons import Refusal
from vpa.rules import preset
from vpa.settings import Behaviour, Updating
from vpa.updates import outcomes
from vpa.updates.attempts import Attempts
from vpa.updates.budgets import GroupKey
from vpa.updates.permissions import Permissions

VECTOR_NOW = meta.convert("2024-05-06T12:00:00Z", datetime)


def permissions_of(case: vectors.Case) -> tuple[Permissions, list[Pod]]:
    """The state in which upstream's updater would begin with the pods of one vector."""
    given = case["in"]
    vpa = meta.convert(given["vpa"], VerticalPodAutoscaler)
    pods = [meta.convert(pod, Pod) for pod in given["pods"]]
    attempts = Attempts()
    for name, age in given.get("last_attempt_age_s", {}).items():
        attempts.sightings[f"ns/{name}"] = VECTOR_NOW - timedelta(seconds=age)
    for uid, entries in given.get("infeasible_attempts", {}).items():
        attempts.infeasible[uid] = tuple(meta.convert(entry, ContainerRecommendation) for entry in entries)
    permissions = Permissions.of(
        vpa,
        pods,
        replicas={
            GroupKey("ns", one["kind"], one["name"]): one.get("replicas") or 0
            for one in given["controllers"] or ()
        },
        attempts=attempts,
        now=VECTOR_NOW,
        behaviour=Behaviour(
            feature_gates=FeatureGates(MappingProxyType(dict.fromkeys(given.get("feature_gates", ()), True)))
        ),
        updating=Updating(
            min_replicas=given["min_replicas"],
            eviction_tolerance=float(given["eviction_tolerance"]),
            in_place_skip_disruption_budget=given["in_place_skip_disruption_budget"],
        ),
        rules=preset("upstream"),
    )
    return permissions, pods


def evict(permissions: Permissions, pod: Pod, refused: bool, events: list[str]) -> Any:
    """Evict as the service does, and show the outcome in upstream's words."""
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if isinstance(permissions.budget.group(pod), Refusal):
        return {"error": f"pod not suitable for eviction {name}: not in replicated pods map"}
    if permissions.evict(pod) is not None:
        return {"error": f"cannot evict pod {name}: eviction budget exceeded"}
    permissions.budget.evicted(pod)
    if refused:
        permissions.budget.not_evicted(pod)
        return {"error": "disruption budget"}
    events += [f"Normal {event.reason} {event.message}" for event in outcomes.evicted(pod)]
    return "ok"


def _outcome(case: vectors.Case) -> dict[str, Any]:
    permissions, pods = permissions_of(case)
    refused = set(case["in"].get("evict_api_errors") or ())
    results: list[Any] = []
    events: list[str] = []
    for operation, index in case["in"]["ops"]:
        pod = pods[index]
        if operation == "can_evict":
            results.append(permissions.evict(pod) is None)
        else:
            results.append(evict(permissions, pod, pod.metadata.name in refused, events))
    return {"events": events, "results": results}


def test_vector_evictions_keep_upstreams_budget() -> None:
    vectors.check("eviction_budget", vectors.load("eviction_budget"), _outcome)
