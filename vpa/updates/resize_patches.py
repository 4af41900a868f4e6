"""The bodies of a resize: JSON patch operations for ``pods/resize``, and those for the pod's annotations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vpa.objects.meta import ResourceList
from vpa.objects.pods import Container, Pod, Resources
from vpa.rules import Rules
from vpa.sizes.boosts import ANNOTATION_PREFIX
from vpa.sizes.fitting import Sizes
from vpa.sizes.observed import observed_containers
from vpa.updates import unboosting
from vpa.updates.attempts import Target

Operation = dict[str, Any]
"""One JSON patch operation."""

UPDATED: Final = "vpaInPlaceUpdated"


class NothingToPatch(ValueError):  # noqa: N818 — upstream's words, and it is no mistake of anyone
    """There is no change that a resize could make."""


@dataclass(frozen=True, slots=True)
class ResizePatch:
    """A resize, ready to send."""

    resize: list[Operation]
    """Body for the ``resize`` subresource; empty where only annotations change."""
    annotations: list[Operation]
    """Body for the pod itself, sent after the resize was accepted."""
    wanted: dict[str, Resources] = field(default_factory=dict)
    """Container → its resources after the resize, for those that the resize names."""

    @property
    def target(self) -> Target:
        """All values that the resize sets."""
        return target_of(self.wanted)


def target_of(wanted: Mapping[str, Resources]) -> Target:
    """The values of *wanted* in the form in which attempts remember them."""
    return {
        (name, kind, resource): quantity.nanos
        for name, resources in wanted.items()
        for kind, listed in (("requests", resources.requests), ("limits", resources.limits))
        for resource, quantity in (listed or {}).items()
    }


def current(pod: Pod) -> Target:
    """The values that the pod's spec has now."""
    return target_of({one.name: one.resources for one in pod.spec.containers or () if one.resources})


def changes(pod: Pod, wanted: Mapping[str, Resources]) -> set[tuple[str, str]]:
    """The (container, resource) pairs whose request or limit would change."""
    now = current(pod)
    return {
        (name, resource)
        for (name, kind, resource), nanos in target_of(wanted).items()
        if now.get((name, kind, resource)) != nanos
    }


def resize_patch(
    pod: Pod,
    sizes: Iterable[Sizes],
    *,
    rules: Rules,
    off: bool = False,
    expired: Collection[str] = (),
    keep: Collection[tuple[str, str]] = (),
) -> ResizePatch:
    """The resize that gives *pod* the *sizes*.

    With *off*, the update mode forbids all but ending boosts. *expired* are the containers whose startup
    boost is over; while a boost runs its container is left alone. *keep* are (container, resource) pairs that
    stay as they are. `NothingToPatch` if there is no operation; ``ValueError`` for an unreadable annotation.
    """
    wanted: dict[str, Resources] = {}
    resize: list[Operation] = []
    by_name = {one.name: one for one in sizes}
    observed = observed_containers(pod) if rules.patch_only_changes else None
    boosted = set(unboosting.boosted_containers(pod))
    others_stay = bool(expired) and rules.unboost_completely
    for index, container in enumerate(pod.spec.containers or ()):
        name = container.name
        if name in expired:
            values = _unboosted(pod, container, by_name.get(name), off=off, rules=rules)
        elif off or name in boosted or others_stay or (observed is not None and name not in observed):
            continue
        else:
            one = by_name.get(name)
            values = Resources(requests=one.requests, limits=one.limits) if one else Resources()
        values = _without(values, name, keep) if keep else values
        operations = _container(index, container, values, rules)
        if operations:
            resize += operations
            wanted[name] = _after(container, values)
    if not resize and not (expired and rules.unboost_completely):
        raise NothingToPatch("no resource patches were calculated to apply")
    return ResizePatch(resize, _annotations(pod, expired, resized=bool(resize)), wanted)


def _unboosted(pod: Pod, container: Container, sizes: Sizes | None, *, off: bool, rules: Rules) -> Resources:
    """What a container gets when its boost is over: its target, or what it had before."""
    has_target = sizes is not None and not off and bool(sizes.requests or sizes.limits)
    try:
        before = unboosting.original(pod, container.name)
    except ValueError:
        if not rules.unboost_completely:
            raise
        before = Resources()
    if not has_target or sizes is None:
        return before
    if not rules.unboost_completely or "cpu" in sizes.requests:
        return Resources(requests=sizes.requests, limits=sizes.limits)

    def with_cpu(values: ResourceList, old: ResourceList | None) -> ResourceList:
        return {**values, "cpu": old["cpu"]} if old and "cpu" in old else values

    return Resources(
        requests=with_cpu(sizes.requests, before.requests), limits=with_cpu(sizes.limits, before.limits)
    )


def _without(values: Resources, name: str, keep: Collection[tuple[str, str]]) -> Resources:
    def rest(listed: ResourceList | None) -> ResourceList:
        return {resource: value for resource, value in (listed or {}).items() if (name, resource) not in keep}

    return Resources(requests=rest(values.requests), limits=rest(values.limits))


def _container(index: int, container: Container, values: Resources, rules: Rules) -> list[Operation]:
    """The operations of one container; equal values are set too, unless `patch_only_changes`."""
    path = f"/spec/containers/{index}/resources"
    has = container.resources or Resources()
    parts = [
        _listed(f"{path}/{kind}", old, new or {}, rules)
        for kind, old, new in (
            ("requests", has.requests, values.requests),
            ("limits", has.limits, values.limits),
        )
    ]
    operations = parts[0] + parts[1]
    if has.requests is None and has.limits is None and (operations or not rules.patch_only_changes):
        operations.insert(0, _add(path, {}))
    return operations


def _listed(path: str, old: ResourceList | None, new: ResourceList, rules: Rules) -> list[Operation]:
    operations = [
        _add(f"{path}/{name}", str(value))
        for name, resource, value in sorted((_escaped(name), name, value) for name, value in new.items())
        if not (rules.patch_only_changes and old is not None and old.get(resource) == value)
    ]
    if operations and old is None:
        operations.insert(0, _add(path, {}))
    return operations


def _after(container: Container, values: Resources) -> Resources:
    has = container.resources or Resources()
    return Resources(
        requests={**(has.requests or {}), **(values.requests or {})},
        limits={**(has.limits or {}), **(values.limits or {})},
        claims=has.claims,
    )


def _annotations(pod: Pod, expired: Collection[str], *, resized: bool) -> list[Operation]:
    operations = []
    if pod.metadata.annotations is None:
        operations.append(_add("/metadata/annotations", {}))
    if resized:
        operations.append(_add(f"/metadata/annotations/{UPDATED}", "true"))
    operations += [
        {"op": "remove", "path": f"/metadata/annotations/{_escaped(ANNOTATION_PREFIX + name)}", "value": None}
        for name in expired
    ]
    return operations


def _add(path: str, value: object) -> Operation:
    return {"op": "add", "path": path, "value": value}


def _escaped(name: str) -> str:
    """A name as one part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
