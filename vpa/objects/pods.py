"""Core/v1 Pod: resources, owners, placement and the parts of the status that a decision needs."""

from __future__ import annotations

from datetime import datetime

from vpa.objects.meta import Obj, ObjectMeta, ResourceList


class Resources(Obj, frozen=True):
    requests: ResourceList | None = None
    limits: ResourceList | None = None
    claims: list[dict[str, str]] | None = None


class ResizePolicy(Obj, frozen=True):
    resource_name: str = ""
    restart_policy: str = ""


class Container(Obj, frozen=True):
    name: str = ""
    resources: Resources | None = None
    resize_policy: list[ResizePolicy] | None = None
    restart_policy: str | None = None


class Toleration(Obj, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelectorRequirement(Obj, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(Obj, frozen=True):
    match_expressions: list[NodeSelectorRequirement] | None = None
    match_fields: list[NodeSelectorRequirement] | None = None


class NodeSelector(Obj, frozen=True):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(Obj, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(Obj, frozen=True):
    node_affinity: NodeAffinity | None = None


class PodSpec(Obj, frozen=True):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    resources: Resources | None = None  # pod-level resources
    overhead: ResourceList | None = None
    restart_policy: str = ""
    priority_class_name: str = ""
    scheduler_name: str = ""


class Terminated(Obj, frozen=True):
    reason: str = ""
    exit_code: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Waiting(Obj, frozen=True):
    reason: str = ""


class Running(Obj, frozen=True):
    started_at: datetime | None = None


class ContainerState(Obj, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Obj, frozen=True):
    name: str = ""
    restart_count: int = 0
    ready: bool = False
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    resources: Resources | None = None
    allocated_resources: ResourceList | None = None


class PodCondition(Obj, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    last_probe_time: datetime | None = None
    observed_generation: int = 0


class PodStatus(Obj, frozen=True):
    phase: str = ""
    reason: str = ""
    qos_class: str = ""
    start_time: datetime | None = None
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    observed_generation: int = 0


class Pod(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodTemplate(Obj, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
