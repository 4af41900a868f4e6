"""One real node: started, killed and started again like a machine, its disk kept in between."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.testbed import folders, kubeconfigs
from tests.testbed.certificates import Authority
from tests.testbed.processes import Process, patience
from tests.testbed.realnodes import cgroups, configuration, network, requirements
from tests.testbed.realnodes.network import Network
from tests.testbed.realnodes.packets import Tools

MIB = 2**20

# The box competes for CPU as one, with every process outside it: without more weight its pods would get less
# than they request as soon as something is compiled beside it.
_SHARES, _WEIGHT = 4096, 400

_ENTER = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 1; shift; done; shift; exec "$@"'


@dataclass(frozen=True, kw_only=True)
class Size:
    """What pods may have of a node. None: all that the machine has, less a small reserve."""

    cpu: int | None = None
    """Millicores."""
    memory: int | None = None
    """MiB that the node has; the kernel holds it to that. 200 of them are not for pods."""


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The folders and files that a node runs from."""

    kubelet: Path
    kube_proxy: Path
    containerd: Path
    runc: Path
    cni: Path
    """The folder of the plugins."""
    packets: Tools
    """What kube-proxy runs."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the nodes of one cluster have in common."""

    network: Network
    authority: Authority
    server: str
    """The API server's url, as nodes reach it."""
    programs: Programs
    images: tuple[Path, ...]
    count: int


class Node:
    """A node in namespaces and control groups of its own."""

    def __init__(self, name: str, index: int, size: Size, surroundings: Surroundings) -> None:
        self.name = name
        self.index = index
        self.address = network.node_address(index)
        self._around = surroundings
        self._run = surroundings.network.run
        self._folder = self._run.folder / name
        self._folder.mkdir()
        self.groups = cgroups.Groups.make(f"{self._run.folder.name}-{name}", self._run.folder)
        self._limit(size)
        plan = self._write_plan(size)
        inside = [sys.executable, "-I", "-S", str(folders.HERE / "realnodes" / "inside.py"), str(plan)]
        enter = [str(folder / "cgroup.procs") for folder in self.groups.folders]
        self._process = self._run.add(
            name, ["sh", "-c", _ENTER, "sh", *enter, "--", *requirements.UNSHARE, *inside]
        )

    def start(self) -> None:
        """Switch it on; again after `kill`, with the disk as it was."""
        self._process.start()
        init = self._init()
        self.groups.settle()
        self._around.network.attach(self.index, init)

    def kill(self) -> None:
        """Take its power away: every process of it is gone when this returns."""
        init = psutil.Process(self._init())
        self._process.kill()
        deadline = time.monotonic() + 10
        with contextlib.suppress(psutil.NoSuchProcess):
            # The kernel lets process 1 end when all others of its namespace have.
            while init.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
                time.sleep(0.01)
        self.groups.clear()

    @property
    def running(self) -> bool:
        """Whether it is switched on."""
        return self._process.running

    @property
    def process(self) -> Process:
        """Its process in this machine's eyes; the log is what process 1 says."""
        return self._process

    def kill_server(self, name: str) -> None:
        """Kill ``kubelet``, ``containerd`` or ``kube-proxy``; process 1 starts it again after a second."""
        for process in psutil.Process(self._init()).children():
            if process.name() == name:
                process.kill()
                return
        raise LookupError(f"{name} does not run on {self.name}")

    def load(self, archive: Path) -> None:
        """Import the images of *archive*."""
        command = [*self._ctr(), "images", "import", "--local", str(archive)]
        enter = ["nsenter", f"--target={self._init()}", "--mount", "--net", "--"]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{self.name} cannot import {archive}: {done.stderr.strip()}")

    def logs(self, server: str) -> str:
        """What ``kubelet``, ``containerd`` or ``kube-proxy`` has printed."""
        return (self._folder / f"{server}.log").read_text(errors="replace")

    def _init(self) -> int:
        """The process id of process 1, as seen from here."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            self._process.check()
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self._process.pid).children():
                    return int(child.pid)
            time.sleep(0.01)
        raise TimeoutError(f"{self.name} has no process 1")

    def _ctr(self) -> list[str]:
        program = self._around.programs.containerd.with_name("ctr")
        return [str(program), "--address", configuration.SOCKET, "--namespace", "k8s.io"]

    def _limit(self, size: Size) -> None:
        if size.memory is not None:
            self.groups.limit_memory(size.memory * MIB)
        self.groups.weigh(shares=_SHARES, weight=_WEIGHT)

    def _write_plan(self, size: Size) -> Path:
        """Write all configuration files; the file that process 1 reads."""
        around = self._around
        plan = {
            "name": self.name,
            "path": os.pathsep.join(
                map(
                    str,
                    (
                        around.programs.containerd.parent,
                        around.programs.packets.folder,
                        "/usr/sbin:/usr/bin:/sbin:/bin",
                    ),
                )
            ),
            "hierarchies": [hierarchy.options for hierarchy in self.groups.hierarchies],
            "binds": self._binds(size),
            "address": self.address,
            "gateway": network.ADDRESS,
            "neighbours": [
                (network.pod_range(other), network.node_address(other))
                for other in range(1, around.count + 1)
                if other != self.index
            ],
            "servers": self._servers(size),
            "ctr": self._ctr(),
            "images": [str(image) for image in around.images],
            "imported": str(self._folder / "imported"),
        }
        path = self._folder / "plan.json"
        path.write_text(json.dumps(plan, indent=2))
        return path

    def _binds(self, size: Size) -> list[tuple[str, str]]:
        """(file or folder here, where the node sees it)."""
        binds = []
        for name in ("lib", "log"):
            folder = self._folder / name
            folder.mkdir()
            binds.append((str(folder), f"/var/{name}"))
        for name in ("lib/kubelet", "lib/containerd", "lib/cni", "log/pods", "log/containers"):
            (self._folder / name).mkdir()
        for setting, value in configuration.KERNEL_SETTINGS.items():
            file = self._folder / setting.replace("/", ".")
            file.write_text(f"{value}\n")
            binds.append((str(file), f"/proc/sys/{setting}"))
        if size.memory is not None:
            file = self._folder / "meminfo"
            file.write_text(_meminfo(size.memory))
            binds.append((str(file), "/proc/meminfo"))
        processors = Path("/proc/cpuinfo").read_text()
        if "cpu MHz" not in processors:  # user-mode Linux does not say, and the kubelet insists
            file = self._folder / "cpuinfo"
            file.write_text(processors.replace("bogomips", "cpu MHz\t\t: 1000.000\nbogomips"))
            binds.append((str(file), "/proc/cpuinfo"))
        return binds

    def _servers(self, size: Size) -> list[dict[str, Any]]:
        programs = self._around.programs
        config = self._write(
            "containerd.toml",
            configuration.containerd(
                programs=programs.cni,
                cni=self._folder / "cni",
                runc=programs.runc,
                may_raise_priority=requirements.may_raise_priority(),
            ),
        )
        (self._folder / "cni").mkdir()
        pods = network.pod_range(self.index)
        self._write("cni/10-pods.conflist", json.dumps(configuration.cni(pods)))
        return [
            self._server("containerd", [programs.containerd, "--config", config]),
            self._server("kubelet", self._kubelet(size)),
            self._server("kube-proxy", self._kube_proxy()),
        ]

    def _kubelet(self, size: Size) -> Sequence[str | Path]:
        certificate = self._around.authority.issue(
            f"system:node:{self.name}", group="system:nodes", names=(self.name, self.address)
        )
        settings = configuration.kubelet(
            address=self.address,
            ca=self._around.authority.certificate,
            certificate=certificate.chain,
            key=certificate.key,
            resolver=self._write("resolv.conf", "nameserver 127.0.0.1\n"),
            reserved=_reserved(size),
        )
        config = self._write("kubelet.yaml", json.dumps(settings, indent=2))  # JSON is YAML
        kubeconfig = kubeconfigs.write(
            self._folder / "kubelet.kubeconfig",
            server=self._around.server,
            ca=self._around.authority.certificate,
            user=certificate,
        )
        return [
            self._around.programs.kubelet,
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            "--root-dir=/var/lib/kubelet",
            # cAdvisor's default of 10 s would make every test of usage wait.
            f"--housekeeping-interval={2 * patience():g}s",
        ]

    def _kube_proxy(self) -> Sequence[str | Path]:
        kubeconfig = kubeconfigs.write(
            self._folder / "kube-proxy.kubeconfig",
            server=self._around.server,
            ca=self._around.authority.certificate,
            user=self._around.authority.issue("system:kube-proxy"),
        )
        return [
            self._around.programs.kube_proxy,
            f"--kubeconfig={kubeconfig}",
            f"--proxy-mode={self._around.programs.packets.mode}",
            f"--hostname-override={self.name}",
            f"--cluster-cidr={network.PODS}",
            # These are kernel settings, which are not this node's alone.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            "--healthz-bind-address=127.0.0.1:10256",
            "--metrics-bind-address=127.0.0.1:10249",
        ]

    def _server(self, name: str, command: Sequence[str | Path]) -> dict[str, Any]:
        log = str(self._folder / f"{name}.log")
        return {"name": name, "command": [str(part) for part in command], "log": log}

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        return path


def _reserved(size: Size) -> dict[str, str]:
    """What the kubelet is told to take off its capacity, so that pods get *size*."""
    capacity = (os.cpu_count() or 1) * 1000
    cpu = 100 if size.cpu is None else max(0, capacity - size.cpu)
    return {"cpu": f"{cpu}m", "memory": "1Gi" if size.memory is None else "150Mi"}


def _meminfo(total: int) -> str:
    """The machine's /proc/meminfo with *total* MiB in place of all that it has."""
    lines = Path("/proc/meminfo").read_text().splitlines(keepends=True)
    changed = [
        f"MemTotal: {total * 1024:15d} kB\n" if line.startswith("MemTotal:") else line for line in lines
    ]
    return "".join(changed)
