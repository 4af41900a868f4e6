"""The services as processes that come and go: of two origins, several of each, behind one address."""

from __future__ import annotations

import contextlib
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.balancer import Balancer
from tests.cluster.recommending import Shop
from tests.testbed import builds, ports
from tests.testbed.accounts import ServiceAccount
from tests.testbed.certificates import ADDRESS, Authority
from tests.testbed.processes import Process

ELECTION = (
    "--leader-elect",
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=500ms",
)
FLAGS = {
    "recommender": (*ELECTION, "--recommender-interval=1s"),
    "updater": (*ELECTION, "--updater-interval=2s"),
    "admission-controller": (
        *("--register-by-url", f"--webhook-address=https://{ADDRESS}", "--webhook-labels=tier:system"),
        "--status-lease-update-interval=1s",
    ),
}
"""What both origins are started with; waiting times are shorter than the defaults, and that is all."""
LEASES = {"recommender": "vpa-recommender-lease", "updater": "vpa-updater"}
HOOKS, HOOK = "MutatingWebhookConfiguration", "vpa-webhook-config"


class Replica:
    """One process of one of the three services, ready when it is made; it need not lead.

    An admission controller is an endpoint of *balancer*, at whose address it registers itself.
    """

    def __init__(
        self,
        component: str,
        *,
        shop: Shop,
        account: ServiceAccount,
        balancer: Balancer,
        authority: Authority,
        name: str,
        origin: str = "ours",
        kubeconfig: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.component = component
        self._shop = shop
        self._balancer = balancer
        self._hook_port = ports.free()
        self.address = f"{ADDRESS}:{ports.free()}"
        """Of metrics and health."""
        command: list[str | Path] = [
            *self._program(origin),
            f"--kubeconfig={kubeconfig or account.kubeconfig}",
            f"--address={self.address}",
            f"--vpa-object-namespace={shop.namespace}",
            *FLAGS[component],
            *flags,
        ]
        if component == "admission-controller":
            certificate = authority.issue(name)
            command += [
                f"--port={self._hook_port}",
                f"--webhook-port={balancer.port}",
                f"--tls-cert-file={certificate.chain}",
                f"--tls-private-key={certificate.key}",
                f"--client-ca-file={authority.certificate}",
            ]
        self.process: Process = shop.cluster.spawn(name, command, NAMESPACE="kube-system")
        shop.wait(f"{name} to be ready", self._is_healthy, self.process)
        if component == "admission-controller":
            balancer.add(self._hook_port)

    def _program(self, origin: str) -> list[str | Path]:
        if origin == "ours":
            return [sys.executable, "-m", self.component.removesuffix("-controller")]
        return [builds.binary(f"upstream-{self.component}")]

    def stop(self) -> int:
        """As the kubelet does, after the Service has been told; the exit code."""
        self._leave()
        return self.process.stop()

    def kill(self) -> None:
        """As a node does that loses its power; the Service is told at once."""
        self._leave()
        self.process.kill()

    def _leave(self) -> None:
        if self.component == "admission-controller":
            self._balancer.remove(self._hook_port)

    def figure(self, series: str) -> float:
        """A metric by the beginning of its line, 0 if it is not there; of several their sum."""
        lines = self._get("/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))

    def rounds(self) -> float:
        """The ticks of a recommender, the passes of an updater."""
        return self.figure(f'vpa_{self.component}_execution_latency_seconds_count{{step="total"}}')

    def wait_for_rounds(self, more: int) -> None:
        """Wait until so many have passed from now on."""
        wanted = self.rounds() + more
        self._shop.wait(
            f"{more} rounds of {self.process.name}", lambda: self.rounds() >= wanted, self.process
        )

    def _is_healthy(self) -> bool:
        with contextlib.suppress(OSError):
            return self._get("/health-check") == "OK"
        return False

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text


def clean_up(shop: Shop) -> None:
    """Take away what the services made outside of their namespace."""
    for lease in (*LEASES.values(), "vpa-admission-controller"):
        shop.api.delete("Lease", lease, "kube-system")
    shop.api.delete(HOOKS, HOOK)


def is_sized(shop: Shop, app: str, replicas: int = 3) -> bool:
    """Do so many pods of it run, all with the target?"""
    pods = shop.api.list("Pod", shop.namespace, labelSelector=f"app={app}")
    targets = shop.targets(app)
    return len(pods) == replicas and all(
        pod["status"].get("phase") == "Running" and one["resources"]["requests"] == targets.get(one["name"])
        for pod in pods
        for one in pod["spec"]["containers"]
    )
