"""``vpa history`` against a real Prometheus."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.testbed import folders
from tests.testbed import history_world as world
from tests.testbed.prometheus import Prometheus

pytestmark = pytest.mark.prometheus

ROOT = folders.HERE.parent.parent


def objects() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for namespace, kind, name, app in world.WORKLOADS:
        version = "batch/v1" if kind == "CronJob" else "apps/v1"
        meta = {"name": name, "namespace": namespace}
        labels = {"app.kubernetes.io/name": app}
        names = ("app", "proxy") if name == "web" else ("app",)
        containers = [{"name": container} for container in names]
        template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
        spec: dict[str, Any] = {"selector": {"matchLabels": labels}, "template": template}
        if kind == "CronJob":
            spec = {"jobTemplate": {"spec": {"template": template}}}
        found.append({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})
        found.append(
            {
                "apiVersion": "autoscaling.k8s.io/v1",
                "kind": "VerticalPodAutoscaler",
                "metadata": meta,
                "spec": {"targetRef": {"apiVersion": version, "kind": kind, "name": name}},
            }
        )
    return found


def vpa(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "objects.json"
    file.write_text(json.dumps({"kind": "List", "items": objects()}))
    command = [sys.executable, "-m", "vpa.cli", "history", "-f", str(file), *args]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ), timeout=120, check=False
    )


def moment(now: float) -> str:
    return datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_it_says_what_was_found_of_each_workload_and_how(
    prometheus: Prometheus, history_now: float, tmp_path: Path
) -> None:
    done = vpa(
        tmp_path, f"--prometheus-address={prometheus.url}", f"--now={moment(history_now)}", "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["web"]["pods"] == 5
    assert rows["web"]["knownBy"] == {"owner": 5}
    assert rows["tick"]["knownBy"] == {"name": 6}
    assert rows["db"]["cpuPoints"] == rows["db"]["memoryPoints"] == 192
    assert 'any job instead of "kubernetes-cadvisor"' in done.stderr


def test_its_usage_lines_have_every_point_once_in_the_order_of_time(
    prometheus: Prometheus, history_now: float, tmp_path: Path
) -> None:
    done = vpa(
        tmp_path, f"--prometheus-address={prometheus.url}", f"--now={moment(history_now)}", "-o", "usage"
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    keys = {(line["time"], line["pod"], line["container"]) for line in lines}
    assert len(keys) == len(lines)
    assert sum(line["pod"] == "db-0" for line in lines) == 192
    assert all(
        line["owner"] == {"kind": "StatefulSet", "name": "s1"} for line in lines if line["pod"] == "s1-0"
    )


def test_a_prometheus_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    done = vpa(tmp_path, "--prometheus-address=http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.strip().startswith("vpa: Prometheus query")
    assert "http://127.0.0.1:9" in done.stderr


def test_a_token_file_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    done = vpa(tmp_path, "--prometheus-bearer-token-file=/nowhere/token")
    assert done.returncode == 1
    assert done.stderr == (
        "vpa: the bearer token file /nowhere/token cannot be read: No such file or directory\n"
    )
