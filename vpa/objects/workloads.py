"""The controllers that a VPA may target: apps/v1, batch/v1, ReplicationController, and anything with ``scale``."""

from __future__ import annotations

from vpa.objects.meta import LabelSelector, Obj, ObjectMeta
from vpa.objects.pods import PodTemplate

WELL_KNOWN = frozenset(
    {"CronJob", "DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"}
)


class WorkloadSpec(Obj):
    """Deployment, StatefulSet, DaemonSet, ReplicaSet and Job share these fields."""

    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplate | None = None


class WorkloadStatus(Obj):
    replicas: int = 0
    number_ready: int = 0
    desired_number_scheduled: int = 0


class Workload(Obj):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class ReplicationControllerSpec(Obj):
    replicas: int | None = None
    selector: dict[str, str] | None = None
    template: PodTemplate | None = None


class ReplicationController(Obj):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class JobTemplate(Obj):
    spec: WorkloadSpec = WorkloadSpec()


class CronJobSpec(Obj):
    job_template: JobTemplate = JobTemplate()


class CronJob(Obj):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: CronJobSpec = CronJobSpec()


class ScaleSpec(Obj):
    replicas: int = 0


class ScaleStatus(Obj):
    replicas: int = 0
    selector: str = ""


class Scale(Obj):
    metadata: ObjectMeta = ObjectMeta()
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()
