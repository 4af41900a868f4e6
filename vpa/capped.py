"""The condition ``Capped``: pods get less than they seem to need, and what keeps it from them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from vpa import conditions
from vpa.objects.autoscalers import Condition, Recommendation, Status, VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.pods import Desired, desired
from vpa.policies import container_policy
from vpa.quantities import Quantity
from vpa.rules import Rules
from vpa.sizes import capping
from vpa.sizes.limit_ranges import Ranges

CAPPED = "Capped"
BY_FLAG = "global maximum"
MOST = 5
"""Entries named in one message."""

_REASONS = {
    capping.BY_LIMIT_RANGE: "LimitRange",
    capping.BY_POLICY: "Policy",
    capping.BY_LIMIT: "ContainerLimit",
    capping.BY_POD_RESOURCES: "PodResources",
    capping.BY_NODE: "Node",
    BY_FLAG: "GlobalMaximum",
}


class Shortage(NamedTuple):
    """A container gets less of a resource than its usage asks for."""

    container: str
    resource: str
    given: Quantity
    uncapped: Quantity
    by: str


def capped(
    vpa: VerticalPodAutoscaler,
    recommendation: Recommendation,
    pod: Pod | None,
    ranges: Ranges,
    *,
    rules: Rules,
) -> dict[str, Condition | None]:
    """The condition of *vpa* for a new *recommendation*; *pod* is one of its pods, if there is any."""
    found = list(shortages(vpa, recommendation, pod, ranges, rules=rules))
    if not found:
        return {CAPPED: None}
    parts = [
        f"{one.container} gets {one.given} {one.resource} instead of {one.uncapped}, capped by {one.by}"
        for one in found[:MOST]
    ]
    if len(found) > MOST:
        parts.append(f"and {len(found) - MOST} more")
    reasons = {_REASONS.get(one.by, "Other") for one in found}
    reason = reasons.pop() if len(reasons) == 1 else "Several"
    return {
        CAPPED: Condition(type=CAPPED, status=conditions.TRUE, reason=reason, message="; ".join(parts)),
    }


def shortages(
    vpa: VerticalPodAutoscaler,
    recommendation: Recommendation,
    pod: Pod | None,
    ranges: Ranges,
    *,
    rules: Rules,
) -> Iterator[Shortage]:
    """Where what a pod would get is below the uncapped target."""
    result: Desired | None = None
    if pod is not None:
        told = msgspec.structs.replace(vpa, status=Status(recommendation=recommendation))
        result = desired(pod, told, ranges, rules=rules)
    finals = {entry.container_name: entry.target or {} for entry in result.recommendations} if result else {}
    for entry in recommendation.container_recommendations or ():
        for resource, uncapped in (entry.uncapped_target or {}).items():
            target = (entry.target or {}).get(resource)
            given = finals.get(entry.container_name, {}).get(resource, target)
            if given is None or target is None or given >= uncapped:
                continue
            cap = result.capped_by(entry.container_name, resource) if result and given < target else None
            by = cap.by if cap is not None else _by_policy(vpa, entry.container_name, resource)
            yield Shortage(entry.container_name, resource, given, uncapped, by)


def _by_policy(vpa: VerticalPodAutoscaler, container: str, resource: str) -> str:
    policy = container_policy(vpa.spec.resource_policy, container)
    mine = policy is not None and resource in (policy.max_allowed or ())
    return capping.BY_POLICY if mine else BY_FLAG
