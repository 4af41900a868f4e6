"""What a pod takes from a node or a quota: its containers, overhead and pod-level resources as one sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from vpa.objects.meta import ResourceList
from vpa.objects.pods import Container, Pod, PodSpec, Resources

REQUESTS: Final = "requests"
LIMITS: Final = "limits"

Footprint = dict[str, int]
"""Resource → nanos."""


def footprint(spec: PodSpec, kind: str = REQUESTS) -> Footprint:
    """What the scheduler or a quota counts for a pod, as ``requests`` or ``limits``.

    Init containers run one after another, so the largest counts; native sidecars (``restartPolicy: Always``)
    stay and are added. Pod-level resources replace the sum; overhead comes on top.
    """
    total: Footprint = {}
    sidecars: Footprint = {}
    largest: Footprint = {}
    for container in spec.containers or ():
        _add(total, _listed(container, kind))
    for container in spec.init_containers or ():
        own = _listed(container, kind)
        if container.restart_policy == "Always":
            _add(total, own)
            _add(sidecars, own)
            _most(largest, sidecars)
        else:
            with_sidecars = dict(sidecars)
            _add(with_sidecars, own)
            _most(largest, with_sidecars)
    _most(total, largest)
    level = spec.resources and (spec.resources.requests if kind == REQUESTS else spec.resources.limits)
    total.update({resource: quantity.nanos for resource, quantity in (level or {}).items()})
    _add(total, spec.overhead if kind == REQUESTS or total else None)
    return total


def resized(pod: Pod, wanted: Mapping[str, Resources]) -> Pod:
    """The pod with the resources of the named containers replaced by *wanted*."""
    containers = [
        msgspec.structs.replace(container, resources=wanted[container.name])
        if container.name in wanted
        else container
        for container in pod.spec.containers or ()
    ]
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=containers))


def qos_class(spec: PodSpec) -> str:
    """``Guaranteed``, ``Burstable`` or ``BestEffort``, as the API server computes it from CPU and memory."""
    parts = [container.resources for container in (*(spec.containers or ()), *(spec.init_containers or ()))]
    if spec.resources is not None and (spec.resources.requests or spec.resources.limits):
        parts = [spec.resources]
    mentioned = guaranteed = False
    exact = bool(parts)
    for part in parts:
        requests, limits = _nonzero(part and part.requests), _nonzero(part and part.limits)
        mentioned = mentioned or bool(requests) or bool(limits)
        guaranteed = len(limits) == 2 and {**limits, **requests} == limits
        exact = exact and guaranteed
    if not mentioned:
        return "BestEffort"
    return "Guaranteed" if exact else "Burstable"


def _nonzero(resources: ResourceList | None) -> dict[str, int]:
    """CPU and memory that are more than zero, in nanos."""
    return {
        name: quantity.nanos
        for name, quantity in (resources or {}).items()
        if name in ("cpu", "memory") and quantity.nanos > 0
    }


def _listed(container: Container, kind: str) -> ResourceList | None:
    """Requests or limits of a container; a limit without a request is its request."""
    resources = container.resources
    if resources is None:
        return None
    if kind == LIMITS:
        return resources.limits
    return {**resources.limits, **(resources.requests or {})} if resources.limits else resources.requests


def _add(total: Footprint, resources: ResourceList | Mapping[str, int] | None) -> None:
    for resource, amount in (resources or {}).items():
        nanos = amount if isinstance(amount, int) else amount.nanos
        total[resource] = total.get(resource, 0) + nanos


def _most(total: Footprint, other: Footprint) -> None:
    for resource, nanos in other.items():
        total[resource] = max(total.get(resource, 0), nanos)
