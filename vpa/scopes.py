"""Splitting a DaemonSet by a node label, Deckhouse's ``spec.scope``: unlike nodes have sizes of their own.

The status then holds one recommendation for each value of the label, in ``groups``, and none beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from vpa.matching import age_order
from vpa.objects.autoscalers import GroupRecommendation, VerticalPodAutoscaler
from vpa.objects.meta import to_builtins

DAEMON_SET: Final = "DaemonSet"
HOSTNAME: Final = "kubernetes.io/hostname"
"""This label's value is taken to be the node's name, so that no node need be known."""

ABSENT: Final = "__absent__"
"""Scope value of nodes that lack the label."""

NodeLabels = Mapping[str, Mapping[str, str]]
"""Node → its labels."""


def scope_label(vpa: VerticalPodAutoscaler) -> str:
    """The node label that splits the VPA's target, "" where nothing does."""
    ref = vpa.spec.target_ref
    return (vpa.spec.scope or "") if ref is not None and ref.kind == DAEMON_SET else ""


def splitting_label(vpas: Iterable[VerticalPodAutoscaler]) -> str:
    """The node label by which the oldest scoped VPA of a target splits it, "" for none."""
    return next((label for vpa in sorted(vpas, key=age_order) if (label := scope_label(vpa))), "")


def scope_value(label: str, node: str, nodes: NodeLabels) -> str | None:
    """The value of the *label* for pods of a node; None where nothing splits."""
    if not label:
        return None
    if label == HOSTNAME:
        return node
    return nodes.get(node, {}).get(label, ABSENT)


def shown(groups: Iterable[GroupRecommendation]) -> list[dict[str, Any]]:
    """The groups as a status holds them: an empty value of a scope is a value, and must be seen."""
    return [{"scopeValue": "", **to_builtins(group)} for group in groups]
