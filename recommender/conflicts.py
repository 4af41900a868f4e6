"""Several VPAs that target one controller: who decides, and what each of them is told. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from vpa.conditions import TRUE
from vpa.gates import FeatureGates
from vpa.matching import UPDATER, age_order, takes_part
from vpa.modes import RECREATE
from vpa.objects.autoscalers import Condition, VerticalPodAutoscaler
from vpa.rules import Rules

CONFLICT = "Conflict"


def winner(
    rivals: Sequence[VerticalPodAutoscaler],
    *,
    rules: Rules,
    gates: FeatureGates,
    default_mode: str = RECREATE,
) -> VerticalPodAutoscaler:
    """The one of *rivals* (at least one) that pods follow: the oldest that could act, else the oldest."""
    ordered = sorted(rivals, key=age_order)
    for vpa in ordered:
        if takes_part(vpa, service=UPDATER, rules=rules, gates=gates, default_mode=default_mode):
            return vpa
    return ordered[0]


def conflict(
    vpa: VerticalPodAutoscaler, rivals: Sequence[VerticalPodAutoscaler], first: VerticalPodAutoscaler
) -> dict[str, Condition | None]:
    """The condition of *vpa*, one of *rivals*, of which *first* wins; its removal where there is no other."""
    others = sorted(rival.metadata.name for rival in rivals if rival.metadata.name != vpa.metadata.name)
    if not others:
        return {CONFLICT: None}
    names = ", ".join(others)
    if first.metadata.name == vpa.metadata.name:
        reason, message = "Wins", f"The same pods are targeted by VPA {names}; pods follow this one"
    else:
        reason = "Loses"
        message = (
            f"The same pods are targeted by VPA {names}; pods follow {first.metadata.name} and not this one, "
            "delete one of them"
        )
    return {CONFLICT: Condition(type=CONFLICT, status=TRUE, reason=reason, message=message)}
