"""The first screen: `vpa recommend` over eight days of public traces, no cluster needed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.testbed import traces

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parent.parent
END = 1_785_542_400.0  # 2026-08-01T00:00:00Z
LENGTH = 8 * 86400.0
STEP = 60.0


class Series(NamedTuple):
    """Which trace drives a container, and how large it is made; memory is synthetic."""

    workload: str
    kind: str
    container: str
    pods: int
    trace: str
    peak: float
    floor: float
    seed: int


SERIES = (
    Series("web", "Deployment", "app", 3, "crane_input1", 2.4, 150 * 2**20, 1),
    Series("web", "Deployment", "proxy", 3, "crane_input3", 0.09, 24 * 2**20, 2),
    Series("orders", "StatefulSet", "postgres", 1, "nab_rds_cpu_utilization_cc0c53", 0.8, 400 * 2**20, 3),
    Series("worker", "Deployment", "worker", 2, "crane_input12", 3.0, 300 * 2**20, 4),
)


def pod_names(series: Series) -> list[str]:
    """Names as the controllers would give them."""
    middle = "" if series.kind == "StatefulSet" else "-7c9d8"
    return [f"{series.workload}{middle}-{number}" for number in range(series.pods)]


def write_usage(path: Path) -> None:
    """Usage lines of all pods in order of time; a workload's series is divided among its pods."""
    lines: list[tuple[float, str]] = []
    for series in SERIES:
        times, cores = traces.resampled(series.trace, end=END, length=LENGTH, step=STEP, peak=series.peak)
        memory = traces.memory(cores, floor=series.floor, seed=series.seed)
        cores = np.round(cores / series.pods, 4)
        for pod in pod_names(series):
            place = {"namespace": "shop", "pod": pod, "container": series.container}
            for time, cpu, used in zip(times, cores, memory, strict=True):
                lines.append((time, json.dumps({"time": time, **place, "cpu": cpu, "memory": int(used)})))
    lines.sort()
    path.write_text("".join(f"{text}\n" for _, text in lines))


def show(folder: Path) -> None:
    """Write the usage of the shop into *folder* and run the command as a person would."""
    folder.mkdir(exist_ok=True)
    usage = folder / "usage.jsonl"
    if not usage.exists():
        write_usage(usage)
    print(
        "Eight days of a small shop. CPU: public traces of gocrane/crane (Apache-2.0) and the Numenta\n"
        "Anomaly Benchmark (MIT), divided among the pods.\n"
        "Memory: SYNTHETIC, a seeded function of the CPU series.\n"
    )
    arguments = ["recommend", "-f", "tests/demo/shop.yaml", "--usage", str(usage.relative_to(REPOSITORY))]
    for extra in ([], ["--explain"]):
        print(
            f"$ .venv/bin/vpa {shlex.join(arguments + extra)}{' | tail -n 47' if extra else ''}", flush=True
        )
        command = [sys.executable, "-m", "vpa.cli", *arguments, *extra]
        result = subprocess.run(command, cwd=REPOSITORY, check=True, text=True, stdout=subprocess.PIPE)
        lines = result.stdout.splitlines()
        print("\n".join(lines[-47:] if extra else lines), flush=True)
    print("Memory above is synthetic. The files stay in .demo/ and tests/demo/: try flags on them.")
