"""The network of a cluster with real nodes: a namespace of its own with a bridge that the nodes are on.

etcd, the control plane and whatever else is part of the cluster run in it. All its addresses are the same in
every cluster, since none of them is seen from outside.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.testbed import folders
from tests.testbed.processes import attempts
from tests.testbed.runs import Run

ADDRESS = "10.200.0.1"
"""Where pods and nodes reach the control plane."""
SERVICES = "10.0.0.0/16"
PODS = "10.201.0.0/16"

_LISTENING = "0A"  # as /proc/net/tcp has it


def node_address(index: int) -> str:
    """The address of the node *index*, counted from 1."""
    return f"10.200.0.{10 + index}"


def pod_range(index: int) -> str:
    """The addresses of the pods of the node *index*."""
    return f"10.201.{index}.0/24"


class NetworkError(Exception):
    """The network could not be set up; the message has what `ip` said."""


class Network:
    """The network namespace of one run; it goes when the last of the run's processes does."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._published: set[int] = set()
        holder = run.add("network", ["unshare", "--net", "--", "sleep", "infinity"]).start()
        self.file = Path(f"/proc/{holder.pid}/ns/net")
        self._sockets = Path(f"/proc/{holder.pid}/net/tcp")
        own = os.readlink("/proc/self/ns/net")
        for _ in attempts(10, "a network namespace", holder, pause=0.01):
            if os.readlink(self.file) != own:
                break
        self.ip(
            "link set lo up",
            "link add nodes type bridge",
            f"address add {ADDRESS}/24 dev nodes",
            "link set nodes up",
        )

    @property
    def prefix(self) -> list[str]:
        """Put before a command, it runs in here."""
        return ["nsenter", f"--net={self.file}", "--"]

    def ip(self, *commands: str) -> None:
        """Run *commands* of `ip` in here. Raises `NetworkError`."""
        done = subprocess.run(
            [*self.prefix, "ip", "-batch", "-"],
            input="".join(f"{command}\n" for command in commands),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise NetworkError(f"ip {'; '.join(commands)}: {done.stderr.strip()}")

    def attach(self, index: int, pid: int) -> None:
        """Give the namespaces of process *pid* an interface eth0 that is on the bridge, as node *index*."""
        link = f"node-{index}"
        if self._has(link):  # of the same node before it was started again
            self.ip(f"link delete {link}")
        self.ip(
            f"link add {link} type veth peer name eth0 netns {pid}",
            f"link set {link} master nodes up",
            f"route replace {pod_range(index)} via {node_address(index)}",
            *([f"route replace {SERVICES} via {node_address(index)}"] if index == 1 else []),
        )

    def publish(self, port: int) -> None:
        """Let this machine reach *port* of 127.0.0.1 in here at the same port of its own 127.0.0.1."""
        if port not in self._published:
            self._published.add(port)
            script = str(folders.HERE / "realnodes" / "relay.py")
            command = [sys.executable, "-I", "-S", script, str(port), str(self.file)]
            relay = self.run.add(f"relay-{port}", command).start()
            for _ in attempts(10, f"the relay of port {port}", relay, pause=0.02):
                if _listens(Path("/proc/self/net/tcp"), port):
                    return

    def listens(self, port: int) -> bool:
        """Whether a server in here listens on *port*."""
        return _listens(self._sockets, port) or _listens(self._sockets.with_name("tcp6"), port)

    def _has(self, link: str) -> bool:
        command = [*self.prefix, "ip", "link", "show", link]
        for _ in range(20):  # the kernel removes the interfaces of an ended namespace in its own time
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                return False
            time.sleep(0.1)
        return True


def _listens(table: Path, port: int) -> bool:
    for line in table.read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
            return True
    return False
