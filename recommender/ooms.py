"""Kills for lack of memory, as pods and events tell of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from recommender.records import ContainerState, PodRecord
from vpa import times
from vpa.histograms import NEVER
from vpa.objects.meta import Obj, ObjectMeta
from vpa.quantities import Quantity, QuantityError
from vpa.rules import Rules

MEMORY = "memory"

CONTAINERS_ANNOTATION = "offending_containers"
USAGE_ANNOTATION = "offending_containers_usage"
STARVED_ANNOTATION = "starved_resource"


class Kill(NamedTuple):
    """A container was killed at *time* (nanoseconds) while it requested, or used, *memory* bytes."""

    namespace: str
    pod: str
    container: str
    time: int
    memory: int


class _Involved(Obj, frozen=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""


class EventView(Obj, frozen=True):
    """The part of an Event that tells of an eviction by the kubelet."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: _Involved = _Involved()


def new_kills(old: PodRecord, new: PodRecord) -> Iterator[Kill]:
    """The kills that a pod's change shows: its container lies killed now, or runs again after a kill."""
    before = {state.name: state for state in old.states}
    for state in new.states:
        was = before.get(state.name)
        if was is None:
            continue
        restarted = state.restarts > was.restarts
        if state.oom != NEVER and (not was.terminated or restarted):
            yield _kill(new, state, state.oom)
        elif state.last_oom != NEVER and state.running and was.running and restarted:
            yield _kill(old, state, state.last_oom)


def standing_kills(pod: PodRecord) -> Iterator[Kill]:
    """The newest kill of each container that a pod's status still tells of."""
    for state in pod.states:
        time = max(state.oom, state.last_oom)
        if time != NEVER:
            yield _kill(pod, state, time)


def _kill(pod: PodRecord, state: ContainerState, time: int) -> Kill:
    place = pod.shape.index.get(state.name)
    memory = 0 if place is None else pod.shape.memory[place]
    return Kill(pod.namespace, pod.name, state.name, time, memory)


def evictions(event: EventView, rules: Rules) -> list[Kill]:
    """The containers that were over their memory request when the kubelet evicted their pod.

    The kubelet names all of them but the starved resource only once; upstream reads that as damaged.
    """
    created: datetime | None = event.metadata.creation_timestamp
    if event.involved_object.kind != "Pod" or created is None:
        return []
    annotations = event.metadata.annotations or {}
    containers, usages, starved = (
        _listed(annotations.get(name))
        for name in (CONTAINERS_ANNOTATION, USAGE_ANNOTATION, STARVED_ANNOTATION)
    )
    if rules.evictions_of_many and len(starved) == 1:
        starved *= len(containers)
    if not len(containers) == len(usages) == len(starved):
        return []
    kills = []
    for container, usage, resource in zip(containers, usages, starved, strict=True):
        if resource != MEMORY:
            continue
        try:
            memory = Quantity.parse(usage).value()
        except QuantityError:
            continue
        about = event.involved_object
        kills.append(Kill(about.namespace, about.name, container, times.from_datetime(created), memory))
    return kills


def _listed(text: str | None) -> list[str]:
    return [] if text is None else text.split(",")
