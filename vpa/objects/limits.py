"""What bounds a pod from outside: LimitRange, ResourceQuota, PodDisruptionBudget, HorizontalPodAutoscaler."""

from __future__ import annotations

from typing import Any

from vpa.objects.meta import LabelSelector, Obj, ObjectMeta, ResourceList


class LimitRangeItem(Obj, frozen=True):
    type: str = ""
    max: ResourceList | None = None
    min: ResourceList | None = None
    default: ResourceList | None = None
    default_request: ResourceList | None = None
    max_limit_request_ratio: ResourceList | None = None


class LimitRangeSpec(Obj, frozen=True):
    limits: list[LimitRangeItem] | None = None


class LimitRange(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: LimitRangeSpec = LimitRangeSpec()


class ResourceQuotaSpec(Obj, frozen=True):
    hard: ResourceList | None = None
    scopes: list[str] | None = None
    scope_selector: dict[str, Any] | None = None


class ResourceQuotaStatus(Obj, frozen=True):
    hard: ResourceList | None = None
    used: ResourceList | None = None


class ResourceQuota(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class PodDisruptionBudgetSpec(Obj, frozen=True):
    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudgetStatus(Obj, frozen=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    observed_generation: int = 0


class PodDisruptionBudget(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus | None = None


class CrossVersionObjectReference(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""


class MetricTarget(Obj, frozen=True):
    type: str = ""


class ResourceMetricSource(Obj, frozen=True):
    name: str = ""
    container: str = ""
    target: MetricTarget = MetricTarget()


class MetricSpec(Obj, frozen=True):
    type: str = ""
    resource: ResourceMetricSource | None = None
    container_resource: ResourceMetricSource | None = None


class HorizontalPodAutoscalerSpec(Obj, frozen=True):
    scale_target_ref: CrossVersionObjectReference = CrossVersionObjectReference()
    metrics: list[MetricSpec] | None = None


class HorizontalPodAutoscaler(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
