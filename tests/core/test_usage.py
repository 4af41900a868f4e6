"""Samples, windows and OOMs against upstream's facts, and batches against one sample at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.core import vectors
from vpa.histograms import NEVER
from vpa.usage import OOMOutcome, Usage

MS = 10**6
PERCENTILES = np.array([0, 0.1, 0.5, 0.9, 0.95, 1])
OOM_RESULTS = {
    OOMOutcome.RECORDED: "ok",
    OOMOutcome.TOO_OLD: "oom_too_old",
    OOMOutcome.FAILED: "oom_failed",
}


class Scene:
    """One case's containers as instances of the shared state."""

    def __init__(self, usage: Usage, case: vectors.Case) -> None:
        self.case = case
        self.rows: dict[tuple[str, str], int] = {}
        self.instances: list[int | None] = []
        for container in case["in"]["containers"]:
            if container["label_group"] == "absent":
                self.instances.append(None)
                continue
            key = (container["name"], container["label_group"])
            if key not in self.rows:
                self.rows[key] = int(usage.new_rows(1, 0)[0])
            self.instances.append(int(usage.new_instances(np.array([self.rows[key]]))[0]))

    def time(self, relative_ms: int) -> int:
        return int(self.case["in"]["base_ms"] + relative_ms) * MS


def feed_round(usage: Usage, scenes: list[Scene], step: int, results: dict[str, list[str]]) -> None:
    """Event *step* of all cases: CPU and memory as one batch each, as a poll would bring them."""
    batches: dict[str, list[tuple[Scene, int, int, int]]] = {"cpu": [], "mem": []}
    for scene in scenes:
        events = scene.case["in"]["events"] or []
        if step >= len(events):
            continue
        kind, index, relative, amount = events[step]
        instance = scene.instances[index]
        if instance is None:
            results[scene.case["id"]].append("unknown_container")
        elif kind == "oom":
            outcome = usage.record_oom(instance, scene.time(relative), amount)
            results[scene.case["id"]].append(OOM_RESULTS[outcome])
        else:
            batches[kind].append((scene, instance, scene.time(relative), amount))
    for kind, batch in batches.items():
        if batch:
            add = usage.add_cpu if kind == "cpu" else usage.add_memory
            accepted = add(*(np.array([b[i] for b in batch], dtype=np.int64) for i in (1, 2, 3)))
            for (scene, *_), ok in zip(batch, accepted, strict=True):
                results[scene.case["id"]].append("ok" if ok else "discarded")


def relative_ms(time: Any, base_ms: int) -> int | None:
    return None if time == NEVER else int(time) // MS - base_ms


def histogram(bank: Any, row: int) -> dict[str, Any]:
    weights = bank.weights(row)
    return {
        "empty": bool(bank.is_empty(np.array([row]))[0]),
        "percentiles": bank.percentiles(np.array([row]), PERCENTILES)[:, 0].tolist(),
        "total_weight": float(bank.total[row]),
        "weights": [[int(b), float(weights[b])] for b in np.flatnonzero(weights)],
        "reference_ms": None if bank.reference[row] == NEVER else int(bank.reference[row]) // MS,
    }


def state(usage: Usage, scene: Scene) -> dict[str, Any]:
    base = scene.case["in"]["base_ms"]
    aggregates = {}
    for name in sorted({name for name, _ in scene.rows}):
        view = int(usage.new_rows(1, 0)[0])
        for (owner, _), row in scene.rows.items():
            if owner == name:
                usage.merge(view, row)
        aggregates[name] = {
            "total_samples_count": int(usage.sample_count[view]),
            "first_sample": relative_ms(usage.first_sample[view], base),
            "last_sample": relative_ms(usage.last_sample[view], base),
            "cpu": histogram(usage.cpu, view),
            "memory": histogram(usage.memory, view),
        }
    containers = [
        None
        if i is None
        else {
            "max_memory_peak": int(max(usage.memory_peak[i], usage.oom_peak[i])),
            "window_end": relative_ms(usage.window_end[i], base),
            "last_cpu_sample": relative_ms(usage.cpu_time[i], base),
        }
        for i in scene.instances
    ]
    return {"aggregates": aggregates, "containers": containers}


def test_vector_aggregate_container_state() -> None:
    cases = vectors.load("aggregate_container_state")
    usage = Usage(capacity=8)
    scenes = [Scene(usage, case) for case in cases]
    results: dict[str, list[str]] = {case["id"]: [] for case in cases}
    for step in range(max(len(case["in"]["events"] or []) for case in cases)):
        feed_round(usage, scenes, step, results)
    by_id = {scene.case["id"]: scene for scene in scenes}

    def outcome(case: vectors.Case) -> Any:
        return {**state(usage, by_id[case["id"]]), "results": results[case["id"]]}

    vectors.check("aggregate_container_state", cases, outcome)
