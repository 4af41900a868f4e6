"""python -m tests.testbed: build the components; a cluster for people."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.testbed import builds, components, folders, watchdog
from tests.testbed.api import ApiError
from tests.testbed.processes import ProcessError
from tests.testbed.toolchain import ToolchainError


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.testbed", description="A real cluster on this machine."
    )
    parser.add_argument(
        "--name", default="default", help="which cluster, when there are several (default: default)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build components into the user's cache")
    build.add_argument(
        "components",
        nargs="*",
        metavar="COMPONENT",
        help=f"one of {', '.join(components.COMPONENTS)} (default: {' '.join(components.CLUSTER)})",
    )
    build.set_defaults(run=_build)
    up = commands.add_parser("up", help="start a cluster that stays until `down`")
    up.add_argument("--nodes", type=int, default=0, help="how many real nodes, which needs root (default: 0)")
    up.add_argument(
        "--fake-nodes",
        type=int,
        help="how many nodes that kwok plays (default: 3 where there are no real ones)",
    )
    up.set_defaults(run=_up)
    commands.add_parser("down", help="end it and remove all of it").set_defaults(run=_down)
    commands.add_parser("kubeconfig", help="print the path of its kubeconfig").set_defaults(run=_kubeconfig)
    commands.add_parser("status", help="what runs, and where").set_defaults(run=_status)

    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except KeyboardInterrupt:
        print("interrupted; what was compiled is kept", file=sys.stderr)
        return 130
    except (builds.BuildError, ToolchainError, ProcessError, ApiError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _folder(options: argparse.Namespace) -> Path:
    return folders.runs() / f"up-{options.name}"


def _build(options: argparse.Namespace) -> int:
    names = options.components or components.CLUSTER
    unknown = set(names) - set(components.COMPONENTS)
    if unknown:
        print(f"error: no component {', '.join(sorted(unknown))}; see build --help", file=sys.stderr)
        return 2
    for program, path in builds.ensure(*(components.COMPONENTS[name] for name in names)).items():
        print(f"{program}\t{path}")
    return 0


def _up(options: argparse.Namespace) -> int:
    folder = _folder(options)
    if folder.exists():
        if _running(folder):
            print(f"it runs already, in {folder}", file=sys.stderr)
            return 1
        watchdog.end(folder)  # the machine was restarted, or it was killed
    from tests.testbed.cluster import Cluster  # half a second that the other commands need not wait
    from tests.testbed.nodes import FakeNodes, Nodes
    from tests.testbed.realnodes import metrics_server, project_image, requirements
    from tests.testbed.realnodes.boxes import Size
    from tests.testbed.realnodes.nodes import RealNodes

    reason = requirements.obstacle() if options.nodes else None
    if reason is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    kinds: list[Nodes] = []
    if options.nodes:
        kinds.append(RealNodes([Size()] * options.nodes, archives=[project_image.archive()]))
    fake = options.fake_nodes if options.fake_nodes is not None else 0 if kinds else 3
    if fake:
        kinds.append(FakeNodes(count=fake))
    cluster = Cluster(nodes=kinds, detached=folder)
    cluster.start()
    if options.nodes:
        metrics_server.wait(cluster)
    else:
        usage = cluster.metrics
        usage.use(cpu=0.1, memory=64 * 2**20)
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


def _down(options: argparse.Namespace) -> int:
    folder = _folder(options)
    if not folder.exists():
        print("no cluster of that name", file=sys.stderr)
        return 1
    watchdog.end(folder)
    return 0


def _kubeconfig(options: argparse.Namespace) -> int:
    path = _folder(options) / "admin.kubeconfig"
    if not path.exists():
        print("no cluster of that name; start it with `up`", file=sys.stderr)
        return 1
    print(path)
    return 0


def _status(options: argparse.Namespace) -> int:
    folder = _folder(options)
    running = _running(folder) if folder.exists() else []
    if not running:
        print("no cluster of that name runs")
        return 1
    config = json.loads((folder / "admin.kubeconfig").read_text())
    print(f"{config['clusters'][0]['cluster']['server']}  logs in {folder / 'logs'}")
    for pid, name, memory in running:
        print(f"{pid:>8}  {name:<26}{memory >> 20:>6} MiB")
    return 0


def _running(folder: Path) -> list[tuple[int, str, int]]:
    """(process id, name, resident bytes) of what runs for *folder*."""
    found = []
    for process in watchdog.marked(folder):
        command = process.cmdline()
        name = command[2] if command[1:2] == ["-m"] else Path(command[0]).name
        found.append((process.pid, name, process.memory_info().rss))
    return sorted(found, key=lambda one: one[1])


if __name__ == "__main__":
    # A build that is told to end should tell the compiler so, as it does on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
