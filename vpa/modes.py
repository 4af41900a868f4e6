"""Update modes: what each one permits when a pod is created, by resize in place, and by eviction.

The one place that knows what an unset mode and the deprecated ``Auto`` mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vpa.gates import FeatureGates
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.reasons import Reason, Refusal

OFF: Final = "Off"
INITIAL: Final = "Initial"
RECREATE: Final = "Recreate"
AUTO: Final = "Auto"
IN_PLACE_OR_RECREATE: Final = "InPlaceOrRecreate"
IN_PLACE: Final = "InPlace"

MODES: Final = (AUTO, IN_PLACE, IN_PLACE_OR_RECREATE, INITIAL, OFF, RECREATE)
DEFAULTS: Final = (RECREATE, IN_PLACE_OR_RECREATE)
"""What ``--default-update-mode`` may be."""


@dataclass(frozen=True, slots=True)
class Permits:
    """What may be done to the pods of a VPA so that they get their target."""

    at_admission: bool
    in_place: bool
    by_eviction: bool


NOTHING: Final = Permits(at_admission=False, in_place=False, by_eviction=False)
_PERMITS: Final = {
    OFF: NOTHING,
    INITIAL: Permits(at_admission=True, in_place=False, by_eviction=False),
    RECREATE: Permits(at_admission=True, in_place=False, by_eviction=True),
    IN_PLACE_OR_RECREATE: Permits(at_admission=True, in_place=True, by_eviction=True),
    IN_PLACE: Permits(at_admission=True, in_place=True, by_eviction=False),
}


def update_mode(vpa: VerticalPodAutoscaler, *, default: str = RECREATE) -> str:
    """The mode that holds: *default* where the VPA names none, or ``Auto``.

    A mode that nobody knows (the CRD refuses it) counts as ``Off``.
    """
    policy = vpa.spec.update_policy
    written = (policy.update_mode or "") if policy is not None else ""
    if written in ("", AUTO):
        return default
    return written if written in _PERMITS else OFF


def permits(vpa: VerticalPodAutoscaler, gates: FeatureGates, *, default: str = RECREATE) -> Permits:
    """What the VPA's mode permits; without its gate, mode ``InPlace`` still sizes new pods."""
    mode = update_mode(vpa, default=default)
    if mode == IN_PLACE and not gates.in_place:
        return _PERMITS[INITIAL]
    return _PERMITS[mode]


def idle(vpa: VerticalPodAutoscaler, gates: FeatureGates, *, default: str = RECREATE) -> Refusal | None:
    """Why the updater leaves running pods of the VPA alone, or ``None`` if it does not."""
    mode = update_mode(vpa, default=default)
    if mode == OFF:
        return Refusal(Reason.MODE_OFF, "update mode Off: the recommendation is shown and never applied")
    if mode == INITIAL:
        return Refusal(Reason.MODE_INITIAL, "update mode Initial: only new pods get the recommendation")
    if mode == IN_PLACE and not gates.in_place:
        return Refusal(
            Reason.FEATURE_GATE_OFF,
            "update mode InPlace needs the updater to run with --feature-gates=InPlace=true",
        )
    return None


def has_startup_boost(vpa: VerticalPodAutoscaler) -> bool:
    """Does the VPA, or a policy of one of its containers, mention a startup boost?"""
    if vpa.spec.startup_boost is not None:
        return True
    policies = vpa.spec.resource_policy and vpa.spec.resource_policy.container_policies
    return any(policy.startup_boost is not None for policy in policies or ())
