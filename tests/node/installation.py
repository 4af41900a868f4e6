"""This project on a cluster, as its users install it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.testbed import builds
from tests.testbed.api import Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from tests.testbed.runs import REPOSITORY

CHART = REPOSITORY / "deploy" / "chart" / "vertical-pod-autoscaler"
SYSTEM = "kube-system"
COMPONENTS = ("recommender", "updater", "admission-controller")
READY_SECONDS = 120.0

QUICK: dict[str, list[str]] = {
    "recommender": ["--recommender-interval=10s"],
    "updater": ["--updater-interval=5s", "--feature-gates=InPlace=true"],
    "admission-controller": ["--feature-gates=InPlace=true"],
}
"""Arguments that save waiting, and mode InPlace: all else is as shipped."""


class Chart:
    """The Helm chart as a release; it goes with the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        name: str = "vpa",
        arguments: Mapping[str, list[str]] = QUICK,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self._cluster = cluster
        self._name = name
        keys = {"admission-controller": "admissionController"}
        self._values: dict[str, Any] = {
            keys.get(component, component): {"extraArgs": arguments.get(component, [])}
            for component in COMPONENTS
        }
        for key, value in (values or {}).items():
            self._values[key] = {**self._values.get(key, {}), **value}

    def install(self) -> None:
        """``helm upgrade --install``, and wait until everything is ready."""
        file = self._cluster.folder / f"{self._name}-values.yaml"
        file.write_text(json.dumps(self._values))  # JSON is YAML
        # The custom resources are there already; the chart takes them over.
        self._helm("upgrade", "--install", self._name, CHART, f"--values={file}", "--take-ownership")
        self.wait()

    def wait(self, seconds: float = READY_SECONDS) -> None:
        """Until all three Deployments are complete."""
        for component in COMPONENTS:
            wait_for_deployment(self._cluster, self.deployment(component), SYSTEM, seconds=seconds)

    def deployment(self, component: str) -> str:
        """The name of a component's Deployment."""
        return f"{self._name}-vertical-pod-autoscaler-{component}"

    def logs(self, component: str) -> str:
        """What all pods of a component have printed."""
        return self._cluster.kubectl(
            "logs", "-n", SYSTEM, f"deployment/{self.deployment(component)}", "--all-pods", "--tail=-1"
        )

    def pods(self, component: str) -> list[Json]:
        """Its pods."""
        label = f"app.kubernetes.io/component={component}"
        return [
            pod
            for pod in self._cluster.api.list("Pod", SYSTEM, labelSelector=label)
            if "deletionTimestamp" not in pod["metadata"]
        ]

    def _helm(self, *arguments: str | Path) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HELM", "KUBE"))}
        env |= {"KUBECONFIG": str(self._cluster.kubeconfig)}
        env |= {
            f"HELM_{kind}_HOME": str(self._cluster.folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")
        }
        command = [builds.binary("helm"), *arguments, f"--namespace={SYSTEM}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=env)
        if done.returncode != 0:
            raise RuntimeError(f"helm {arguments[0]}: {done.stderr.strip()}")


def wait_for_deployment(
    cluster: Cluster, name: str, namespace: str, *, seconds: float = READY_SECONDS
) -> None:
    """Until a Deployment has all its pods, new and ready."""
    for _ in attempts(seconds, f"Deployment {namespace}/{name} to be complete", pause=0.2):
        found = cluster.api.get("Deployment", name, namespace)
        status, wanted = found.get("status", {}), found["spec"]["replicas"]
        if (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and status.get("updatedReplicas")
            == status.get("readyReplicas")
            == status.get("replicas")
            == wanted
        ):
            return
