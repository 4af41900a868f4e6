"""Upstream's own plain manifests and roles, all as its script applies it, with whose images one likes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from tests.cluster import sources
from tests.node.installation import COMPONENTS, SYSTEM, wait_for_deployment
from tests.testbed import builds, components, folders, locks
from tests.testbed.api import Json
from tests.testbed.certificates import Authority
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from tests.testbed.realnodes import images, project_image

MANIFESTS = (
    "vpa-rbac",
    *(f"{component}-deployment" for component in COMPONENTS),
    "admission-controller-service",
)
CONFIGURATION = "vpa-webhook-config"
SECRET = "vpa-tls-certs"


def upstream_image(component: str) -> str:
    """The name that upstream's manifests have."""
    return f"registry.k8s.io/autoscaling/vpa-{component}:1.8.1"


def upstream_archive() -> Path:
    """The archive with upstream's three programs as images, made once."""
    programs = builds.ensure(components.COMPONENTS["upstream-vpa"])
    key = programs["upstream-updater"].parent.name
    target = folders.cache() / "images" / f"{key}.tar"
    with locks.held(target.with_suffix(".lock")):
        if not target.exists():
            every = [images.single(upstream_image(each), programs[f"upstream-{each}"]) for each in COMPONENTS]
            images.archive(target, every)
    return target


class Plain:
    """The manifests in a cluster, with the images that *image* names for each component."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        image: Callable[[str], str] = project_image.name,
        arguments: Mapping[str, list[str]] | None = None,
    ) -> None:
        """*arguments* are added to those that the manifests have."""
        self._cluster = cluster
        self._image = image
        self._arguments = dict(arguments or {})

    def install(self) -> None:
        """Apply them, and wait until all three are ready and the webhook is registered."""
        self._cluster.api.apply(secret(self._cluster, "first"))
        self._cluster.kubectl("apply", "-f", "-", stdin=self._text())
        for component in COMPONENTS:
            wait_for_deployment(self._cluster, f"vpa-{component}", SYSTEM)
        for _ in attempts(60, "the webhook to be registered", pause=0.2):
            if self._cluster.api.list("MutatingWebhookConfiguration"):
                return

    def remove(self) -> None:
        """Delete everything of it, what it has made itself included, and wait until it is gone."""
        api = self._cluster.api
        self._cluster.kubectl("delete", "-f", "-", "--wait=false", stdin=self._text())
        for _ in attempts(60, "the pods of the manifests to be gone", pause=0.2):
            names = [pod["metadata"]["name"] for pod in api.list("Pod", SYSTEM)]
            if not any(name.startswith("vpa-") for name in names):
                break
        api.delete("MutatingWebhookConfiguration", CONFIGURATION)
        for lease in api.list("Lease", SYSTEM):
            if lease["metadata"]["name"].startswith("vpa-"):
                api.delete("Lease", lease["metadata"]["name"], SYSTEM)

    def logs(self, component: str) -> str:
        """What the pod of a component has printed."""
        return self._cluster.kubectl("logs", "-n", SYSTEM, f"deployment/vpa-{component}", "--tail=-1")

    def _text(self) -> str:
        return "---\n".join(json.dumps(each) + "\n" for each in self._objects())  # JSON is YAML

    def _objects(self) -> list[Json]:
        objects: list[Json] = []
        for name in MANIFESTS:
            text = sources.upstream("deploy", f"{name}.yaml").read_text()
            objects += [each for each in yaml.safe_load_all(text) if each]
        for each in objects:
            if each["kind"] == "Deployment":
                (container,) = each["spec"]["template"]["spec"]["containers"]
                component = each["metadata"]["name"].removeprefix("vpa-")
                assert container["image"] == upstream_image(component)
                container["image"] = self._image(component)
                if component in self._arguments:
                    container["args"] = [*container.get("args", ()), *self._arguments[component]]
        return objects


def secret(cluster: Cluster, which: str) -> Json:
    """The Secret as upstream's script makes it, of an authority of its own."""
    authority = Authority(cluster.folder / f"webhook-{which}")
    server = authority.issue("vpa-webhook", names=("vpa-webhook.kube-system.svc",))
    files = {"caCert.pem": authority.certificate, "serverCert.pem": server.chain, "serverKey.pem": server.key}
    data = {name: base64.b64encode(path.read_bytes()).decode() for name, path in files.items()}
    meta = {"name": SECRET, "namespace": SYSTEM}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}
