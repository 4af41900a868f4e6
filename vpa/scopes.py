"""Splitting a DaemonSet by a node label, Deckhouse's ``spec.scope``: unlike nodes have sizes of their own.

The status then holds one recommendation for each value of the label, in ``groups``, and none beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from vpa.matching import age_order
from vpa.objects.autoscalers import (
    ContainerRecommendation,
    GroupRecommendation,
    Recommendation,
    Status,
    VerticalPodAutoscaler,
)
from vpa.objects.meta import to_builtins
from vpa.objects.pods import Pod

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


def node_of(pod: Pod) -> str:
    """The node that the pod runs on, or that a new pod of a DaemonSet is made for; "" where neither tells."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    for term in (required and required.node_selector_terms) or ():
        for field in term.match_fields or ():
            if field.key == "metadata.name" and field.operator == "In" and len(field.values or ()) == 1:
                return (field.values or [""])[0]
    return ""


def for_pod(vpa: VerticalPodAutoscaler, pod: Pod, nodes: NodeLabels) -> VerticalPodAutoscaler:
    """The VPA with the recommendation for the pod's node alone; the same VPA where nothing splits.

    Without a group for that node, or where its label is not known, there is no recommendation.
    """
    label = scope_label(vpa)
    if not label or vpa.status is None:
        return vpa
    node = node_of(pod)
    known = node and (label == HOSTNAME or node in nodes)
    entries = _entries(vpa.status, label, scope_value(label, node, nodes)) if known else None
    recommendation = Recommendation(container_recommendations=entries) if entries else None
    status = msgspec.structs.replace(vpa.status, recommendation=recommendation)
    return msgspec.structs.replace(vpa, status=status)


def all_entries(vpa: VerticalPodAutoscaler) -> list[ContainerRecommendation]:
    """The recommendations for all containers, of whichever group."""
    status = vpa.status or Status()
    found = list((status.recommendation and status.recommendation.container_recommendations) or ())
    return found + [entry for group in status.groups or () for entry in group.container_recommendations or ()]


def _entries(status: Status, label: str, value: str | None) -> list[ContainerRecommendation] | None:
    for group in status.groups or ():
        if group.scope_value == value:
            return group.container_recommendations
    # Deckhouse's first form: the entries themselves name the value that they are for.
    entries = (status.recommendation and status.recommendation.container_recommendations) or ()
    return [entry for entry in entries if entry.scope == f"{label}={value}"]


def shown(groups: Iterable[GroupRecommendation]) -> list[dict[str, Any]]:
    """The groups as a status holds them: an empty value of a scope is a value, and must be seen."""
    return [{"scopeValue": "", **to_builtins(group)} for group in groups]
