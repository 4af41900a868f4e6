"""Which resources of a target a HorizontalPodAutoscaler scales by utilisation: a VPA leaves those alone.

Utilisation is use divided by request, so a VPA that changes the request makes the HPA change the replicas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from vpa.objects.autoscalers import ContainerRecommendation, TargetRef, VerticalPodAutoscaler
from vpa.objects.limits import CrossVersionObjectReference, HorizontalPodAutoscaler
from vpa.objects.meta import ResourceList
from vpa.quantities import Quantity


@dataclass(frozen=True, slots=True)
class Claim:
    """One resource that an HPA scales by."""

    hpa: str
    resource: str
    container: str = ""
    """Only of this container; empty: of all."""


def claims(vpa: VerticalPodAutoscaler, hpas: Iterable[HorizontalPodAutoscaler]) -> list[Claim]:
    """What the *hpas* of the VPA's namespace claim on the VPA's target."""
    target = vpa.spec.target_ref
    if target is None:
        return []
    return [
        claim
        for hpa in hpas
        if hpa.metadata.namespace == vpa.metadata.namespace and _same(hpa.spec.scale_target_ref, target)
        for claim in _claims(hpa)
    ]


def _same(scaled: CrossVersionObjectReference, target: TargetRef) -> bool:
    """Do both name one object? Versions of its API do not matter; a missing one matches any."""
    groups = {ref.api_version.rpartition("/")[0] for ref in (scaled, target) if ref.api_version}
    return scaled.kind == target.kind and scaled.name == target.name and len(groups) < 2


def _claims(hpa: HorizontalPodAutoscaler) -> Iterable[Claim]:
    name = hpa.metadata.name
    if (
        hpa.spec.metrics is None
    ):  # autoscaling/v1, and what the API server takes an HPA without metrics to mean
        yield Claim(name, "cpu")
    for metric in hpa.spec.metrics or ():
        source = metric.resource if metric.type == "Resource" else None
        if metric.type == "ContainerResource":
            source = metric.container_resource
        if source is not None and source.target.type == "Utilization":
            yield Claim(name, source.name, source.container if metric.type == "ContainerResource" else "")


def leave(vpa: VerticalPodAutoscaler, claimed: Iterable[Claim]) -> VerticalPodAutoscaler:
    """The VPA without any recommendation for the *claimed* resources."""
    taken = {(claim.container, claim.resource) for claim in claimed}
    if not taken or vpa.status is None or vpa.status.recommendation is None:
        return vpa

    def rest(container: str, resources: ResourceList | None) -> dict[str, Quantity] | None:
        if resources is None:
            return None
        return {
            name: quantity
            for name, quantity in resources.items()
            if ("", name) not in taken and (container, name) not in taken
        }

    def reduced(entry: ContainerRecommendation) -> ContainerRecommendation:
        return msgspec.structs.replace(
            entry,
            target=rest(entry.container_name, entry.target),
            lower_bound=rest(entry.container_name, entry.lower_bound),
            upper_bound=rest(entry.container_name, entry.upper_bound),
            uncapped_target=rest(entry.container_name, entry.uncapped_target),
        )

    entries = [reduced(entry) for entry in vpa.status.recommendation.container_recommendations or ()]
    recommendation = msgspec.structs.replace(
        vpa.status.recommendation, container_recommendations=[entry for entry in entries if entry.target]
    )
    status = msgspec.structs.replace(vpa.status, recommendation=recommendation)
    return msgspec.structs.replace(vpa, status=status)


def describe(claimed: Iterable[Claim]) -> str:
    """The claims and the remedy, as one sentence."""
    parts = [
        f"HorizontalPodAutoscaler {claim.hpa} scales this target by {claim.resource} utilisation"
        + (f" of container {claim.container}" if claim.container else "")
        for claim in claimed
    ]
    resources = sorted({claim.resource for claim in claimed})
    return (
        "; ".join(parts) + f": {' and '.join(resources)} is left alone. Exclude it from controlledResources, "
        "let the HPA use another metric, or set --ignore-hpa"
    )
