"""Which VPA is a pod's: found by the pod's top-most controller, then by selector; the oldest wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from vpa.gates import FeatureGates
from vpa.modes import INITIAL, OFF, RECREATE, has_startup_boost, update_mode
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.meta import ObjectMeta, OwnerReference
from vpa.rules import Rules
from vpa.selectors import Labels, Selector

ADMISSION: Final = "admission"
UPDATER: Final = "updater"

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class TargetKey(NamedTuple):
    """A controller as VPAs name it. API versions are not compared."""

    namespace: str
    kind: str
    name: str


def target_key(vpa: VerticalPodAutoscaler) -> TargetKey | None:
    """What the VPA targets; ``None`` without a ``targetRef``."""
    ref = vpa.spec.target_ref
    return TargetKey(vpa.metadata.namespace, ref.kind, ref.name) if ref is not None else None


def controller_of(metadata: ObjectMeta) -> OwnerReference | None:
    """The owner that controls an object: the last of its references that says so."""
    found = None
    for owner in metadata.owner_references or ():
        if owner.controller:
            found = owner
    return found


def age_order(vpa: VerticalPodAutoscaler) -> tuple[datetime, str]:
    """Sorts VPAs of one namespace by strength: the oldest first, then by name."""
    return vpa.metadata.creation_timestamp or _NEVER, vpa.metadata.name


def takes_part(
    vpa: VerticalPodAutoscaler,
    *,
    service: str,
    rules: Rules,
    gates: FeatureGates,
    default_mode: str = RECREATE,
) -> bool:
    """Does the VPA compete for pods?

    With `one_choice` those compete that could do anything to a pod, for updater and webhook alike. Upstream's
    updater overlooks VPAs in mode Initial, so that it may follow another VPA than its webhook.
    """
    mode = update_mode(vpa, default=default_mode)
    boosted = has_startup_boost(vpa)
    if rules.one_choice:
        return mode != OFF or (boosted and gates.cpu_startup_boost)
    if service == UPDATER and mode == INITIAL:
        return boosted
    return mode != OFF or boosted


def by_strength(
    rivals: Iterable[VerticalPodAutoscaler],
    *,
    rules: Rules,
    gates: FeatureGates,
    default_mode: str = RECREATE,
) -> list[VerticalPodAutoscaler]:
    """VPAs of one target; the one that pods follow is first: the oldest that could act, else the oldest."""

    def strength(vpa: VerticalPodAutoscaler) -> tuple[bool, object]:
        acts = takes_part(vpa, service=UPDATER, rules=rules, gates=gates, default_mode=default_mode)
        return not acts, age_order(vpa)

    return sorted(rivals, key=strength)


def strongest(
    candidates: Iterable[VerticalPodAutoscaler],
    labels: Labels | None,
    selector_of: Callable[[VerticalPodAutoscaler], Selector | None],
) -> VerticalPodAutoscaler | None:
    """The oldest of *candidates* whose target's selector (``None`` if unknown) matches the pod's *labels*."""
    for vpa in sorted(candidates, key=age_order):
        selector = selector_of(vpa)
        if selector is not None and selector.matches(labels):
            return vpa
    return None


class TargetIndex:
    """VPAs by target, oldest first: finding those of one controller costs the same however many there are."""

    def __init__(self, vpas: Iterable[VerticalPodAutoscaler] = ()) -> None:
        self._by_target: dict[TargetKey, list[VerticalPodAutoscaler]] = {}
        self._targets: dict[tuple[str, str], TargetKey] = {}
        for vpa in vpas:
            self.put(vpa)

    def __len__(self) -> int:
        return len(self._targets)

    def __iter__(self) -> Iterator[VerticalPodAutoscaler]:
        for found in self._by_target.values():
            yield from found

    def put(self, vpa: VerticalPodAutoscaler) -> None:
        """Add a VPA or replace its former self; one without a target is only forgotten."""
        self.remove(vpa.metadata.namespace, vpa.metadata.name)
        key = target_key(vpa)
        if key is None:
            return
        self._targets[vpa.metadata.namespace, vpa.metadata.name] = key
        self._by_target[key] = sorted([*self._by_target.get(key, ()), vpa], key=age_order)

    def remove(self, namespace: str, name: str) -> None:
        key = self._targets.pop((namespace, name), None)
        if key is None:
            return
        left = [vpa for vpa in self._by_target[key] if vpa.metadata.name != name]
        if left:
            self._by_target[key] = left
        else:
            del self._by_target[key]

    def at(self, key: TargetKey) -> list[VerticalPodAutoscaler]:
        """The VPAs of one target, oldest first."""
        return self._by_target.get(key, [])

    def is_target(self, key: TargetKey) -> bool:
        return key in self._by_target
