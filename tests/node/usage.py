"""What containers use, as metrics-server and the kubelets' cAdvisor tell it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.node.workloads import Namespace
from tests.testbed.api import ApiNotFoundError, Json
from vpa.quantities import Quantity


@dataclass(frozen=True)
class Usage:
    """Cores and bytes."""

    cpu: float
    memory: float


NONE = Usage(0.0, 0.0)


def from_metrics_server(namespace: Namespace, pod: Json) -> dict[str, Usage]:
    """Container → use; no use before it is known."""
    path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace.name}/pods/{pod['metadata']['name']}"
    try:
        found = namespace.api.request("GET", path)["containers"]
    except ApiNotFoundError:
        return {each["name"]: NONE for each in pod["spec"]["containers"]}
    return {each["name"]: _usage(each["usage"]) for each in found}


def memory_from_cadvisor(namespace: Namespace, pod: Json, container: str = "app") -> float:
    """The working set of a container in bytes, from its kubelet's /metrics/cadvisor."""
    return _sample(namespace, pod, container, "container_memory_working_set_bytes")[0]


def cpu_from_cadvisor(namespace: Namespace, pod: Json, container: str = "app") -> tuple[float, float]:
    """The CPU seconds of a container so far, and the time at which they were read."""
    return _sample(namespace, pod, container, "container_cpu_usage_seconds_total")


def _sample(namespace: Namespace, pod: Json, container: str, metric: str) -> tuple[float, float]:
    path = f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/metrics/cadvisor"
    text = namespace.api.raw("GET", path, headers={}).decode()
    for line in text.splitlines():
        if (
            line.startswith(f"{metric}{{")
            and f'container="{container}"' in line
            and f'namespace="{namespace.name}"' in line
            and f'pod="{pod["metadata"]["name"]}"' in line
        ):
            value, milliseconds = re.split(r"\s+", line.rpartition("} ")[2])
            return float(value), int(milliseconds) / 1000
    return 0.0, 0.0


def _usage(quantities: dict[str, str]) -> Usage:
    cpu, memory = (Quantity.parse(quantities[name]).nanos / 10**9 for name in ("cpu", "memory"))
    return Usage(cpu, memory)
