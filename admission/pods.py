"""One new pod: its VPA, the sizes that it gets, and why it gets none."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

import msgspec

from admission.choosing import DOUBTS, Chooser
from admission.mirrors import Mirrors
from admission.reviews import Answer, Request
from vpa.objects.meta import decoder
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.sizes.patches import Admission, Terms, admit
from vpa.telemetry import logs

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


class Pods:
    """Reviews of pods. Never denies, and never raises for what a pod may contain."""

    def __init__(self, mirrors: Mirrors, chooser: Chooser, *, terms: Terms) -> None:
        self._mirrors = mirrors
        self._chooser = chooser
        self._terms = terms

    async def review(self, request: Request, *, patience: float) -> Outcome:
        """Judge the pod of *request*, within *patience* seconds."""
        if request.resource.version != VERSION:
            return _unreadable(f"pods of version {request.resource.version} are not understood")
        if request.operation not in (CREATE, "") or request.sub_resource:
            # Resources of a pod that exists are changed by resize alone; a patch would block its update.
            what = f"{request.operation} of pods/{request.sub_resource}".removesuffix("/")
            return Outcome(SKIPPED, refusal=Refusal(Reason.POD_CHANGED, f"{what} is no creation of a pod"))
        if not self._mirrors.synced:
            why = "the admission controller has not yet read all VPAs and LimitRanges"
            return Outcome(ERROR, refusal=Refusal(Reason.NOT_SYNCED, why))
        try:
            pod = _decode(request.object)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return _unreadable(f"the pod cannot be read: {error}")
        namespace = pod.metadata.namespace or request.namespace
        choice = await self._chooser.choose(pod, namespace, patience=patience)
        if choice.vpa is None:
            refusal = choice.refusal
            doubt = refusal is not None and refusal.reason in DOUBTS
            return Outcome(ERROR if doubt else SKIPPED, refusal=refusal)
        nodes = self._mirrors.nodes
        cap_to = nodes.rooms if nodes is not None else None
        done = admit(pod, choice.vpa, self._mirrors.ranges.of(namespace), terms=self._terms, cap_to=cap_to)
        if log.isEnabledFor(logs.V2):
            _tell(pod, namespace, choice.vpa.metadata.name, done)
        status = APPLIED if done.patch else SKIPPED
        return Outcome(status, Answer(patch=done.patch), done.reason)


def _unreadable(why: str) -> Outcome:
    return Outcome(ERROR, refusal=Refusal(Reason.UNREADABLE, why))


def _tell(pod: Pod, namespace: str, vpa: str, done: Admission) -> None:
    name = pod.metadata.name or f"{pod.metadata.generate_name}%"
    extra = {"pod": f"{namespace}/{name}", "vpa": vpa}
    if done.reason is None:
        log.log(logs.V2, "Sized a pod", extra=extra)
    else:
        extra |= {"reason": done.reason.reason.value, "why": done.reason.message}
        log.log(logs.V2, "Left the sizes of a pod alone", extra=extra)
