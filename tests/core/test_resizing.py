"""Resizes in place: what is permitted, and the patches that are sent."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from tests.core import vectors
from tests.core.test_budgets import VECTOR_NOW, evict, permissions_of
from vpa.gates import FeatureGates
from vpa.modes import OFF
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.pods import desired
from vpa.reasons import Refusal
from vpa.rules import preset
from vpa.sizes.limit_ranges import NO_RANGES
from vpa.updates import outcomes, unboosting
from vpa.updates.permissions import Permissions
from vpa.updates.resize_patches import resize_patch

UPSTREAM = preset("upstream")


def _in_place(permissions: Permissions, pod: Pod, vpa: VerticalPodAutoscaler, events: list[str]) -> Any:
    """Resize as the service does, and show the outcome in upstream's words."""
    name = pod.metadata.name
    if isinstance(permissions.budget.group(pod), Refusal):
        error = f"pod not suitable for in-place update {name}: not in replicated pods map"
        return {"patches": None, "result": {"error": error}}
    try:
        patch = resize_patch(
            pod,
            desired(pod, vpa, NO_RANGES, rules=UPSTREAM).containers,
            rules=UPSTREAM,
            off=permissions.mode == OFF,
            expired=unboosting.expired_containers(pod, vpa, VECTOR_NOW),
        )
    except ValueError as error:
        return {"patches": None, "result": {"error": str(error)}}
    permissions.budget.resized(pod)
    events += [f"Normal {event.reason} {event.message}" for event in outcomes.resized()]
    kind = "application/json-patch+json"
    sent = [{"subresource": "resize", "patch_type": kind, "patch": patch.resize}]
    if patch.annotations:
        sent.append({"subresource": "", "patch_type": kind, "patch": patch.annotations})
    return {"patches": sent, "result": "ok"}


def _outcome(case: vectors.Case) -> dict[str, Any]:
    permissions, pods = permissions_of(case)
    vpa = meta.convert(case["in"]["vpa"], VerticalPodAutoscaler)
    gates = FeatureGates(MappingProxyType(dict.fromkeys(case["in"].get("feature_gates", ()), True)))
    refused = set(case["in"].get("evict_api_errors") or ())
    results: list[Any] = []
    events: list[str] = []
    for operation, index in case["in"]["ops"]:
        pod = pods[index]
        match operation:
            case "can_evict":
                results.append(permissions.evict(pod) is None)
            case "evict":
                results.append(evict(permissions, pod, pod.metadata.name in refused, events))
            case "can_in_place":
                results.append(permissions.resize(pod).permission.value)
            case "can_unboost":
                expired = gates.cpu_startup_boost and unboosting.expired_containers(pod, vpa, VECTOR_NOW)
                results.append(bool(expired) and permissions.unboost(pod) is None)
            case "in_place":
                results.append(_in_place(permissions, pod, vpa, events))
    return {"events": events, "results": results}


def test_vector_decisions_in_place_and_their_patches_are_upstreams() -> None:
    vectors.check("in_place_decisions", vectors.load("in_place_decisions"), _outcome)
