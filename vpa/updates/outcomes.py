"""What users see of a change: the events that tell of it, in upstream's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vpa.objects.pods import Pod

POD: Final = "Pod"
VPA: Final = "VerticalPodAutoscaler"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of type Normal or Warning on the pod or on its VPA."""

    about: str
    """`POD` or `VPA`."""
    reason: str
    message: str
    type: str = "Normal"


def evicted(pod: Pod) -> list[Event]:
    """An eviction was accepted."""
    return [
        Event(POD, "EvictedByVPA", "Pod was evicted by VPA Updater to apply resource recommendation."),
        Event(
            VPA,
            "EvictedPod",
            f"VPA Updater evicted Pod {pod.metadata.name} to apply resource recommendation.",
        ),
    ]


def resized() -> list[Event]:
    """A resize was accepted."""
    return [Event(POD, "InPlaceResizedByVPA", "Pod was resized in place by VPA Updater.")]


def resize_skipped() -> list[Event]:
    """In mode InPlace, a resize that is known to be infeasible was not tried again."""
    return [
        Event(
            POD,
            "InPlaceResizeSkipped",
            "Previously recorded in-place update was infeasible, current recommendation "
            "is not lower than previous, skipping resize",
        )
    ]
