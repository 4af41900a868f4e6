"""The admission controller's trial."""

from __future__ import annotations

import time
from functools import partial

from tests.rbac import workloads
from tests.rbac.trials import POOL, Check, Trial, cpu
from tests.testbed import ports
from tests.testbed.api import Json
from tests.testbed.certificates import ADDRESS
from vpa.quantities import Quantity

TARGET = {"cpu": "250m", "memory": "100Mi"}
HUGE = {"cpu": "9999", "memory": "100Mi"}
CALLS = 'vpa_admission_controller_admission_pods_total{applied="false"}'


class Admitting(Trial):
    """Pods of all kinds that come while the webhook runs, with its certificate and registration its own."""

    service = "admission-controller"
    program = "admission"
    seconds = 60.0

    @property
    def configuration(self) -> str:
        return f"{self.namespace}-webhook"

    def prepare(self) -> None:
        self.hook = ports.free()
        for kind in workloads.KINDS:
            workloads.autoscaler(self.api, self.namespace, kind, mode="Initial", target=TARGET)
        workloads.create(self.api, self.namespace, "DaemonSet", "agent")
        initial = partial(workloads.autoscaler, self.api, self.namespace, mode="Initial")
        initial("Deployment", "huge", target=HUGE)
        initial("Deployment", "tiny", target={"cpu": "10m", "memory": "100Mi"})
        self._split()
        minimum = {"limits": [{"type": "Container", "min": {"cpu": "50m"}}]}
        self.api.create(
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "limits"}, "spec": minimum},
            self.namespace,
        )
        # What a former release has left: it is to be brought up to date.
        self.api.create(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": self.configuration},
                "webhooks": [],
            }
        )

    def _split(self) -> None:
        """A DaemonSet with a recommendation for each node."""
        made = workloads.autoscaler(
            self.api,
            self.namespace,
            "DaemonSet",
            "split",
            mode="Initial",
            scope=POOL,
        )
        groups = [
            {
                "scopeValue": node["metadata"]["name"],
                "containerRecommendations": [
                    {"containerName": "main", "target": {"cpu": f"{300 + number}m"}}
                ],
            }
            for number, node in enumerate(
                sorted(self.api.list("Node"), key=lambda one: str(one["metadata"]["name"]))
            )
        ]
        body = {"status": {"groups": groups}}
        name = made["metadata"]["name"]
        self.api.patch("VerticalPodAutoscaler", name, self.namespace, body=body, subresource="status")

    def arguments(self) -> list[str]:
        return [
            f"--port={self.hook}",
            "--generate-certificates",
            "--register-by-url",
            f"--webhook-address=https://{ADDRESS}",
            f"--webhook-port={self.hook}",
            f"--webhook-configuration={self.configuration}",
            "--status-lease-update-interval=1s",
            "--cap-to-node",
            "--authenticate-metrics",
        ]

    def is_ready(self) -> bool:
        hooks = self.api.get("MutatingWebhookConfiguration", self.configuration).get("webhooks", [])
        return bool(hooks)

    def happen(self) -> None:
        self._wait_until_called()
        for kind in workloads.KINDS:
            workloads.create(self.api, self.namespace, kind)
        for name in ("huge", "tiny"):
            workloads.create(self.api, self.namespace, "Deployment", name)
        workloads.create(self.api, self.namespace, "DaemonSet", "split")

    def _wait_until_called(self) -> None:
        """The API server takes a moment to heed a registration; nothing is lost if it never does."""
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "probe", "uid": "none"}}
        pod: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "ownerReferences": [workloads.reference(owner)]},
            "spec": {"containers": [{"name": "main", "image": "main:1"}]},
        }
        path = self.api.path("Pod", None, self.namespace) + "?dryRun=All"
        before = self.figures().get(CALLS, 0)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            self.api.request("POST", path, pod)
            if self.figures().get(CALLS, 0) > before:
                return
            time.sleep(0.2)

    def checks(self) -> dict[str, Check]:
        sized: dict[str, Check] = {
            f"a new pod of a {kind} gets its target": partial(self._has_cpu, kind.lower(), "250m")
            for kind in workloads.KINDS
        }
        return sized | {
            "a target below a LimitRange's minimum is raised to it": partial(self._has_cpu, "tiny", "50m"),
            "no pod is made larger than a node": partial(self._is_capped, 16_000),
            "room is left for the pods of DaemonSets": partial(self._is_capped, 15_999),
            "pods of a split DaemonSet get the target of their node": lambda: (
                {cpu(pod) for pod in self.pods("split")} == {"300m", "301m", "302m"}
            ),
            "the registration is brought up to date": self.is_ready,
            "the lease that the updater looks at is renewed": lambda: (
                "renewTime" in self.api.get("Lease", "vpa-admission-controller", self.namespace)["spec"]
            ),
            "the certificate is kept in a Secret": lambda: self._secret()["data"],
            "metrics are served to those who may read them": self.figures,
        }

    def clean(self) -> None:
        self.api.delete("MutatingWebhookConfiguration", self.configuration)

    def _has_cpu(self, app: str, wanted: str) -> bool:
        return cpu(self.pods(app)[0]) == wanted

    def _is_capped(self, most: int) -> bool:
        return 1000 < Quantity.parse(cpu(self.pods("huge")[0])).milli() <= most

    def _secret(self) -> Json:
        return self.api.get("Secret", "vpa-tls-certs", self.namespace)
