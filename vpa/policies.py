"""Container policies: which entry of ``spec.resourcePolicy`` speaks for a container, and what it says."""

from __future__ import annotations

from collections import Counter
from typing import Final

from vpa.objects.autoscalers import ContainerPolicy, ResourcePolicy
from vpa.quantities import MILLI, Quantity

WILDCARD: Final = "*"
OFF: Final = "Off"
REQUESTS_AND_LIMITS: Final = "RequestsAndLimits"
REQUESTS_ONLY: Final = "RequestsOnly"


def container_policy(resource_policy: ResourcePolicy | None, container_name: str) -> ContainerPolicy | None:
    """The first policy of that name, otherwise the last wildcard, otherwise none."""
    wildcard = None
    for policy in (resource_policy and resource_policy.container_policies) or ():
        if policy.container_name == container_name:
            return policy
        if policy.container_name == WILDCARD:
            wildcard = policy
    return wildcard


def is_off(resource_policy: ResourcePolicy | None, container_name: str) -> bool:
    """Has the container opted out of scaling?"""
    policy = container_policy(resource_policy, container_name)
    return policy is not None and policy.mode == OFF


def controlled_values(resource_policy: ResourcePolicy | None, container_name: str) -> str:
    """``RequestsAndLimits`` unless the container's policy says otherwise."""
    policy = container_policy(resource_policy, container_name)
    return (policy and policy.controlled_values) or REQUESTS_AND_LIMITS


def duplicate_names(resource_policy: ResourcePolicy | None) -> list[str]:
    """Container names with several policies, in order: all but one of those policies have no effect."""
    policies = (resource_policy and resource_policy.container_policies) or ()
    return [
        name for name, count in Counter(policy.container_name for policy in policies).items() if count > 1
    ]


def whole(resource: str, quantity: Quantity) -> Quantity:
    """A bound of a policy in whole millicores or bytes, rounded up: pods cannot hold anything finer."""
    return quantity.round_up(MILLI if resource == "cpu" else 0)[1]
