"""A cluster of real components, with everything a test needs to do to it."""

from __future__ import annotations

import contextlib
import functools
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.testbed import accounts, builds, components, control_plane, faults, kubeconfigs, ports
from tests.testbed.api import Api, ApiError
from tests.testbed.certificates import ADDRESS, Certificate
from tests.testbed.metrics import MetricsApi
from tests.testbed.nodes import FakeNodes, Nodes
from tests.testbed.processes import Process, ProcessError, attempts
from tests.testbed.realnodes import network, requirements
from tests.testbed.realnodes.network import Network
from tests.testbed.runs import REPOSITORY, Run

CRDS = REPOSITORY / "deploy" / "crds"
READY_SECONDS = 120.0


class Cluster:
    """etcd, kube-apiserver, kube-controller-manager, kube-scheduler and nodes, in a folder of their own.

    As a context manager it is started at the beginning of the block, and gone with its folder at the end, or
    when this process ends in whatever way. One *detached* into a given folder stays until `watchdog.end`.
    Methods block; in asyncio tests wrap the slow ones in `asyncio.to_thread`.
    """

    folder: Path
    """Everything is in here: keys, kubeconfigs, etcd's data, `logs/`."""
    kubeconfig: Path
    """The admin's."""
    api: Api
    """Requests as admin."""
    network: Network
    """With real nodes only: all of the cluster is in a network namespace of its own."""

    def __init__(
        self,
        *,
        nodes: Sequence[Nodes] = (FakeNodes(),),
        apiservers: int = 1,
        apiserver_args: Sequence[str] = (),
        feature_gates: Mapping[str, bool] | None = None,
        detached: Path | None = None,
    ) -> None:
        """*apiservers* are endpoints of the one cluster; *feature_gates* go to the whole control plane."""
        self._nodes = list(nodes)
        self._apiserver_args = list(apiserver_args)
        self._gates = dict(feature_gates or {})
        self._detached = detached
        self._ports = [ports.free() for _ in range(apiservers)]
        self._separate = any(kind.real for kind in self._nodes)
        self._run: Run

    # ---- life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start everything and wait until pods can run. Whatever fails, nothing is left running.

        Raises `ProcessError` with a sentence where there are real nodes and this machine can't have any.
        """
        reason = requirements.obstacle() if self._separate else None
        if reason is not None:
            raise ProcessError(reason)
        programs = builds.ensure(*(components.COMPONENTS[name] for name in components.CLUSTER))
        self._run = Run(self._detached)
        self.folder = self._run.folder
        try:
            if self._separate:
                self.network = Network(self._run)
            self._issue_keys()
            self._start_storage(programs)
            self._start_control_plane(programs)
            for kind in self._nodes:
                kind.start(self)
            if any(CRDS.glob("*.yaml")):
                self.kubectl("apply", "--server-side", "-f", str(CRDS))
                self.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
            for kind in self._nodes:
                kind.wait(self)
            self.wait_for_service_account("default")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every process and remove the folder; a second time does nothing."""
        self._run.close()

    def _issue_keys(self) -> None:
        names = (network.ADDRESS,) if self._separate else ()
        self._keys = control_plane.Keys.issue(self.folder / "pki", *names)
        self.authority = self._keys.authority
        self.ca = self.authority.certificate
        self.kubeconfig = self._write_kubeconfig("admin", self._keys.admin)
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self._keys.admin.chain, self._keys.admin.key)
        self.api = Api(self.server, context)
        self._run.on_close(contextlib.closing(self.api))

    def _start_storage(self, programs: Mapping[str, Path]) -> None:
        port = ports.free()
        command = control_plane.etcd(
            programs["etcd"], data=self.folder / "etcd", port=port, peer_port=ports.free()
        )
        etcd = self.add("etcd", command).start()
        for _ in attempts(30, "etcd to listen", etcd, pause=0.02):
            if self._listens(port):
                break
        for index, own_port in enumerate(self._ports):
            command = control_plane.apiserver(
                programs["kube-apiserver"],
                self._keys,
                port=own_port,
                etcd_port=port,
                nodes_at=network.ADDRESS if self._separate else None,
                extra=self._apiserver_args,
                gates=self._gates,
            )
            self.add(self._apiserver(index), command).start()
            self.publish(own_port)
        self.wait_until_ready()

    def _start_control_plane(self, programs: Mapping[str, Path]) -> None:
        command = control_plane.controller_manager(
            programs["kube-controller-manager"],
            self._keys,
            kubeconfig=self._write_kubeconfig("controller-manager", self._keys.controller_manager),
            gates=self._gates,
        )
        self.add("kube-controller-manager", command).start()
        command = control_plane.scheduler(
            programs["kube-scheduler"],
            kubeconfig=self._write_kubeconfig("scheduler", self._keys.scheduler),
            gates=self._gates,
        )
        self.add("kube-scheduler", command).start()

    def _write_kubeconfig(self, name: str, user: Certificate) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        return kubeconfigs.write(path, server=self.server, ca=self.ca, user=user)

    # ---- using it

    @property
    def server(self) -> str:
        """The API server's url."""
        return self.servers[0]

    @property
    def servers(self) -> list[str]:
        """The urls of all API servers."""
        return [f"https://{ADDRESS}:{port}" for port in self._ports]

    @property
    def inner_server(self) -> str:
        """The API server's url for nodes and pods."""
        return f"https://{network.ADDRESS}:{self._ports[0]}" if self._separate else self.server

    def publish(self, port: int) -> None:
        """Let tests reach what listens on *port* of the cluster's 127.0.0.1 at that port of their own."""
        if self._separate:
            self.network.publish(port)

    def _listens(self, port: int) -> bool:
        return self.network.listens(port) if self._separate else ports.listening(port)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """What kubectl prints, as admin. Raises `subprocess.CalledProcessError`, with its stderr in it."""
        done = subprocess.run(
            [builds.binary("kubectl"), *arguments],
            env=self._run.environment({"KUBECONFIG": str(self.kubeconfig)}),
            cwd=REPOSITORY,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
            error.add_note(done.stderr)
            raise error
        return done.stdout

    def service_account(self, namespace: str, name: str) -> accounts.ServiceAccount:
        """A service account, created when missing, with a token and kubeconfig to run a service with."""
        return accounts.ServiceAccount(
            namespace, name, api=self.api, folder=self.folder / "accounts", server=self.server, ca=self.ca
        )

    def fault_proxy(self, server: str | None = None) -> faults.FaultProxy:
        """A proxy to the API server (or to one of `servers`), for a ``with`` block."""
        certificate = self.authority.issue("fault-proxy")
        return faults.FaultProxy(server or self.server, ca=str(self.ca), certificate=certificate)

    @functools.cached_property
    def metrics(self) -> MetricsApi:
        """The Metrics API of this cluster, started when first asked for."""
        running = MetricsApi(self)
        self._run.on_close(contextlib.closing(running))
        return running

    def create_namespace(self, name: str) -> None:
        """Create a namespace in which pods can be created at once."""
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.wait_for_service_account(name)

    def wait_for_service_account(self, namespace: str) -> None:
        """Wait for the service account that the API server puts into every pod of *namespace*."""
        for _ in attempts(30, f"the default service account of {namespace}", pause=0.02):
            with contextlib.suppress(ApiError):
                self.api.get("ServiceAccount", "default", namespace)
                return

    # ---- its processes

    def add(self, name: str, command: Sequence[str | Path], **env: str) -> Process:
        """A process that is part of this cluster and ends with it, not started yet."""
        inside = self.network.prefix if self._separate else []
        return self._run.add(name, [*inside, *command], **env)

    def spawn(self, name: str, command: Sequence[str | Path], **env: str) -> Process:
        """Start a service under test, such as ``[sys.executable, "-m", "recommender", …]``."""
        own = {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
        return self.add(name, command, **own | env).start()

    def process(self, name: str) -> Process:
        """A component or service by name.

        ``etcd``, ``kube-apiserver`` (``kube-apiserver-2`` …), ``kube-controller-manager``,
        ``kube-scheduler``, ``kwok``, or what was given to `spawn`.
        """
        return self._run.process(name)

    def processes(self) -> list[Process]:
        """All components and services."""
        return self._run.processes()

    def logs(self, name: str) -> str:
        """All that a process has printed."""
        return self.process(name).logs()

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until every API server that runs says that it is ready."""
        for index, server in enumerate(self.servers):
            process = self.process(self._apiserver(index))
            if not process.running:
                continue
            with contextlib.closing(Api(server, self.api.context)) as api:
                for _ in attempts(seconds, f"{process.name} to be ready", process):
                    with contextlib.suppress(ApiError, OSError):
                        api.raw("GET", "/readyz", headers={})
                        break

    @staticmethod
    def _apiserver(index: int) -> str:
        return "kube-apiserver" if index == 0 else f"kube-apiserver-{index + 1}"
