"""Checkpoints against upstream's facts, and what must survive a restart."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from tests.core import vectors
from vpa import checkpoints, times
from vpa.histograms import NEVER, HistogramBank
from vpa.usage import Usage

MS = 10**6
SECOND = 10**9
PERCENTILES = np.array([0, 0.1, 0.5, 0.9, 0.95, 1])


def moment(time: Any) -> str | None:
    if time == NEVER:
        return None
    seconds, fraction = divmod(int(time), SECOND)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}{f'.{fraction:09d}'.rstrip('0') if fraction else ''}Z"


def histogram(bank: HistogramBank, row: int) -> dict[str, Any]:
    weights = bank.weights(row)
    return {
        "empty": bool(bank.is_empty(np.array([row]))[0]),
        "percentiles": bank.percentiles(np.array([row]), PERCENTILES)[:, 0].tolist(),
        "total_weight": float(bank.total[row]),
        "weights": [[int(b), float(weights[b])] for b in np.flatnonzero(weights)],
        "reference": moment(bank.reference[row]),
    }


def state(usage: Usage, row: int) -> dict[str, Any]:
    return {
        "total_samples_count": int(usage.sample_count[row]),
        "first_sample": moment(usage.first_sample[row]),
        "last_sample": moment(usage.last_sample[row]),
        "cpu": histogram(usage.cpu, row),
        "memory": histogram(usage.memory, row),
    }


def saved(usage: Usage, row: int) -> dict[str, Any]:
    status = checkpoints.encode(usage, row, 0)
    del status["lastUpdateTime"]
    return status


def new_row(usage: Usage) -> int:
    return int(usage.new_rows(1, 0)[0])


def loaded(usage: Usage, status: Any) -> dict[str, Any]:
    row = new_row(usage)
    try:
        read = checkpoints.decode(status)
    except checkpoints.MalformedCheckpointError:
        return {"unmarshal_error": True}
    try:
        checkpoints.load(usage, row, read)
    except checkpoints.CheckpointError as error:
        return {"load_error": str(error), "state": state(usage, row)}
    return {"load_error": None, "state": state(usage, row), "saved_again": saved(usage, row)}


def live(usage: Usage, events: list[list[Any]] | None) -> int:
    """A row fed directly, sample by sample."""
    row = new_row(usage)
    instance = usage.new_instances(np.array([row]))
    rows = np.array([row])
    for kind, time_ms, amount in events or ():
        at, one = np.array([time_ms * MS]), np.array([1.0])
        if kind == "cpu":
            usage.cpu_time[instance] = NEVER  # these facts know no order of samples
            usage.add_cpu(instance, at, np.array([amount]))
        elif kind == "mem":
            usage.memory.add(rows, np.array([float(amount)]), one, at)
        else:
            usage.memory.subtract(rows, np.array([float(amount)]), one, at)
    return row


def written(usage: Usage, case: vectors.Case) -> list[dict[str, Any]]:
    """The patches that upstream's writer sent for one VPA whose pods hold one container each."""
    inputs = case["in"]
    rows: dict[str, int] = {}
    instances: list[int] = []
    for container in inputs["containers"]:
        row = rows.setdefault(container, -1)
        if row < 0:
            row = rows[container] = new_row(usage)
        instances.append(int(usage.new_instances(np.array([row]))[0]))
    for kind, index, seconds, amount in inputs["events"] or ():
        time = int((inputs["base_s"] + seconds) * SECOND)
        at = np.array([instances[index]])
        if kind == "cpu":
            usage.add_cpu(at, np.array([time]), np.array([amount]))
        elif kind == "mem":
            usage.add_memory(at, np.array([time]), np.array([amount]))
        else:
            usage.record_oom(instances[index], time, amount)
    now = times.parse("2026-08-01T00:00:00Z")  # between the two years in which these histories lie
    patches = []
    for container, row in rows.items():
        feeding = [i for i, name in zip(instances, inputs["containers"], strict=True) if name == container]
        status = checkpoints.save(usage, row, now=now, instances=feeding)
        del status["lastUpdateTime"]
        patches.append(
            {
                "name": checkpoints.name("v", container),
                "op": "replace",
                "patch_type": "application/json-patch+json",
                "path": "/status",
                "value": status,
            }
        )
    return sorted(patches, key=lambda patch: str(patch["name"]))


def floats(value: Any) -> Any:
    """The facts print a whole total weight without a fraction; it is a float all the same."""
    if isinstance(value, dict):
        return {k: float(v) if k == "totalWeight" else floats(v) for k, v in value.items()}
    return [floats(entry) for entry in value] if isinstance(value, list) else value


def test_vector_checkpoints() -> None:
    usage = Usage(capacity=64)
    cases = [{**case, "out": floats(case["out"])} for case in vectors.load("checkpoints")]

    def outcome(case: vectors.Case) -> Any:
        inputs = case["in"]
        if case["kind"] == "load":
            return loaded(usage, inputs["status_json"])
        if case["kind"] == "writer":
            return written(usage, case)
        row = live(usage, inputs["events"])
        if case["kind"] == "save":
            status = saved(usage, row)
            return {"state": state(usage, row), "checkpoint": status, "reloaded": loaded(usage, status)}
        other = new_row(usage)
        checkpoints.load(usage, other, checkpoints.decode(inputs["status_json"]))
        usage.merge(row, other)
        return {"state": state(usage, row), "saved": saved(usage, row)}

    vectors.check("checkpoints", cases, outcome)
