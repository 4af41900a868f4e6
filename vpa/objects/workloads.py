"""The controllers that a VPA may target: apps/v1, batch/v1, ReplicationController, all with ``scale``."""

from __future__ import annotations

from vpa.objects.meta import LabelSelector, Obj, ObjectMeta
from vpa.objects.pods import PodTemplate

WELL_KNOWN = frozenset(
    {"CronJob", "DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"}
)


class WorkloadSpec(Obj, frozen=True):
    """Deployment, StatefulSet, DaemonSet, ReplicaSet and Job share these fields."""

    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplate | None = None


class WorkloadStatus(Obj, frozen=True):
    replicas: int = 0
    number_ready: int = 0
    desired_number_scheduled: int = 0


class Workload(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class ReplicationControllerSpec(Obj, frozen=True):
    replicas: int | None = None
    selector: dict[str, str] | None = None
    template: PodTemplate | None = None


class ReplicationController(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class JobTemplate(Obj, frozen=True):
    spec: WorkloadSpec = WorkloadSpec()


class CronJobSpec(Obj, frozen=True):
    job_template: JobTemplate = JobTemplate()


class CronJob(Obj, frozen=True):
    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: CronJobSpec = CronJobSpec()


class ScaleSpec(Obj, frozen=True):
    replicas: int = 0


class ScaleStatus(Obj, frozen=True):
    replicas: int = 0
    selector: str = ""


class Scale(Obj, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()
