"""Process 1 of a node: sets its namespaces up, and keeps containerd, kubelet and kube-proxy running.

    python inside.py PLAN.json

It is run by path and needs the standard library alone. What it mounts is seen in the node's mount namespace
only. A server that ends is started again after a second, as systemd would.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
RESTART_SECONDS = 1.0


def run(*command: str | Path) -> None:
    """Run a command that has to succeed."""
    subprocess.run([str(part) for part in command], check=True)


def mount_cgroups(hierarchies: list[str]) -> None:
    """Mount the trees afresh: in a namespace of its own the node's groups are their roots."""
    if hierarchies == [""]:
        run("mount", "-t", "cgroup2", "cgroup2", CGROUPS)
        return
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", CGROUPS)
    for options in hierarchies:
        folder = CGROUPS / options.removeprefix("name=")
        folder.mkdir()
        named = f"none,{options}" if options.startswith("name=") else options
        run("mount", "-t", "cgroup", "-o", named, "cgroup", folder)
        controllers = options.split(",")
        for controller in controllers if len(controllers) > 1 else ():
            (CGROUPS / controller).symlink_to(folder.name)


def mount(plan: dict[str, Any]) -> None:
    """The node's own view of the files."""
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "sysfs", "sysfs", "/sys")
    mount_cgroups(plan["hierarchies"])
    for source, target in plan["binds"]:
        run("mount", "--bind", source, target)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    os.environ["TMPDIR"] = "/run"


def connect(plan: dict[str, Any]) -> None:
    """Wait for the interface that is put in from outside, and give it the node's address."""
    while "eth0" not in (name for _, name in socket.if_nameindex()):
        time.sleep(0.02)
    lines = ["link set lo up", f"address add {plan['address']}/24 dev eth0", "link set eth0 up"]
    lines += [f"route add default via {plan['gateway']}"]
    lines += [f"route add {pods} via {address}" for pods, address in plan["neighbours"]]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


def start(server: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start one server; its log is continued."""
    with Path(server["log"]).open("ab") as log:
        return subprocess.Popen(
            server["command"],
            env=os.environ | server.get("env", {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def prepare(plan: dict[str, Any]) -> None:
    """Once containerd answers, put the images into it that it doesn't have yet."""
    ctr = plan["ctr"]
    while subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode != 0:
        time.sleep(0.05)
    done = Path(plan["imported"])
    for image in plan["images"]:
        if not done.exists():
            run(*ctr, "images", "import", "--local", image)
    done.touch()


def supervise(plan: dict[str, Any]) -> None:
    """Keep the servers running, and reap the orphans of the node."""
    servers = {}
    for server in plan["servers"]:
        servers[start(server).pid] = server
        if server["name"] == "containerd":
            prepare(plan)
    while True:
        ended, _ = os.wait()  # of whatever child: process 1 inherits all orphans
        server = servers.pop(ended, None)
        if server is not None:
            time.sleep(RESTART_SECONDS)
            servers[start(server).pid] = server


def main() -> None:
    """Everything, for ever: the namespaces end with this process."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    os.environ["PATH"] = plan["path"]
    socket.sethostname(plan["name"])
    mount(plan)
    connect(plan)
    supervise(plan)


if __name__ == "__main__":
    main()
