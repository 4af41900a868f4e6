"""Files in a folder, and ``vpa recommend`` run on them."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from vpa.cli.__main__ import main

NOON = 1_785_585_600


def deployment(name: str = "web", containers: tuple[str, ...] = ("app",)) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": container} for container in containers]},
            },
        },
    }


def pod(
    name: str = "web-5d-1", owner: str = "web-5d", containers: tuple[str, ...] = ("app",)
) -> dict[str, Any]:
    controller = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": owner,
        "uid": "1",
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "labels": {"app": owner.rpartition("-")[0]},
            "ownerReferences": [controller],
        },
        "spec": {"containers": [{"name": container} for container in containers]},
        "status": {"phase": "Running"},
    }


def autoscaler(
    name: str = "web", kind: str = "Deployment", target: str = "web", **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": name, "namespace": "shop", "generation": 2},
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": kind, "name": target}, **spec},
    }


def line(**fields: Any) -> dict[str, Any]:
    return {"time": NOON, "namespace": "shop", "pod": "web-5d-1", "container": "app", **fields}


class Outcome(NamedTuple):
    """How a command ended and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Shell:
    """Files in a folder and the command run on them as a person runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def objects(self, *objects: dict[str, Any]) -> str:
        path = self.folder / "objects.yaml"
        path.write_text(yaml.safe_dump_all(objects))
        return str(path)

    def usage(self, *lines: dict[str, Any] | str) -> str:
        path = self.folder / "usage.jsonl"
        path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
        return str(path)

    def run(self, *args: str, stdin: str = "") -> Outcome:
        """The console script's own function, in this process: a process each would cost a second."""
        out, err = io.StringIO(), io.StringIO()
        code = 0
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["vpa", "recommend", *args])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            patch.setenv("COLUMNS", "80")
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
        return Outcome(code, out.getvalue(), err.getvalue())

    def statuses(self, *args: str) -> list[dict[str, Any]]:
        result = self.run(*args, "-o", "json")
        assert result.returncode == 0, result.stderr
        listed = json.loads(result.stdout)
        assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
        return [item["status"] for item in listed["items"]]


def containers(status: dict[str, Any]) -> dict[str, Any]:
    found = status["recommendation"].get("containerRecommendations", [])
    return {container["containerName"]: container for container in found}


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status["conditions"]}
