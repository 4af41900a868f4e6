"""The JSON patch that sizes a new pod, operation by operation in upstream's order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from vpa.gates import FeatureGates
from vpa.modes import OFF, RECREATE, update_mode
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.meta import ResourceList
from vpa.objects.pods import Pod
from vpa.pods import Desired, bounded
from vpa.policies import container_policy, is_off
from vpa.quantities import Quantity
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.sizes import observed
from vpa.sizes.actual import NOTHING, actual_resources
from vpa.sizes.boosts import ANNOTATION_PREFIX, BoostError, apply_boost, original_resources
from vpa.sizes.fitting import fit
from vpa.sizes.limit_ranges import Ranges
from vpa.sizes.managed import may_be_boosted
from vpa.sizes.nodes_fit import Rooms
from vpa.sizes.sizing import scarce_room, sized

UPDATES_ANNOTATION: Final = "vpaUpdates"

_UNTOUCHED: Final = frozenset({Reason.MIRROR_POD, Reason.UPSTREAM_FAILS})
"""Reasons for which a pod does not even get annotations."""

Operation = dict[str, Any]
"""``{"op": "add", "path": …, "value": …}``; "add" also replaces what is there."""


@dataclass(slots=True)
class Admission:
    """What is done to a new pod: *patch* in order, and why it gets no sizes if it gets none."""

    patch: list[Operation] = field(default_factory=list)
    reason: Refusal | None = None
    desired: Desired | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every pod that one webhook sees."""

    rules: Rules
    gates: FeatureGates = field(default_factory=FeatureGates)
    default_mode: str = RECREATE
    most_boost: Quantity | None = None
    """``--max-allowed-cpu-boost``"""


def admit(
    pod: Pod,
    vpa: VerticalPodAutoscaler,
    limit_ranges: Ranges,
    *,
    terms: Terms,
    cap_to: Rooms | None = None,
) -> Admission:
    """The patch for a pod that is being created under *vpa*; *cap_to* are the nodes that have to hold it."""
    rules = terms.rules
    # New pods need no bounds, but upstream fails on bounds that a Pod LimitRange cannot be applied to.
    bounds = limit_ranges.pod is not None and not rules.spare_unmanaged_containers
    wanted = sized(pod, vpa, limit_ranges, rules=rules, cap_to=cap_to, bounds=bounds)
    off = update_mode(vpa, default=terms.default_mode) == OFF
    if wanted.reason is not None and wanted.reason.reason in _UNTOUCHED:
        return Admission(reason=wanted.reason, desired=wanted)
    if off:
        for sizes in wanted.containers:
            sizes.requests, sizes.limits, sizes.notes = {}, {}, []
    patch: list[Operation] = []
    if pod.metadata.annotations is None:
        patch.append(_add("/metadata/annotations", {}))
    boosted: set[str] = set()
    if terms.gates.cpu_startup_boost:
        plain = [sizes.copy() for sizes in wanted.containers]
        try:
            boosted = _boost(pod, vpa, wanted, terms)
        except BoostError as error:
            return Admission(reason=Refusal(Reason.INVALID_VPA, str(error)), desired=wanted)
        if boosted and rules.admissible_pods and not _boost_fits(pod, wanted, limit_ranges, cap_to):
            boosted, wanted.containers = set(), plain
    changed = _containers(pod, vpa, wanted, boosted, terms, patch)
    reason = None if changed else _reason(wanted, vpa, off)
    if off and not changed and rules.only_useful_patches:
        return Admission(reason=reason, desired=wanted)
    names = [container.name for container in pod.spec.containers or ()]
    patch.append(_add_annotation(observed.ANNOTATION, observed.annotation(names)))
    return Admission(patch=patch, reason=reason, desired=wanted)


def _reason(wanted: Desired, vpa: VerticalPodAutoscaler, off: bool) -> Refusal | None:
    if off:
        return Refusal(Reason.MODE_OFF, f"VPA {vpa.metadata.name} has update mode Off")
    return wanted.reason


def _boost(pod: Pod, vpa: VerticalPodAutoscaler, wanted: Desired, terms: Terms) -> set[str]:
    """Raise the CPU of the containers that have a startup boost; their names."""
    rules, policy = terms.rules, vpa.spec.resource_policy
    boosted = set()
    for container, sizes in zip(pod.spec.containers or (), wanted.containers, strict=True):
        if is_off(policy, container.name):
            continue
        if may_be_boosted(container, container_policy(policy, container.name), rules=rules) and apply_boost(
            container, vpa, sizes, rules=rules, most=terms.most_boost
        ):
            boosted.add(container.name)
    return boosted


def _boost_fits(pod: Pod, wanted: Desired, ranges: Ranges, cap_to: Rooms | None) -> bool:
    """Bring the boosted sizes within what the API server accepts, and nodes can hold; False if nothing is."""
    room = scarce_room(pod, wanted.containers, cap_to)
    if not bounded(pod, ranges, room):
        return True
    caps, alone = fit(wanted.containers, pod, actual_resources(pod), ranges, room)
    if not alone:
        wanted.caps.extend(caps)
    return not alone


def _containers(
    pod: Pod,
    vpa: VerticalPodAutoscaler,
    wanted: Desired,
    boosted: Collection[str],
    terms: Terms,
    patch: list[Operation],
) -> bool:
    """Append the operations of all containers and their summary; did any container get a size?"""
    actual = actual_resources(pod)
    boosting = terms.gates.cpu_startup_boost
    texts = []
    changed = False
    for index, (container, sizes) in enumerate(
        zip(pod.spec.containers or (), wanted.containers, strict=True)
    ):
        if boosting and is_off(vpa.spec.resource_policy, container.name):
            continue
        if container.name in boosted:
            patch.append(_add_annotation(ANNOTATION_PREFIX + container.name, original_resources(container)))
        requests, limits = actual.get(container.name, NOTHING)
        operations: list[Operation] = []
        base = f"/spec/containers/{index}/resources"
        useful = bool(sizes.requests or sizes.limits)
        changed = changed or useful
        if requests is None and limits is None and (useful or not terms.rules.only_useful_patches):
            operations.append(_add(base, {}))
        notes = list(sizes.notes)
        _add_values(operations, notes, f"{base}/requests", "request", requests, sizes.requests)
        _add_values(operations, notes, f"{base}/limits", "limit", limits, sizes.limits)
        if operations:
            patch.extend(operations)
            texts.append(f"container {index}: {', '.join(notes)}")
    if texts:
        summary = f"Pod resources updated by {vpa.metadata.name}: {'; '.join(texts)}"
        patch.append(_add_annotation(UPDATES_ANNOTATION, summary))
    return changed


def _add_values(
    operations: list[Operation],
    notes: list[str],
    base: str,
    word: str,
    present: ResourceList | None,
    values: ResourceList,
) -> None:
    """Operations for one map of one container; the map itself first, where it is missing."""
    if present is None and values:
        operations.append(_add(base, {}))
    for resource in sorted(values):
        operations.append(_add(f"{base}/{_escaped(resource)}", str(values[resource])))
        notes.append(f"{resource} {word}")


def _add(path: str, value: Any) -> Operation:
    return {"op": "add", "path": path, "value": value}


def _add_annotation(key: str, value: str) -> Operation:
    return _add(f"/metadata/annotations/{_escaped(key)}", value)


def _escaped(key: str) -> str:
    """A key inside a JSON pointer."""
    if "/" not in key and "~" not in key:
        return key
    return key.replace("~", "~0").replace("/", "~1")
