"""Core/v1 Node: what it can hold and which pods it admits."""

from __future__ import annotations

from vpa.objects.meta import Obj, ObjectMeta, ResourceList


class Taint(Obj, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Obj, frozen=True):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeCondition(Obj, frozen=True):
    type: str = ""
    status: str = ""


class NodeStatus(Obj, frozen=True):
    allocatable: ResourceList | None = None
    capacity: ResourceList | None = None
    conditions: list[NodeCondition] | None = None


class Node(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
