"""``autoscaling.k8s.io`` VerticalPodAutoscaler, with upstream's and Deckhouse's fields."""

from __future__ import annotations

from datetime import datetime

import msgspec

from vpa.objects.meta import Obj, ObjectMeta, ResourceList
from vpa.quantities import Quantity

GROUP = "autoscaling.k8s.io"
API_VERSION = "autoscaling.k8s.io/v1"
KIND = "VerticalPodAutoscaler"


class TargetRef(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""


class EvictionRequirement(Obj, frozen=True):
    resources: list[str] | None = None
    change_requirement: str = ""


class UpdatePolicy(Obj, frozen=True):
    update_mode: str | None = None
    min_replicas: int | None = None
    eviction_requirements: list[EvictionRequirement] | None = None
    evict_after_oom_seconds: int | None = msgspec.field(default=None, name="evictAfterOOMSeconds")


class CPUStartupBoost(Obj, frozen=True):
    type: str = ""
    factor: int | None = None
    quantity: Quantity | None = None
    duration_seconds: int | None = None


class StartupBoost(Obj, frozen=True):
    cpu: CPUStartupBoost | None = None


class ContainerPolicy(Obj, frozen=True):
    container_name: str = ""
    mode: str | None = None
    min_allowed: ResourceList | None = None
    max_allowed: ResourceList | None = None
    controlled_resources: list[str] | None = None
    controlled_values: str | None = None
    oom_bump_up_ratio: Quantity | None = None
    oom_min_bump_up: Quantity | None = None
    memory_aggregation_interval_seconds: int | None = None
    memory_aggregation_interval_count: int | None = None
    startup_boost: StartupBoost | None = None


class ResourcePolicy(Obj, frozen=True):
    container_policies: list[ContainerPolicy] | None = None


class RecommenderSelector(Obj, frozen=True):
    name: str = ""


class Spec(Obj, frozen=True):
    target_ref: TargetRef | None = None
    update_policy: UpdatePolicy | None = None
    resource_policy: ResourcePolicy | None = None
    recommenders: list[RecommenderSelector] | None = None
    startup_boost: StartupBoost | None = None
    scope: str | None = None  # Deckhouse: a node label key that splits a DaemonSet into groups


class ContainerRecommendation(Obj, frozen=True):
    container_name: str = ""
    target: ResourceList | None = None
    lower_bound: ResourceList | None = None
    upper_bound: ResourceList | None = None
    uncapped_target: ResourceList | None = None
    scope: str = ""  # Deckhouse's first form of groups: "label=value"


class Recommendation(Obj, frozen=True):
    container_recommendations: list[ContainerRecommendation] | None = None


class GroupRecommendation(Obj, frozen=True):
    """Deckhouse: the recommendation for the nodes that share one value of the scope label."""

    scope_value: str = ""
    container_recommendations: list[ContainerRecommendation] | None = None


class Condition(Obj, frozen=True):
    type: str = ""
    status: str = ""
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""
    observed_generation: int = 0


class Status(Obj, frozen=True):
    recommendation: Recommendation | None = None
    conditions: list[Condition] | None = None
    groups: list[GroupRecommendation] | None = None
    observed_generation: int = 0


class VerticalPodAutoscaler(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: Spec = Spec()
    status: Status | None = None
