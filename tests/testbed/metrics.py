"""Usage for tests to set: starts the Metrics API process, registers it with the aggregator, and steers it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.testbed import ports
from tests.testbed.api import Api, Json
from tests.testbed.certificates import ADDRESS
from tests.testbed.processes import Process, attempts

if TYPE_CHECKING:
    from tests.testbed.cluster import Cluster

NAMESPACE = "kube-system"
NAME = "metrics-api"


class MetricsApi:
    """The Metrics API of one cluster. Rules stay until `reset`; of several that fit, the last one counts."""

    def __init__(self, cluster: Cluster) -> None:
        port = ports.free()
        certificate = cluster.authority.issue(NAME, names=(f"{NAME}.{NAMESPACE}.svc",))
        self.process: Process = cluster.spawn(
            NAME,
            [
                *(sys.executable, "-m", "tests.testbed.metrics_api"),
                f"--kubeconfig={cluster.kubeconfig}",
                f"--port={port}",
                f"--certificate={certificate.chain}",
                f"--key={certificate.key}",
            ],
        )
        self._api = Api(f"https://{ADDRESS}:{port}", cluster.api.context)
        for body in _registration(port, cluster.authority.bundle):
            cluster.api.apply(body)
        for _ in attempts(60, "the Metrics API to be available", self.process):
            status = cluster.api.get("APIService", "v1beta1.metrics.k8s.io").get("status", {})
            conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
            if conditions.get("Available") == "True":
                break

    def close(self) -> None:
        """Close the control connection."""
        self._api.close()

    def use(self, *, cpu: float, memory: float, **which: str) -> None:
        """Containers use *cpu* cores and *memory* bytes from now on.

        *which*: globs ``namespace``, ``workload``, ``pod``, ``container``; one left out means any.
        """
        self.replay([(0.0, cpu, memory)], **which)

    def replay(self, points: Sequence[tuple[float, float, float]], **which: str) -> None:
        """Containers follow a trace of (time, cores, bytes), repeated when it ends; *which* as for `use`.

        Times are seconds in order; of the time that the clock shows only the remainder by the trace's length
        counts.
        """
        self.rules([which | {"points": points}])

    def rules(self, rules: Sequence[Json]) -> None:
        """Many rules at once, as `usage.Rule` has them."""
        self._post("rules", rules)

    def clock(
        self, start: float | None = None, *, speed: float = 1.0, resolution: float = 1.0, window: float = 30.0
    ) -> None:
        """Let time stamps begin at *start* (seconds since the epoch; None: now), *speed* times as fast.

        They move in steps of *resolution* seconds and never go beyond the real time; 0 makes them stand
        still.
        """
        self._post("clock", {"start": start, "speed": speed, "resolution": resolution, "window": window})

    def fail(self, status: int, *, count: int | None = None) -> None:
        """Answer with *status* instead, *count* times or until `heal`; replaces other faults."""
        self._post("faults", [{"kind": "status", "status": status, "remaining": count}])

    def delay(self, seconds: float, *, count: int | None = None) -> None:
        """Answer late; replaces other faults."""
        self._post("faults", [{"kind": "delay", "seconds": seconds, "remaining": count}])

    def cut(self, *, count: int | None = None) -> None:
        """Break off in the middle of the answer; replaces other faults."""
        self._post("faults", [{"kind": "cut", "remaining": count}])

    def heal(self) -> None:
        """No faults any more."""
        self._post("faults", [])

    def reset(self) -> None:
        """No rules, no faults, real time, nothing counted."""
        self._post("reset", {})

    def requests(self) -> list[str]:
        """The paths of the requests for usage since the last `reset`."""
        answer: Any = self._api.request("GET", "/control/requests")
        return list(answer)

    def _post(self, what: str, body: Any) -> None:
        self._api.request("POST", f"/control/{what}", body)


def _registration(port: int, ca_bundle: str) -> list[Json]:
    """A Service that means this machine, and the APIService that sends the group's requests to it."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    group, version = "metrics.k8s.io", "v1beta1"
    registration = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{version}.{group}"},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": ca_bundle,
            "service": {"name": NAME, "namespace": NAMESPACE, "port": port},
        },
    }
    return [service, registration]
