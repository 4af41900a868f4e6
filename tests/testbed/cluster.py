"""A cluster of real components, with everything a test needs to do to it."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.testbed import (
    accounts,
    builds,
    components,
    control_plane,
    faults,
    folders,
    kubeconfigs,
    locks,
    ports,
    watchdog,
)
from tests.testbed.api import Api, ApiError
from tests.testbed.certificates import ADDRESS
from tests.testbed.nodes import FakeNodes, Nodes
from tests.testbed.processes import Process, attempts

CRDS = folders.HERE.parent.parent / "deploy" / "crds"
READY_SECONDS = 120.0


class Cluster:
    """etcd, kube-apiserver, kube-controller-manager, kube-scheduler and nodes, in a folder of their own.

    As a context manager it is started at the beginning of the block, and gone with its folder at the end, or when
    this process ends in whatever way. *detached* clusters stay until `watchdog.end`. Methods block; in asyncio
    tests wrap the slow ones in `asyncio.to_thread`.
    """

    def __init__(
        self,
        *,
        nodes: Sequence[Nodes] = (FakeNodes(),),
        apiservers: int = 1,
        apiserver_args: Sequence[str] = (),
        feature_gates: Mapping[str, bool] | None = None,
        detached: Path | None = None,
    ) -> None:
        """*apiservers* > 1 gives several endpoints of one cluster; *feature_gates* go to the whole control plane."""
        self._nodes = list(nodes)
        self._apiserver_args = list(apiserver_args)
        self._gates = dict(feature_gates or {})
        self._detached = detached
        self._processes: dict[str, Process] = {}
        self._ports = [ports.free() for _ in range(apiservers)]
        self._holding = contextlib.ExitStack()
        self.folder = Path()

    # ---- life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start everything and wait until pods can run. Whatever fails, nothing is left running."""
        programs = builds.ensure(*(components.COMPONENTS[name] for name in components.CLUSTER))
        self._claim_folder()
        try:
            self._start(programs)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every process and remove the folder; nothing happens a second time."""
        for process in self._processes.values():
            process.kill()
        if self._detached is not None and self.folder.name:
            watchdog.end(self.folder)
        self._holding.close()

    def _claim_folder(self) -> None:
        if self._detached is not None:
            self.folder = self._detached
            self.folder.mkdir(parents=True)
            return
        with locks.held(folders.runs() / "reaping.lock"):
            _reap()
            self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=folders.runs()))
            self._holding.enter_context(locks.held(self.folder / "alive.lock"))
        self._holding.callback(self._watch().communicate)

    def _watch(self) -> subprocess.Popen[bytes]:
        """Start the watchdog; ending its input makes it end the run."""
        return subprocess.Popen(
            [sys.executable, folders.HERE / "watchdog.py", self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _start(self, programs: Mapping[str, Path]) -> None:
        (self.folder / "logs").mkdir()
        self._keys = control_plane.Keys.issue(self.folder / "pki")
        self.ca = self._keys.authority.certificate
        self.kubeconfig = self._kubeconfig("admin", self._keys.admin)
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self._keys.admin.chain, self._keys.admin.key)
        self.api = Api(self.server, context)
        self._holding.callback(self.api.close)

        etcd_port = ports.free()
        self.add(
            "etcd",
            control_plane.etcd(
                programs["etcd"], data=self.folder / "etcd", port=etcd_port, peer_port=ports.free()
            ),
        ).start()
        for _ in attempts(30, "etcd", self.process("etcd"), pause=0.02):
            if ports.listening(etcd_port):
                break
        for index, port in enumerate(self._ports):
            command = control_plane.apiserver(
                programs["kube-apiserver"],
                self._keys,
                port=port,
                etcd_port=etcd_port,
                extra=self._apiserver_args,
                gates=self._gates,
            )
            self.add("kube-apiserver" if index == 0 else f"kube-apiserver-{index + 1}", command).start()
        self.wait_until_ready()
        self.add(
            "kube-controller-manager",
            control_plane.controller_manager(
                programs["kube-controller-manager"],
                self._keys,
                kubeconfig=self._kubeconfig("controller-manager", self._keys.controller_manager),
                gates=self._gates,
            ),
        ).start()
        self.add(
            "kube-scheduler",
            control_plane.scheduler(
                programs["kube-scheduler"],
                kubeconfig=self._kubeconfig("scheduler", self._keys.scheduler),
                gates=self._gates,
            ),
        ).start()
        for kind in self._nodes:
            kind.start(self)
        if CRDS.is_dir() and any(CRDS.glob("*.yaml")):
            self.kubectl("apply", "--server-side", "-f", str(CRDS))
            self.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
        for kind in self._nodes:
            kind.wait(self)
        self.wait_for_service_account("default")

    def _kubeconfig(self, name: str, user: control_plane.Certificate) -> Path:
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

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """What kubectl prints, as admin. Raises `subprocess.CalledProcessError`, whose text has its stderr."""
        done = subprocess.run(
            [builds.binary("kubectl"), *arguments],
            env=self.environment({"KUBECONFIG": str(self.kubeconfig)}),
            cwd=folders.HERE.parent.parent,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
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
        certificate = self._keys.authority.issue("fault-proxy")
        return faults.FaultProxy(server or self.server, ca=str(self.ca), certificate=certificate)

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
        process = Process(
            name,
            command,
            log=self.folder / "logs" / f"{name}.log",
            env=self.environment(env),
            cwd=self.folder,
        )
        self._processes[name] = process
        return process

    def spawn(self, name: str, command: Sequence[str | Path], **env: str) -> Process:
        """Start a service under test, e.g. ``[sys.executable, "-m", "recommender", …]``, from the repository."""
        root = str(folders.HERE.parent.parent)
        return self.add(name, command, **{"PYTHONPATH": root, "PYTHONUNBUFFERED": "1"} | env).start()

    def process(self, name: str) -> Process:
        """``etcd``, ``kube-apiserver`` (``-2`` …), ``kube-controller-manager``, ``kube-scheduler``, ``kwok``,
        or one of `add` and `spawn`."""
        return self._processes[name]

    def logs(self, name: str) -> str:
        """All that a process has printed."""
        return self.process(name).logs()

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until every API server that runs answers that it is ready."""
        for name, server in zip(self._apiserver_names(), self.servers, strict=True):
            process = self.process(name)
            if not process.running:
                continue
            with contextlib.closing(Api(server, self.api.context)) as api:
                for _ in attempts(seconds, f"{name} to be ready", process):
                    with contextlib.suppress(ApiError, OSError):
                        api.raw("GET", "/readyz", headers={})
                        break

    def _apiserver_names(self) -> list[str]:
        return [name for name in self._processes if name.startswith("kube-apiserver")]

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        """The environment of the cluster's processes: marked, so that none of them is ever left behind."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
        own = {watchdog.MARK: str(self.folder), "KUBECACHEDIR": str(self.folder / "kubectl"), "KUBERC": "off"}
        return outside | own | dict(changes)


def _reap() -> None:
    """End the runs whose process is gone and whose watchdog was killed as well."""
    for folder in folders.runs().glob("run-*"):
        with contextlib.suppress(FileNotFoundError):  # its own watchdog is just removing it
            free = locks.try_hold(folder / "alive.lock")
            if free is not None:
                with free:
                    watchdog.end(folder)
