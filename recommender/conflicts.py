"""Several VPAs that target one controller: which of them pods follow. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from vpa.matching import UPDATER, age_order, takes_part
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.rules import Rules
from vpa.settings import Behaviour


def by_strength(
    rivals: Iterable[VerticalPodAutoscaler], *, rules: Rules, behaviour: Behaviour
) -> list[VerticalPodAutoscaler]:
    """*rivals* with the one that pods follow first: the oldest that could act on them, else the oldest."""

    def strength(vpa: VerticalPodAutoscaler) -> tuple[bool, object]:
        acts = takes_part(
            vpa,
            service=UPDATER,
            rules=rules,
            gates=behaviour.feature_gates,
            default_mode=behaviour.default_update_mode,
        )
        return not acts, age_order(vpa)

    return sorted(rivals, key=strength)
