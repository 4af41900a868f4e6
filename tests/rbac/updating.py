"""The updater's trial."""

from __future__ import annotations

from functools import partial

from tests.rbac import workloads
from tests.rbac.trials import Check, Trial, cpu
from tests.testbed.api import Json

NEW = {"cpu": "200m", "memory": "100Mi"}
FAR = "2100-01-01T00:00:00.000000Z"
RULES = (
    "foresee_node_fit",
    "foresee_quota",
    "foresee_disruption_budgets",
    "ignore_hpa",
    "keep_memory_limit_above_use",
)


class Updating(Trial):
    """Pods of all kinds that are to be evicted, some that are to be resized, one that is to be left alone."""

    service = "updater"
    program = "updater"
    seconds = 60.0

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._before: dict[str, set[str]] = {}

    def prepare(self) -> None:
        api, namespace = self.api, self.namespace
        self.cluster.metrics.use(cpu=0.05, memory=50 * 2**20, namespace=namespace)
        for kind in workloads.KINDS:
            workloads.create(api, namespace, kind, replicas=2)
        workloads.create(api, namespace, "Deployment", "resized", replicas=2)
        workloads.create(
            api, namespace, "Deployment", "small", replicas=2, requests={"cpu": "60m", "memory": "100Mi"}
        )
        limits = {"cpu": "1", "memory": "400Mi"}
        workloads.create(api, namespace, "Deployment", "lowered", replicas=2, limits=limits)
        workloads.create(api, namespace, "Deployment", "single", replicas=1)
        self.wait_for_pods([*map(str.lower, workloads.KINDS), "resized", "small", "lowered", "single"])
        minimum = {"limits": [{"type": "Container", "min": {"cpu": "50m"}}]}
        api.create(
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "limits"}, "spec": minimum},
            namespace,
        )
        for kind in workloads.KINDS:
            self._before[kind] = {pod["metadata"]["uid"] for pod in self.pods(kind.lower())}
            workloads.autoscaler(api, namespace, kind, mode="Recreate", target=NEW)
        in_place = partial(workloads.autoscaler, api, namespace, "Deployment", mode="InPlaceOrRecreate")
        in_place("resized", target=NEW)
        in_place("small", target={"cpu": "10m", "memory": "100Mi"})
        in_place("lowered", target={"cpu": "100m", "memory": "50Mi"})
        workloads.autoscaler(api, namespace, "Deployment", "single", mode="Recreate", target=NEW)
        api.create(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "admission"},
                "spec": {"holderIdentity": "proof", "renewTime": FAR, "leaseDurationSeconds": 60},
            },
            namespace,
        )

    def arguments(self) -> list[str]:
        return [
            "--updater-interval=1s",
            "--break-eviction-loops=false",  # no webhook gives the new pods their size here
            "--admission-controller-status-lease-name=admission",
            f"--admission-controller-status-lease-namespace={self.namespace}",
            "--leader-elect",
            f"--leader-elect-resource-namespace={self.namespace}",
            "--authenticate-metrics",
        ]

    def happen(self) -> None:
        """Everything is there from the start."""

    def checks(self) -> dict[str, Check]:
        evicted: dict[str, Check] = {
            f"a pod of a {kind} is evicted": partial(self._lost_a_pod, kind) for kind in workloads.KINDS
        }
        available: dict[str, Check] = {
            f"the rule {rule} is available": partial(self._is_available, rule) for rule in RULES
        }
        served: dict[str, Check] = {"metrics are served to those who may read them": self.figures}
        return (
            served
            | evicted
            | available
            | {
                "a pod is resized in place": lambda: any(cpu(pod) == "200m" for pod in self.pods("resized")),
                "a resized pod is marked": lambda: any(
                    "vpaInPlaceUpdated" in pod["metadata"].get("annotations", {})
                    for pod in self.pods("resized")
                ),
                "a target below a LimitRange's minimum is raised to it": lambda: any(
                    cpu(pod) == "50m" for pod in self.pods("small")
                ),
                "an event tells of an eviction": lambda: self.events("EvictedByVPA"),
                "a condition says why a pod is left alone": lambda: self.condition(
                    "single", "UpdatesBlocked"
                ),
                "the lease of the leader is renewed": self._renewed,
            }
        )

    def clean(self) -> None:
        """Everything is in the namespace."""

    def _renewed(self) -> bool:
        lease: Json = self.api.get("Lease", "vpa-updater", self.namespace)["spec"]
        return bool(lease["renewTime"] != lease["acquireTime"])

    def _lost_a_pod(self, kind: str) -> bool:
        now = {pod["metadata"]["uid"] for pod in self.pods(kind.lower())}
        return bool(self._before[kind] - now)

    def _is_available(self, rule: str) -> bool:
        return self.figures("vpa_updater_rule_available")[f'vpa_updater_rule_available{{rule="{rule}"}}'] == 1
