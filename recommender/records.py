"""What is kept of each pod: who it is, whose it is, its shape, and what became of its containers.

A pod of 6 KiB becomes a record of a few hundred bytes. What replicas have in common, their *shape*
(containers and sizes), is kept once for all of them, and parsed once.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from vpa import times
from vpa.histograms import NEVER
from vpa.matching import controller_of
from vpa.objects import pods
from vpa.objects.meta import Obj, ObjectMeta, OwnerReference, decoder
from vpa.sizes.managed import MIRROR_ANNOTATION

OOM_KILLED = "OOMKilled"
FINISHED = ("Succeeded", "Failed")

FROM_STATUS = "Pod.Status.ContainerStatuses"
FROM_SPEC = "Pod.Spec.Containers"
FROM_INIT_STATUS = "Pod.Status.InitContainerStatuses"
FROM_INIT_SPEC = "Pod.Spec.InitContainers"

_ABSENT = (b"", b"null")
_RESOURCES = decoder(pods.Resources)


class _Container(Obj, frozen=True):
    name: str = ""
    resources: msgspec.Raw = msgspec.Raw()


class _Spec(Obj, frozen=True):
    node_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resources: msgspec.Raw = msgspec.Raw()


class _Terminated(Obj, frozen=True):
    reason: str = ""
    finished_at: str | None = None


class _Something(Obj, frozen=True):
    """A state of which it matters only that it is there."""


class _State(Obj, frozen=True):
    running: _Something | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(Obj, frozen=True):
    name: str = ""
    restart_count: int = 0
    state: _State = _State()
    last_state: _State = _State()
    resources: msgspec.Raw = msgspec.Raw()


class _Status(Obj, frozen=True):
    phase: str = ""
    start_time: str | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class PodView(Obj, frozen=True):
    """The part of a Pod that is decoded."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class Labels(dict[str, str]):
    """Labels of pods, one object for all pods that have the same."""

    __slots__ = ("__weakref__", "text")

    def __init__(self, labels: dict[str, str]) -> None:
        super().__init__(labels)
        self.text = ",".join(f"{key}={labels[key]}" for key in sorted(labels))
        """``key=value`` sorted by key: what identifies upstream's aggregations."""


class Shape:
    """Containers and their sizes, as all replicas of one revision have them."""

    __slots__ = ("__weakref__", "_key", "index", "init", "memory", "names")

    def __init__(self, key: tuple[tuple[tuple[str, bytes, bytes], ...], tuple[str, ...], bytes]) -> None:
        containers, init, _ = key
        self._key = key
        self.names = tuple(name for name, _, _ in containers)
        """Regular containers in the order of the spec."""
        self.index = {name: place for place, name in enumerate(self.names)}
        self.init = frozenset(init)
        self.memory = tuple(_memory_request(status or spec) for _, spec, status in containers)
        """Memory request of each container in bytes, as the kubelet has it, else as the spec has it."""

    def pod(self, record: PodRecord) -> pods.Pod:
        """A Pod with this shape, for functions that size pods."""
        containers, init, whole = self._key
        annotations = {MIRROR_ANNOTATION: ""} if record.mirror else None
        return pods.Pod(
            metadata=ObjectMeta(
                name=record.name, namespace=record.namespace, labels=record.labels, annotations=annotations
            ),
            spec=pods.PodSpec(
                containers=[pods.Container(name=name, resources=_read(raw)) for name, raw, _ in containers],
                init_containers=[pods.Container(name=name) for name in init],
                resources=_read(whole),
            ),
            status=pods.PodStatus(
                container_statuses=[
                    pods.ContainerStatus(name=name, resources=_read(raw))
                    for name, _, raw in containers
                    if raw
                ]
            ),
        )


class ContainerState(NamedTuple):
    """How a container is. Times are nanoseconds, ``NEVER`` where it was not killed for lack of memory."""

    name: str
    restarts: int
    running: bool
    terminated: bool
    oom: int
    """When it was killed, if that is how it is now."""
    last_oom: int
    """When its former run was killed."""


class PodRecord(msgspec.Struct, gc=False, frozen=True):
    """One pod."""

    namespace: str
    name: str
    uid: str
    labels: Labels
    owner: OwnerReference | None
    node: str
    finished: bool
    mirror: bool
    shape: Shape
    states: tuple[ContainerState, ...]
    started: int = NEVER
    """When it was started, nanoseconds; `NEVER` where nobody says."""

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)"""
        return self.namespace, self.name


class Records:
    """Makes records; equal parts of them are one object."""

    def __init__(self) -> None:
        self.sources: Counter[str] = Counter()
        """How often container resources were read, by where they were found."""
        self._shapes: WeakValueDictionary[object, Shape] = WeakValueDictionary()
        self._labels: WeakValueDictionary[str, Labels] = WeakValueDictionary()
        self._owners: dict[OwnerReference, OwnerReference] = {}
        self._calm: dict[str, ContainerState] = {}

    def record(self, pod: PodView) -> PodRecord:
        """The record of a pod."""
        metadata = pod.metadata
        owner = controller_of(metadata)
        return PodRecord(
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            labels=self._labels_of(metadata.labels or {}),
            owner=owner and self._owners.setdefault(owner, owner),
            node=pod.spec.node_name,
            finished=pod.status.phase in FINISHED,
            mirror=MIRROR_ANNOTATION in (metadata.annotations or ()),
            shape=self._shape(pod),
            states=tuple(self._state(status) for status in pod.status.container_statuses or ()),
            started=_moment(pod.status.start_time),
        )

    def forget_owners(self, kept: set[OwnerReference]) -> None:
        """Drop all remembered owners but *kept*."""
        self._owners = {owner: owner for owner in self._owners if owner in kept}

    def _labels_of(self, given: dict[str, str]) -> Labels:
        labels = Labels(given)
        return self._labels.setdefault(labels.text, labels)

    def _shape(self, pod: PodView) -> Shape:
        statuses = {
            status.name: bytes(status.resources)
            for status in pod.status.container_statuses or ()
            if bytes(status.resources) not in _ABSENT
        }
        containers = tuple(
            (container.name, bytes(container.resources), statuses.get(container.name, b""))
            for container in pod.spec.containers or ()
        )
        init = tuple(container.name for container in pod.spec.init_containers or ())
        self._count(pod, statuses.keys() & {name for name, _, _ in containers})
        key = (containers, init, bytes(pod.spec.resources))
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(key)
        return shape

    def _count(self, pod: PodView, from_status: set[str]) -> None:
        self.sources[FROM_STATUS] += len(from_status)
        self.sources[FROM_SPEC] += len(pod.spec.containers or ()) - len(from_status)
        if pod.spec.init_containers:
            known = {
                status.name
                for status in pod.status.init_container_statuses or ()
                if bytes(status.resources) not in _ABSENT
            }
            found = sum(container.name in known for container in pod.spec.init_containers)
            self.sources[FROM_INIT_STATUS] += found
            self.sources[FROM_INIT_SPEC] += len(pod.spec.init_containers) - found

    def _state(self, status: _ContainerStatus) -> ContainerState:
        state = status.state
        calm = state.running is not None and status.last_state.terminated is None
        if calm and status.restart_count == 0:
            known = self._calm.get(status.name)
            if known is None:
                known = ContainerState(status.name, 0, True, False, NEVER, NEVER)
                self._calm[status.name] = known
            return known
        return ContainerState(
            name=status.name,
            restarts=status.restart_count,
            running=state.running is not None,
            terminated=state.terminated is not None,
            oom=_killed(state),
            last_oom=_killed(status.last_state),
        )


def _killed(state: _State) -> int:
    terminated = state.terminated
    if terminated is None or terminated.reason != OOM_KILLED or not terminated.finished_at:
        return NEVER
    return times.parse(terminated.finished_at)


def _moment(text: str | None) -> int:
    try:
        return NEVER if text is None else times.parse(text)
    except ValueError:
        return NEVER


def _read(raw: bytes) -> pods.Resources | None:
    return None if raw in _ABSENT else _RESOURCES.decode(raw)


def _memory_request(raw: bytes) -> int:
    resources = _read(raw)
    quantity = ((resources and resources.requests) or {}).get("memory")
    return 0 if quantity is None else quantity.value()
