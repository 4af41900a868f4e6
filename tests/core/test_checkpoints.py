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


# Restarts

DAY = 86400 * SECOND
NOON = times.parse("2026-08-01T12:00:00Z")


def one_pod() -> tuple[Usage, int, int]:
    usage = Usage(capacity=4)
    row = new_row(usage)
    return usage, row, int(usage.new_instances(np.array([row]))[0])


def restarted(usage: Usage, row: int, instance: int, now: int) -> tuple[Usage, int, int]:
    """What a new process knows: the checkpoint's status and annotation, and that the pod still lives."""
    status = checkpoints.save(usage, row, now=now, instances=[instance])
    peaks = checkpoints.running_peaks(usage, {"pod-1": instance}, now)
    annotations = {checkpoints.PEAKS_ANNOTATION: checkpoints.encode_peaks(peaks, status)}
    after, new, again = one_pod()
    checkpoints.load(after, new, checkpoints.decode(status))
    found = checkpoints.decode_peaks(annotations, status)
    checkpoints.restore_peaks(after, new, found, {"pod-1": again})
    return after, new, again


def peak(usage: Usage, row: int) -> float:
    return float(usage.memory.percentiles(np.array([row]), np.array([1.0]))[0, 0])


def test_the_days_memory_peak_survives_daily_restarts() -> None:
    usage, row, instance = one_pod()
    for day in range(5):
        morning = NOON + day * DAY
        usage.add_memory(np.array([instance]), np.array([morning]), np.array([100 * 2**20]))
        usage.add_memory(np.array([instance]), np.array([morning + 3600 * SECOND]), np.array([900 * 2**20]))
        usage, row, instance = restarted(usage, row, instance, morning + 7200 * SECOND)
        assert peak(usage, row) >= 900 * 2**20
    assert usage.memory_peak[instance] == 900 * 2**20


def test_a_pod_that_lives_on_replaces_its_running_peak_after_a_restart_and_adds_none() -> None:
    usage, row, instance = one_pod()
    usage.add_memory(np.array([instance]), np.array([NOON]), np.array([400 * 2**20]))
    total = float(usage.memory.total[row])
    usage, row, instance = restarted(usage, row, instance, NOON + SECOND)
    assert float(usage.memory.total[row]) == pytest.approx(total)
    usage.add_memory(np.array([instance]), np.array([NOON + 60 * SECOND]), np.array([700 * 2**20]))
    assert float(usage.memory.total[row]) == pytest.approx(total)
    assert peak(usage, row) >= 700 * 2**20


def test_an_oom_bump_without_any_cpu_sample_survives_a_checkpoint_and_a_restart() -> None:
    usage, row, instance = one_pod()
    usage.record_oom(instance, NOON, 32 * 2**20)
    usage, row, instance = restarted(usage, row, instance, NOON + SECOND)
    assert not bool(usage.memory.is_empty(np.array([row]))[0])
    assert usage.oom_peak[instance] == 132 * 2**20
    assert usage.sample_count[row] == 0


def test_upstream_reads_a_checkpoint_with_running_peaks_as_one_of_its_own() -> None:
    usage, row, instance = one_pod()
    usage.add_memory(np.array([instance]), np.array([NOON]), np.array([400 * 2**20]))
    status = checkpoints.save(usage, row, now=NOON + SECOND, instances=[instance])
    assert set(status) == {
        "lastUpdateTime",
        "version",
        "cpuHistogram",
        "memoryHistogram",
        "firstSampleStart",
        "lastSampleStart",
    }
    assert "bucketWeights" not in status["memoryHistogram"]


def test_running_peaks_beside_a_status_that_another_writer_replaced_are_void() -> None:
    usage, row, instance = one_pod()
    usage.add_memory(np.array([instance]), np.array([NOON]), np.array([400 * 2**20]))
    status = checkpoints.save(usage, row, now=NOON + SECOND, instances=[instance])
    peaks = checkpoints.running_peaks(usage, {"pod-1": instance}, NOON + SECOND)
    annotations = {checkpoints.PEAKS_ANNOTATION: checkpoints.encode_peaks(peaks, status)}
    assert len(checkpoints.decode_peaks(annotations, status)) == 1
    other = {**status, "lastUpdateTime": "2026-08-01T13:00:00Z"}
    assert checkpoints.decode_peaks(annotations, other) == []
    assert checkpoints.decode_peaks({checkpoints.PEAKS_ANNOTATION: "{"}, status) == []
    assert checkpoints.decode_peaks(None, status) == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"version": "v3", "cpuHistogram": {"bucketWeights": {"1": 1.5}}},
            r"cpuHistogram.bucketWeights\[1\]",
        ),
        ({"version": "v3", "memoryHistogram": {"bucketWeights": {"x": 1}}}, '"x" is not a bucket number'),
        ({"version": "v3", "firstSampleStart": "yesterday"}, "firstSampleStart: .* RFC 3339"),
        ({"version": 3}, "version is not a text"),
        ([], "status is not an object"),
    ],
)
def test_a_malformed_checkpoint_is_refused_with_the_field_that_is_wrong(status: Any, words: str) -> None:
    with pytest.raises(checkpoints.MalformedCheckpointError, match=words):
        checkpoints.decode(status)
