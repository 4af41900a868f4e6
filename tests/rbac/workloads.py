"""Controllers of every kind that a VPA can target, with pods that stay."""

from __future__ import annotations

from tests.cluster.definitions import scalable
from tests.testbed.api import Api, Json

VERSIONS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "ReplicationController": "v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "Widget": "rbac.example.org/v1",
}
KINDS = tuple(VERSIONS)

WIDGETS = scalable("Widget", "rbac.example.org")
"""A kind of somebody else's that can be scaled."""

OLD = {"cpu": "100m", "memory": "100Mi"}


def create(
    api: Api,
    namespace: str,
    kind: str,
    name: str = "",
    *,
    replicas: int = 1,
    requests: Json | None = None,
    limits: Json | None = None,
) -> None:
    """A controller and its pods, which have the label ``app=NAME``; *name* is the kind's by default."""
    name = name or kind.lower()
    labels = {"app": name}
    resources: Json = {"requests": dict(OLD if requests is None else requests)}
    if limits:
        resources["limits"] = dict(limits)
    pods: Json = {
        "metadata": {"labels": labels, "annotations": {}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "main:1", "resources": resources}],
        },
    }
    body: Json = {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": {"name": name}}
    if kind == "Widget":
        status = {"replicas": replicas, "selector": f"app={name}"}
        owner = api.create({**body, "spec": {"replicas": replicas}, "status": status}, namespace)
        for number in range(replicas):
            pod = {**pods, "apiVersion": "v1", "kind": "Pod"}
            pod["metadata"] = {
                "name": f"{name}-{number}",
                "labels": labels,
                "ownerReferences": [reference(owner)],
            }
            api.create(pod, namespace)
        return
    if kind in ("Job", "CronJob"):
        pods["spec"]["restartPolicy"] = "OnFailure"
        pods["metadata"]["annotations"]["kubelet.testbed/complete-after"] = "1h"
        job: Json = {"parallelism": replicas, "completions": replicas, "template": pods}
        if kind == "Job":
            api.create({**body, "spec": job}, namespace)
            return
        schedule = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}}
        owner = api.create({**body, "spec": schedule}, namespace)
        made = {"name": f"{name}-by-hand", "ownerReferences": [reference(owner)]}
        api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": made, "spec": job}, namespace)
        return
    spec: Json = {"selector": {"matchLabels": labels}, "template": pods}
    if kind == "ReplicationController":
        spec["selector"] = labels
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    if kind != "DaemonSet":
        spec["replicas"] = replicas
    api.create({**body, "spec": spec}, namespace)


def reference(owner: Json) -> Json:
    """An owner reference to a controller."""
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def autoscaler(
    api: Api,
    namespace: str,
    kind: str,
    name: str = "",
    *,
    mode: str = "Off",
    target: Json | None = None,
    **spec: object,
) -> Json:
    """A VPA of a controller; with *target*, it has a recommendation of exactly that."""
    name = name or kind.lower()
    body: Json = {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "targetRef": {"apiVersion": VERSIONS[kind], "kind": kind, "name": name},
            "updatePolicy": {"updateMode": mode},
            **spec,
        },
    }
    made = api.create(body, namespace)
    if target is None:
        return made
    entry = {"containerName": "main", "target": target, "lowerBound": target, "upperBound": target}
    status = {"recommendation": {"containerRecommendations": [entry]}}
    return api.patch("VerticalPodAutoscaler", name, namespace, body={"status": status}, subresource="status")
