"""What a pod should look like: the one answer that recommender, updater, webhook and command line share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from vpa.objects.autoscalers import ContainerRecommendation, VerticalPodAutoscaler
from vpa.objects.meta import ResourceList
from vpa.objects.pods import Pod
from vpa.policies import REQUESTS_AND_LIMITS, controlled_values
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.sizes.actual import Actual, actual_resources
from vpa.sizes.capping import BY_LIMIT_RANGE, Cap, capped
from vpa.sizes.fitting import Sizes, fit
from vpa.sizes.limit_ranges import Ranges
from vpa.sizes.managed import LeftAlone, is_mirror
from vpa.sizes.ratios import allowed_ratios
from vpa.sizes.scaling import proportional_limits

Room = Mapping[str, int]
"""What the largest node that may run a pod can hold of it: resource → nanos."""


@dataclass(slots=True)
class Desired:
    """The sizes of a pod's containers, in the pod's order, and how they came about.

    ``recommendations`` are target and bounds as this pod may have them. ``caps`` are the steps that changed a
    target, in order. ``reason`` says why there is nothing to set, if so.
    """

    containers: list[Sizes]
    recommendations: list[ContainerRecommendation]
    caps: list[Cap] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)
    reason: Refusal | None = None

    def capped_by(self, container: str, resource: str) -> Cap | None:
        """The last step that changed a container's target, if any did."""
        found = [cap for cap in self.caps if cap.container == container and cap.resource == resource]
        return found[-1] if found else None


def desired(
    pod: Pod,
    vpa: VerticalPodAutoscaler,
    limit_ranges: Ranges,
    room: Room | None = None,
    *,
    rules: Rules,
    bounds: bool = True,
) -> Desired:
    """The sizes that *vpa* wants for *pod*, whatever its update mode.

    *room* is what the largest node that may run the pod can hold of it, in nanos by resource. *bounds* False
    leaves lower and upper bounds out, which new pods do not need.
    """
    names = [container.name for container in pod.spec.containers or ()]
    if rules.leave_alone and is_mirror(pod):
        why = Refusal(
            Reason.MIRROR_POD, "a mirror pod shows a static pod, which only its node's files can size"
        )
        return Desired([Sizes(name, {}, {}, []) for name in names], [], reason=why)
    recommendation = vpa.status.recommendation if vpa.status is not None else None
    if recommendation is None:
        return Desired([Sizes(name, {}, {}, []) for name in names], [], reason=_no_recommendation(vpa))
    actual = actual_resources(pod)
    ratios = _ratios(actual, vpa, limit_ranges) if rules.admissible_pods else actual
    found = capped(vpa, pod, limit_ranges, rules=rules, actual=ratios, bounds=bounds)
    if found.refusal is not None:
        return Desired([Sizes(name, {}, {}, []) for name in names], [], reason=found.refusal)
    entries = found.recommendations or []
    parts = _sizes(names, vpa, ratios, entries, found.notes, limit_ranges, rules)
    result = Desired(parts, entries, caps=found.caps, left_alone=found.left_alone)
    if rules.admissible_pods and bounded(pod, limit_ranges, room):
        ranged = {cap.resource for cap in found.caps if cap.by == BY_LIMIT_RANGE}
        caps, alone = fit(parts, pod, actual, limit_ranges, room, settle=ranged)
        unfit = {one.resource for one in alone}
        result.caps = [cap for cap in found.caps if cap.resource not in unfit] + caps
        result.left_alone.extend(alone)
        result.recommendations = _with_targets(entries, parts)
    if not any(part.requests or part.limits for part in parts):
        result.reason = _nothing(result, vpa)
    return result


def bounded(pod: Pod, ranges: Ranges, room: Room | None) -> bool:
    """Is there anything that could refuse the sizes?"""
    return (
        ranges.container is not None
        or ranges.pod is not None
        or room is not None
        or pod.spec.resources is not None
    )


def _ratios(actual: dict[str, Actual], vpa: VerticalPodAutoscaler, ranges: Ranges) -> dict[str, Actual]:
    """What the containers have, with limits that follow requests in no higher ratio than is allowed."""
    policy = vpa.spec.resource_policy
    following = [name for name in actual if controlled_values(policy, name) == REQUESTS_AND_LIMITS]
    return allowed_ratios(actual, following, ranges)


def _sizes(
    names: list[str],
    vpa: VerticalPodAutoscaler,
    actual: Mapping[str, Actual],
    entries: list[ContainerRecommendation],
    notes: Mapping[str, list[str]],
    ranges: Ranges,
    rules: Rules,
) -> list[Sizes]:
    """Requests from the targets, and the limits that go with them."""
    targets: dict[str, ResourceList] = {}
    for entry in entries:
        targets.setdefault(entry.container_name, entry.target or {})
    defaults = ranges.container.default if ranges.container is not None else None
    parts = []
    for name in names:
        part = Sizes(name, dict(targets.get(name, ())), {}, list(notes.get(name, ())))
        parts.append(part)
        if name not in targets or controlled_values(vpa.spec.resource_policy, name) != REQUESTS_AND_LIMITS:
            continue
        limits, more = proportional_limits(
            limits=actual[name].limits,
            requests=actual[name].requests,
            recommended=part.requests,
            defaults=defaults,
            rules=rules,
        )
        part.limits = limits or {}
        if rules.policy_at_once:
            more = [note for note in more if note.partition(":")[0] in part.requests]
        part.notes.extend(more)
    for part in parts:
        part.requests.pop("", None)
        part.limits.pop("", None)
    return parts


def _with_targets(
    entries: list[ContainerRecommendation], parts: list[Sizes]
) -> list[ContainerRecommendation]:
    """The recommendations with the final sizes as targets, and nothing of what is left alone."""
    finals = {part.name: part.requests for part in parts}
    result = []
    for entry in entries:
        target = finals.get(entry.container_name) or {}
        if target == entry.target:
            result.append(entry)
            continue
        left = (entry.target or {}).keys() - target.keys()
        lower = entry.lower_bound and {
            name: min(value, target.get(name, value))
            for name, value in entry.lower_bound.items()
            if name not in left
        }
        upper = entry.upper_bound and {
            name: max(value, target.get(name, value))
            for name, value in entry.upper_bound.items()
            if name not in left
        }
        result.append(
            msgspec.structs.replace(entry, target=dict(target), lower_bound=lower, upper_bound=upper)
        )
    return result


def _no_recommendation(vpa: VerticalPodAutoscaler) -> Refusal:
    if vpa.status is not None and vpa.status.groups and vpa.spec.scope:
        return Refusal(
            Reason.NO_RECOMMENDATION,
            f"VPA {vpa.metadata.name} has no recommendation for nodes whose {vpa.spec.scope} is that of the "
            "pod's node",
        )
    return Refusal(Reason.NO_RECOMMENDATION, f"VPA {vpa.metadata.name} has no recommendation yet")


def _nothing(result: Desired, vpa: VerticalPodAutoscaler) -> Refusal:
    """Why no container gets a size: what left it alone, or that none is recommended."""
    if result.left_alone:
        return result.left_alone[0].why
    if not result.recommendations:
        return Refusal(
            Reason.NO_RECOMMENDATION,
            f"VPA {vpa.metadata.name} recommends nothing for the containers of this pod",
        )
    return _no_recommendation(vpa)
