"""Which containers and resources of a pod the VPA may size at all, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from vpa.objects.autoscalers import ContainerPolicy, ContainerRecommendation, ResourcePolicy
from vpa.objects.meta import ResourceList
from vpa.objects.pods import Container, Pod
from vpa.policies import OFF, container_policy
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.sizes.scaling import CPU, RESOURCES

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A container, or one resource of it (``""``: all), that keeps what its owner wrote."""

    container: str
    resource: str
    why: Refusal


def is_mirror(pod: Pod) -> bool:
    """Is the pod the API server's picture of a static pod, which only its node can change?"""
    return MIRROR_ANNOTATION in (pod.metadata.annotations or ())


def may_be_boosted(container: Container, policy: ContainerPolicy | None, *, rules: Rules) -> bool:
    """May a startup boost raise the container's CPU?"""
    limits = container.resources.limits if container.resources is not None else None
    fixed = limits is not None and CPU in limits and limits[CPU].is_zero
    return _untouchable(container, policy, rules) is None and not (fixed and rules.leave_alone)


def untouchable(pod: Pod, policy: ResourcePolicy | None, *, rules: Rules) -> set[str]:
    """Names of the containers that nothing may change."""
    return {
        container.name
        for container in pod.spec.containers or ()
        if _untouchable(container, container_policy(policy, container.name), rules) is not None
    }


def managed(
    recommendations: Iterable[ContainerRecommendation],
    pod: Pod,
    policy: ResourcePolicy | None,
    *,
    rules: Rules,
) -> tuple[list[ContainerRecommendation], list[LeftAlone]]:
    """The part of *recommendations* that may be applied to *pod*, and what is left alone.

    Recommendations for containers that the pod lacks are kept as they are.
    """
    containers = {container.name: container for container in pod.spec.containers or ()}
    kept: list[ContainerRecommendation] = []
    alone: list[LeftAlone] = []
    for recommendation in recommendations:
        container = containers.get(recommendation.container_name)
        if container is None:
            kept.append(recommendation)
            continue
        found = container_policy(policy, container.name)
        refusal = _untouchable(container, found, rules)
        if refusal is not None:
            alone.append(LeftAlone(container.name, "", refusal))
            continue
        dropped = _left_out(container, found, recommendation.target or {}, rules)
        alone.extend(LeftAlone(container.name, resource, why) for resource, why in dropped.items())
        kept.append(_without(recommendation, dropped) if dropped else recommendation)
    return kept, alone


def _untouchable(container: Container, policy: ContainerPolicy | None, rules: Rules) -> Refusal | None:
    if rules.policy_at_once and policy is not None and policy.mode == OFF:
        return Refusal(
            Reason.CONTAINER_OPTED_OUT,
            f"the policy of container {container.name} has mode Off; remove it to have the container sized",
        )
    if rules.leave_alone and container.resources is not None and container.resources.claims:
        return Refusal(
            Reason.RESOURCE_CLAIMS,
            f"container {container.name} uses ResourceClaims, whose devices fix its size",
        )
    return None


def _left_out(
    container: Container, policy: ContainerPolicy | None, target: ResourceList, rules: Rules
) -> dict[str, Refusal]:
    """Resources of one container that are not to be touched."""
    found: dict[str, Refusal] = {}
    controlled = policy.controlled_resources if policy is not None and rules.policy_at_once else None
    if controlled is not None:
        for resource in target:
            if resource not in controlled:
                found[resource] = Refusal(
                    Reason.RESOURCE_NOT_CONTROLLED,
                    f"controlledResources of container {container.name} does not name {resource}",
                )
    limits = (container.resources.limits if container.resources is not None else None) or {}
    if rules.leave_alone:
        for resource in RESOURCES:
            if resource in target and resource in limits and limits[resource].is_zero:
                found[resource] = Refusal(
                    Reason.ZERO_LIMIT,
                    f"container {container.name} has an explicit {resource} limit of 0, "
                    "which no request may exceed; remove the limit or give it a size",
                )
    return found


def _without(recommendation: ContainerRecommendation, dropped: Iterable[str]) -> ContainerRecommendation:
    def left(resources: ResourceList | None) -> ResourceList | None:
        if resources is None:
            return None
        return {name: value for name, value in resources.items() if name not in dropped}

    return msgspec.structs.replace(
        recommendation,
        target=left(recommendation.target),
        lower_bound=left(recommendation.lower_bound),
        upper_bound=left(recommendation.upper_bound),
    )
