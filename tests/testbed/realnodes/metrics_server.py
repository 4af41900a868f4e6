"""The real metrics-server, as a process in the cluster's network behind a Service without a selector."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed import kubeconfigs, ports
from tests.testbed.api import Json
from tests.testbed.processes import attempts
from tests.testbed.realnodes.network import ADDRESS

if TYPE_CHECKING:
    from tests.testbed.cluster import Cluster

NAME = "metrics-server"
NAMESPACE = "kube-system"
RESOLUTION_SECONDS = 10
_GROUP = "metrics.k8s.io"
_RBAC = "rbac.authorization.k8s.io"


def start(cluster: Cluster, program: Path) -> None:
    """Start it and register its API; `wait` says when it answers."""
    port = ports.free()
    certificate = cluster.authority.issue(NAME, names=(f"{NAME}.{NAMESPACE}.svc", ADDRESS))
    kubeconfig = kubeconfigs.write(
        cluster.folder / f"{NAME}.kubeconfig", server=cluster.inner_server, ca=cluster.ca, user=certificate
    )
    for body in _permissions():
        cluster.api.apply(body)
    for _ in attempts(30, "metrics-server's permissions to be in force"):  # it gives up without them
        if _may_read_configuration(cluster):
            break
    cluster.add(
        NAME,
        [
            program,
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--bind-address={ADDRESS}",
            f"--secure-port={port}",
            f"--tls-cert-file={certificate.chain}",
            f"--tls-private-key-file={certificate.key}",
            f"--kubelet-certificate-authority={cluster.ca}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--metric-resolution={RESOLUTION_SECONDS}s",
            f"--kubelet-request-timeout={RESOLUTION_SECONDS // 2}s",  # equal ones are refused
        ],
    ).start()
    for body in _registration(port, cluster.authority.bundle):
        cluster.api.apply(body)


def wait(cluster: Cluster, seconds: float = 60) -> None:
    """Return when the API server finds it available."""
    for _ in attempts(seconds, "metrics-server to be available", cluster.process(NAME), pause=0.2):
        status = cluster.api.get("APIService", f"v1beta1.{_GROUP}").get("status", {})
        if any(
            one["type"] == "Available" and one["status"] == "True" for one in status.get("conditions", ())
        ):
            return


def _may_read_configuration(cluster: Cluster) -> bool:
    wanted = {
        "namespace": NAMESPACE,
        "verb": "get",
        "resource": "configmaps",
        "name": "extension-apiserver-authentication",
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": NAME, "resourceAttributes": wanted},
    }
    return bool(cluster.api.create(review)["status"]["allowed"])


def _permissions() -> list[Json]:
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {
            "apiGroups": [""],
            "resources": ["pods", "nodes", "namespaces", "configmaps"],
            "verbs": ["get", "list", "watch"],
        },
    ]
    role = {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole"}
    delegation = "extension-apiserver-authentication-reader"
    return [
        {**role, "metadata": {"name": f"system:{NAME}"}, "rules": rules},
        _binding("ClusterRoleBinding", "ClusterRole", f"system:{NAME}"),
        _binding("ClusterRoleBinding", "ClusterRole", "system:auth-delegator"),
        _binding("RoleBinding", "Role", delegation, namespace=NAMESPACE),
    ]


def _binding(kind: str, role_kind: str, role: str, **where: str) -> Json:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": kind,
        "metadata": {"name": f"{NAME}:{role}", **where},
        "roleRef": {"apiGroup": _RBAC, "kind": role_kind, "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": NAME}],
    }


def _registration(port: int, ca_bundle: str) -> list[Json]:
    meta = {"name": NAME, "namespace": NAMESPACE}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**meta, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}}],
    }
    registration = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1beta1.{_GROUP}"},
        "spec": {
            "group": _GROUP,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": ca_bundle,
            "service": {**meta, "port": 443},
        },
    }
    return [service, endpoints, registration]
