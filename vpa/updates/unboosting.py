"""The end of a CPU startup boost: when it is over, and what the container had before it."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.meta import decoder
from vpa.objects.pods import Pod, Resources
from vpa.policies import container_policy
from vpa.sizes.boosts import ANNOTATION_PREFIX

_DECODER = decoder(Resources)


def boosted_containers(pod: Pod) -> list[str]:
    """The containers whose boost the pod's annotations name."""
    return [
        key.removeprefix(ANNOTATION_PREFIX)
        for key in pod.metadata.annotations or ()
        if key.startswith(ANNOTATION_PREFIX)
    ]


def expired_containers(pod: Pod, vpa: VerticalPodAutoscaler, now: datetime) -> list[str]:
    """The containers whose boost is over: the pod has been ready for longer than the boost lasts."""
    names = boosted_containers(pod)
    if not names:
        return []
    ready = next((one for one in pod.status.conditions or () if one.type == "Ready"), None)
    if ready is None or ready.status != "True":
        return []
    since = ready.last_transition_time
    return [
        name
        for name in names
        if (length := duration(vpa, name)) == 0 or since is None or now - since > timedelta(seconds=length)
    ]


def duration(vpa: VerticalPodAutoscaler, container: str) -> int:
    """Seconds that a boost lasts after the pod is ready: the container policy's, else the VPA's, else 0."""
    policy = container_policy(vpa.spec.resource_policy, container)
    for boost in (policy.startup_boost if policy is not None else None, vpa.spec.startup_boost):
        if boost is not None and boost.cpu is not None and boost.cpu.duration_seconds is not None:
            return boost.cpu.duration_seconds
    return 0


def original(pod: Pod, container: str) -> Resources:
    """What the container had before the boost; ``ValueError`` if the annotation does not say."""
    text = (pod.metadata.annotations or {}).get(ANNOTATION_PREFIX + container, "")
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:
        raise ValueError(_go_words(text)) from None


def _go_words(text: str) -> str:
    """What Go's JSON decoder says of a text that does not even begin like JSON."""
    stripped = text.lstrip(" \t\r\n")
    if not stripped:
        return "unexpected end of JSON input"
    return f"invalid character '{stripped[0]}' looking for beginning of value"
