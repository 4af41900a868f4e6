"""``vpa recommend --prometheus`` with manifests and a real Prometheus: nothing is installed anywhere."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_history_command import ROOT, moment, objects
from tests.testbed.prometheus import Prometheus

pytestmark = pytest.mark.prometheus


def written(folder: Path, *kinds: str) -> str:
    """A file of the world's objects of some kinds, or of all."""
    items = [one for one in objects() if not kinds or one["kind"] in kinds]
    file = folder / "objects.json"
    file.write_text(json.dumps({"kind": "List", "items": items}))
    return str(file)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vpa.cli", "recommend", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


def test_eight_days_give_confident_numbers_without_any_usage_file(
    prometheus: Prometheus, history_now: float, tmp_path: Path
) -> None:
    args = ("-f", written(tmp_path), "--prometheus", prometheus.url, f"--now={moment(history_now)}")
    result = run(*args, "-o", "json")
    assert result.returncode == 0, result.stderr
    items = {one["metadata"]["name"]: one["status"] for one in json.loads(result.stdout)["items"]}
    entries = items["web"]["recommendation"]["containerRecommendations"]
    assert {one["containerName"] for one in entries} == {"app", "proxy"}
    assert "LowConfidence" not in {one["type"] for one in items["web"]["conditions"]}


def test_workloads_without_a_vpa_are_shown_in_a_table_for_spreadsheets(
    prometheus: Prometheus, history_now: float, tmp_path: Path
) -> None:
    file = written(tmp_path, "Deployment", "StatefulSet")
    args = ("-f", file, "--prometheus", prometheus.url, f"--now={moment(history_now)}", "-n", "shop")
    result = run(*args, "-o", "csv")
    assert result.returncode == 0, result.stderr
    rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {(row["kind"], row["workload"]) for row in rows} == {
        ("Deployment", "web"),
        ("StatefulSet", "db"),
        ("StatefulSet", "s0"),
        ("StatefulSet", "s1"),
    }
    assert {row["namespace"] for row in rows} == {"shop"}
    assert all(row["target"] and float(row["days"]) > 4 for row in rows)


def heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_interrupted_command_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is interrupted while it waits for an answer."""
    file = written(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "vpa.cli", "recommend", "-f", file, "--prometheus", address],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stderr=subprocess.PIPE,
            preexec_fn=heed_interrupts,  # who runs the tests in the background has them ignored
        )
        asking, _ = silent.accept()
        with asking:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    assert b"Traceback" not in errors
    assert sorted(tmp_path.rglob("*")) == before
