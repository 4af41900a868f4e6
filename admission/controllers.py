"""Records of controllers that VPAs target: which pods they select, and who owns them in turn."""

from __future__ import annotations

from typing import Any

from admission.index import Index
from admission.lineage import Metadata
from vpa.cluster.connection import Connection
from vpa.cluster.reflectors import Reflector
from vpa.cluster.resources import CRON_JOBS, REPLICATION_CONTROLLERS, Resource
from vpa.cluster.workloads import OwnerKey, Record, controller_of
from vpa.matching import TargetKey
from vpa.objects.meta import LabelSelector, Obj


class _Labels(Obj, frozen=True):
    labels: dict[str, str] | None = None


class _Template(Obj, frozen=True):
    metadata: _Labels = _Labels()


class _JobSpec(Obj, frozen=True):
    template: _Template | None = None


class _JobTemplate(Obj, frozen=True):
    spec: _JobSpec = _JobSpec()


class _CronJobSpec(Obj, frozen=True):
    job_template: _JobTemplate = _JobTemplate()


class _CronJob(Obj, frozen=True):
    metadata: Metadata = Metadata()
    spec: _CronJobSpec = _CronJobSpec()

    def selector(self) -> LabelSelector | None:
        template = self.spec.job_template.spec.template
        labels = None if template is None else template.metadata.labels
        return None if labels is None else LabelSelector(match_labels=labels)


class _LabelsSpec(Obj, frozen=True):
    selector: dict[str, str] | None = None


class _ReplicationController(Obj, frozen=True):
    metadata: Metadata = Metadata()
    spec: _LabelsSpec = _LabelsSpec()

    def selector(self) -> LabelSelector | None:
        labels = self.spec.selector
        return None if labels is None else LabelSelector(match_labels=labels)


class _SelectorSpec(Obj, frozen=True):
    selector: LabelSelector | None = None


class _Workload(Obj, frozen=True):
    """Deployment, StatefulSet, DaemonSet, ReplicaSet and Job."""

    metadata: Metadata = Metadata()
    spec: _SelectorSpec = _SelectorSpec()

    def selector(self) -> LabelSelector | None:
        return self.spec.selector


_KINDS: dict[Resource, Any] = {CRON_JOBS: _CronJob, REPLICATION_CONTROLLERS: _ReplicationController}


def reflector(
    connection: Connection, resource: Resource, index: Index, *, namespace: str = ""
) -> Reflector[Any, Record]:
    """A copy of the controllers of one kind that may matter to a pod.

    Kept are targets, and in namespaces of VPAs those that have an owner, which may be a target: of what is
    missing in a complete copy it is known that it is neither.
    """

    def project(found: Any) -> Record | None:
        metadata = found.metadata
        owner = controller_of(metadata)
        key = OwnerKey(metadata.namespace, resource.kind, metadata.name, resource.api_version)
        if not index.is_target(TargetKey(*key[:3])) and not (owner and index.covers(metadata.namespace)):
            return None
        return Record(
            key=key,
            uid=metadata.uid,
            owner=owner,
            selector=found.selector(),
            replicas=None,
            containers=(),
        )

    return Reflector(
        connection,
        resource,
        kind=_KINDS.get(resource, _Workload),
        project=project,
        namespace=namespace,
    )
