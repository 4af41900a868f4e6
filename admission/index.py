"""The VPAs by target, and what they tell about a namespace without anybody being asked."""

from __future__ import annotations

from collections import Counter
from typing import Final

from vpa.cluster.resources import WELL_KNOWN
from vpa.matching import TargetIndex, TargetKey, target_key
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.scopes import HOSTNAME, scope_label

CHILDREN: Final = {"Deployment": "ReplicaSet", "CronJob": "Job"}
"""Controllers whose pods belong to a controller in between."""
_GROUPS: Final = frozenset({"", "extensions", *(resource.group for resource in WELL_KNOWN.values())})


def is_custom(vpa: VerticalPodAutoscaler) -> bool:
    """Does the VPA target a kind that is not built in, which may own controllers of any kind?"""
    ref = vpa.spec.target_ref
    if ref is None:
        return False
    return ref.kind not in WELL_KNOWN or ref.api_version.rpartition("/")[0] not in _GROUPS


class Index:
    """All VPAs that the webhook follows. In a namespace without any, no pod needs a second look."""

    def __init__(self) -> None:
        self._vpas = TargetIndex()
        self._kinds: dict[str, Counter[str]] = {}
        self._custom: Counter[str] = Counter()
        self._splitting = 0

    def __len__(self) -> int:
        return len(self._vpas)

    def changed(self, old: VerticalPodAutoscaler | None, new: VerticalPodAutoscaler | None) -> None:
        """Handler of a reflector."""
        if old is not None:
            self._vpas.remove(old.metadata.namespace, old.metadata.name)
            self._count(old, -1)
        if new is not None:
            self._vpas.put(new)
            self._count(new, 1)

    def _count(self, vpa: VerticalPodAutoscaler, by: int) -> None:
        key = target_key(vpa)
        if key is None:
            return
        if scope_label(vpa) not in ("", HOSTNAME):
            self._splitting += by
        kinds = self._kinds.setdefault(key.namespace, Counter())
        kinds[key.kind] += by
        if not kinds[key.kind]:
            del kinds[key.kind]
        if not kinds:
            del self._kinds[key.namespace]
        if is_custom(vpa):
            self._custom[key.namespace] += by
            if not self._custom[key.namespace]:
                del self._custom[key.namespace]

    @property
    def needs_nodes(self) -> bool:
        """Does a VPA split its target by a label that only the nodes themselves tell?"""
        return self._splitting > 0

    def at(self, key: TargetKey) -> list[VerticalPodAutoscaler]:
        """The VPAs of one target, the oldest first."""
        return self._vpas.at(key)

    def is_target(self, key: TargetKey) -> bool:
        return self._vpas.is_target(key)

    def covers(self, namespace: str) -> bool:
        """Has the namespace any VPA?"""
        return namespace in self._kinds

    def is_open(self, namespace: str) -> bool:
        """Does a VPA there target a kind that is not built in, so that any controller may lead to it?"""
        return namespace in self._custom

    def may_lead_to(self, namespace: str, kind: str) -> bool:
        """Can a controller of a built-in *kind* be a target in the namespace, or belong to one?"""
        kinds = self._kinds.get(namespace)
        if kinds is None:
            return False
        if namespace in self._custom or kind in kinds:
            return True
        return any(CHILDREN.get(parent) == kind for parent in kinds)

    def kinds(self) -> tuple[frozenset[str], frozenset[str]]:
        """Built-in kinds of which records are needed, and those of which only the owners are."""
        targeted = {kind for kinds in self._kinds.values() for kind in kinds if kind in WELL_KNOWN}
        between = {CHILDREN[kind] for kind in targeted if kind in CHILDREN}
        if self._custom:
            between |= set(CHILDREN.values())
            targeted |= WELL_KNOWN.keys() - between
        return frozenset(targeted), frozenset(between)
