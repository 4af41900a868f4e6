"""One new pod: its VPA, the sizes that it gets, and why it gets none."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import msgspec

from admission.choosing import DOUBTS, Choice
from admission.memo import Admitted, Memo
from admission.reviews import Answer, Request
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.meta import ResourceList, decoder, encoder
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.scopes import HOSTNAME, NodeLabels, for_pod, node_of, scope_label
from vpa.sizes.limit_ranges import Ranges
from vpa.sizes.nodes_fit import Rooms
from vpa.sizes.patches import Terms, admit
from vpa.sizes.scaling import RESOURCES
from vpa.telemetry import logs
from vpa.updates.unboosting import boosted_containers, original

log = logging.getLogger(__name__)

RESOURCE: Final = "Pod"
CREATE: Final = "CREATE"
VERSION: Final = "v1"

APPLIED, SKIPPED, ERROR = "applied", "skipped", "error"

_decode = decoder(Pod).decode


@dataclass(slots=True)
class Outcome:
    """An answer, its ``status`` as the metrics have it, and why nothing is done if nothing is."""

    status: str
    answer: Answer = field(default_factory=Answer)
    refusal: Refusal | None = None


class Waiting(NamedTuple):
    """A pod of which not all is known that decides about it."""

    pod: Pod
    namespace: str


class Surroundings(Protocol):
    """What a pod is seen in; `admission.mirrors.Mirrors` is it."""

    @property
    def synced(self) -> bool: ...

    @property
    def rooms(self) -> Rooms | None: ...

    def ranges_of(self, namespace: str) -> Ranges: ...

    def known_labels(self, node: str) -> NodeLabels | None: ...

    async def labels_of(self, node: str, *, patience: float) -> NodeLabels: ...


class Choosing(Protocol):
    """Who says which VPA a pod follows; `admission.choosing.Chooser` does."""

    def known(self, pod: Pod, namespace: str) -> Choice | None: ...

    async def choose(self, pod: Pod, namespace: str, *, patience: float) -> Choice: ...


class Pods:
    """Reviews of pods. Never denies, and never raises for what a pod may contain."""

    def __init__(self, surroundings: Surroundings, chooser: Choosing, *, terms: Terms) -> None:
        self._surroundings = surroundings
        self._chooser = chooser
        self._terms = terms
        self._memo = Memo()

    def begin(self, request: Request) -> Outcome | Waiting:
        """Judge the pod of *request*; if somebody has to be asked for that, `finish` goes on."""
        if request.resource.version != VERSION:
            return _unreadable(f"pods of version {request.resource.version} are not understood")
        if request.operation not in (CREATE, "") or request.sub_resource:
            # Resources of a pod that exists are changed by resize alone; a patch would block its update.
            what = f"{request.operation} of pods/{request.sub_resource}".removesuffix("/")
            return Outcome(SKIPPED, refusal=Refusal(Reason.POD_CHANGED, f"{what} is no creation of a pod"))
        if not self._surroundings.synced:
            why = "the admission controller has not yet read all VPAs and LimitRanges"
            return Outcome(ERROR, refusal=Refusal(Reason.NOT_SYNCED, why))
        try:
            pod = _decode(request.object)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return _unreadable(f"the pod cannot be read: {error}")
        namespace = pod.metadata.namespace or request.namespace
        choice = self._chooser.known(pod, namespace)
        if choice is None:
            return Waiting(pod, namespace)
        node = node_in_question(pod, choice)
        labels = self._surroundings.known_labels(node) if node else {}
        return Waiting(pod, namespace) if labels is None else self._decide(pod, namespace, choice, labels)

    async def finish(self, waiting: Waiting, *, patience: float) -> Outcome:
        """Ask, and judge the pod, within *patience* seconds."""
        until = time.monotonic() + patience
        pod, namespace = waiting
        choice = await self._chooser.choose(pod, namespace, patience=patience)
        node = node_in_question(pod, choice)
        left = max(0.0, until - time.monotonic())
        labels = await self._surroundings.labels_of(node, patience=left) if node else {}
        return self._decide(pod, namespace, choice, labels)

    def _decide(self, pod: Pod, namespace: str, choice: Choice, labels: NodeLabels) -> Outcome:
        """What is done to a pod whose VPA is known, and the *labels* of its node if they matter."""
        if choice.vpa is None:
            refusal = choice.refusal
            doubt = refusal is not None and refusal.reason in DOUBTS
            return Outcome(ERROR if doubt else SKIPPED, refusal=refusal)
        split = bool(scope_label(choice.vpa))
        vpa = for_pod(choice.vpa, pod, labels) if split else choice.vpa
        if self._terms.rules.boosts_do_no_harm:
            pod = before_boost(pod)
        done = self._admit(pod, vpa, self._surroundings.ranges_of(namespace), alike=not split)
        if log.isEnabledFor(logs.V2):
            _tell(pod, namespace, vpa.metadata.name, done.reason)
        return Outcome(APPLIED if done.patch else SKIPPED, Answer(patch=done.patch), done.reason)

    def _admit(self, pod: Pod, vpa: VerticalPodAutoscaler, ranges: Ranges, *, alike: bool) -> Admitted:
        """The decision, from memory if it was made before and, as for *alike* pods, depends on no nodes."""
        rooms = self._surroundings.rooms
        key = self._memo.key(pod, vpa) if alike and rooms is None else None
        known = self._memo.get(key, vpa, ranges) if key is not None else None
        if known is not None:
            return known
        done = admit(pod, vpa, ranges, terms=self._terms, cap_to=rooms)
        admitted = Admitted(encoder.encode(done.patch) if done.patch else b"", done.reason)
        if key is not None:
            self._memo.put(key, vpa, ranges, admitted)
        return admitted


def node_in_question(pod: Pod, choice: Choice) -> str:
    """The node whose labels say which recommendation of the VPA is the pod's; "" if they do not matter."""
    label = "" if choice.vpa is None else scope_label(choice.vpa)
    return node_of(pod) if label not in ("", HOSTNAME) else ""


def before_boost(pod: Pod) -> Pod:
    """The pod as it was before we boosted it in an earlier call: other webhooks may have us called again.

    Otherwise the boost would be boosted, and it, not the owner's figure, would be taken for the original.
    """
    names = set(boosted_containers(pod))
    if not names:
        return pod
    containers = []
    for container in pod.spec.containers or ():
        has = container.resources
        if container.name in names and has is not None:
            with contextlib.suppress(ValueError):
                had = original(pod, container.name)
                before = msgspec.structs.replace(
                    has,
                    requests=_restored(has.requests, had.requests),
                    limits=_restored(has.limits, had.limits),
                )
                container = msgspec.structs.replace(container, resources=before)
        containers.append(container)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=containers))


def _restored(present: ResourceList | None, original: ResourceList | None) -> ResourceList | None:
    """*original* CPU and memory among the other resources; None stays, or a patch would need the map."""
    if present is None:
        return None
    others = {name: value for name, value in present.items() if name not in RESOURCES}
    return {**others, **(original or {})}


def _unreadable(why: str) -> Outcome:
    return Outcome(ERROR, refusal=Refusal(Reason.UNREADABLE, why))


def _tell(pod: Pod, namespace: str, vpa: str, reason: Refusal | None) -> None:
    name = pod.metadata.name or f"{pod.metadata.generate_name}%"
    extra = {"pod": f"{namespace}/{name}", "vpa": vpa}
    if reason is None:
        log.log(logs.V2, "Sized a pod", extra=extra)
    else:
        extra |= {"reason": reason.reason.value, "why": reason.message}
        log.log(logs.V2, "Left the sizes of a pod alone", extra=extra)
