"""Checkpoints: one container's history as a ``VerticalPodAutoscalerCheckpoint`` holds it, version v3.

The format is upstream's, both ways. Upstream takes the running window's memory peak out before it saves and
so forgets it at a restart; ours is saved the same way, and the running peaks travel in an annotation beside
the status, which upstream never reads and never touches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from vpa import times
from vpa.histograms import NEVER, LoadError, Saved
from vpa.numerics import INT64_MAX, INT64_MIN
from vpa.usage import MEMORY_WEIGHT, Usage

VERSION = "v3"
PEAKS_ANNOTATION = "vpaRunningMemoryPeaks"

MOST_PEAKS = 500
"""Running peaks kept in one annotation, the largest ones: annotations of an object share 256 KiB."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says why."""


class MalformedCheckpointError(CheckpointError):
    """A checkpoint whose fields have the wrong types, so that it cannot even be read."""


class State(NamedTuple):
    """A checkpoint's status, read. Times are nanoseconds or ``NEVER``."""

    version: str
    cpu: Saved
    memory: Saved
    first_sample: int
    last_sample: int
    sample_count: int


class RunningPeak(NamedTuple):
    """The memory peak of one pod's running window; times in nanoseconds, memory in bytes."""

    pod: str
    window_end: int
    memory_peak: int
    oom_peak: int
    newest_sample: int


def name(vpa: str, container: str) -> str:
    """The checkpoint's object name."""
    return f"{vpa}-{container}"


# Reading


def decode(status: str | bytes | Mapping[str, Any] | None) -> State:
    """Read a checkpoint's status, from JSON text or from plain data, as strictly as upstream does.

    Field names match in any case; a wrong type is a :class:`MalformedCheckpointError` naming the field.
    """
    if isinstance(status, str | bytes):
        try:
            status = json.loads(status)
        except ValueError as error:
            raise MalformedCheckpointError(f"status is not JSON: {error}") from None
    fields = _fields(status, "status")
    return State(
        version=_version(fields.get("version")),
        cpu=_histogram(fields.get("cpuhistogram"), "cpuHistogram"),
        memory=_histogram(fields.get("memoryhistogram"), "memoryHistogram"),
        first_sample=_time(fields.get("firstsamplestart"), "firstSampleStart"),
        last_sample=_time(fields.get("lastsamplestart"), "lastSampleStart"),
        sample_count=_whole(fields.get("totalsamplescount"), "totalSamplesCount", INT64_MIN, INT64_MAX),
    )


def _fields(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise MalformedCheckpointError(f"{where} is not an object")
    return {str(key).lower(): entry for key, entry in value.items()}


def _version(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedCheckpointError("version is not a text")
    return value


def _time(value: Any, where: str) -> int:
    if value is None:
        return NEVER
    if not isinstance(value, str):
        raise MalformedCheckpointError(f"{where} is not a time")
    try:
        return times.parse(value)
    except ValueError as error:
        raise MalformedCheckpointError(f"{where}: {error}") from None


def _whole(value: Any, where: str, least: int, most: int) -> int:
    if value is None:
        return 0
    if type(value) is not int or not least <= value <= most:
        raise MalformedCheckpointError(f"{where} is not a whole number from {least} to {most}")
    return value


def _histogram(value: Any, where: str) -> Saved:
    fields = _fields(value, where)
    total = fields.get("totalweight")
    if total is None:
        total = 0.0
    if type(total) not in (int, float) or not math.isfinite(total):
        raise MalformedCheckpointError(f"{where}.totalWeight is not a number")
    weights = fields.get("bucketweights")
    if weights is not None and not isinstance(weights, Mapping):
        raise MalformedCheckpointError(f"{where}.bucketWeights is not an object")
    buckets = {
        _bucket(key, where): _whole(weight, f"{where}.bucketWeights[{key}]", 0, 2**32 - 1)
        for key, weight in (weights or {}).items()
    }
    return Saved(
        weights=buckets,
        total=float(total),
        reference=_time(fields.get("referencetimestamp"), f"{where}.referenceTimestamp"),
    )


def _bucket(key: Any, where: str) -> int:
    digits = str(key)[1:] if str(key)[:1] in "+-" else str(key)
    number = int(key) if digits.isascii() and digits.isdigit() else None
    if number is None or not INT64_MIN <= number <= INT64_MAX:
        raise MalformedCheckpointError(f'{where}.bucketWeights: "{key}" is not a bucket number')
    return number


def load(usage: Usage, row: int, state: State) -> None:
    """Put a checkpoint's history into a new row; on a :class:`CheckpointError` the row is of no use."""
    if state.version != VERSION:
        raise CheckpointError(f"unsupported checkpoint version {state.version}")
    usage.first_sample[row] = state.first_sample
    usage.last_sample[row] = state.last_sample
    usage.sample_count[row] = state.sample_count
    try:
        usage.memory.load(row, state.memory)
        usage.cpu.load(row, state.cpu)
    except LoadError as error:
        raise CheckpointError(str(error)) from None


# Writing


def save(usage: Usage, row: int, *, now: int, instances: Iterable[int] = ()) -> dict[str, Any]:
    """The status of a row's checkpoint, without the running peaks of *instances*, which feed the row."""
    running = [instance for instance in instances if int(usage.window_end[instance]) > now]
    if not running:
        return encode(usage, row, now)
    copy = int(usage.new_rows(1, now)[0])
    usage.copy(row, copy)
    for instance in running:
        usage.subtract_peak(copy, instance)
    status = encode(usage, copy, now)
    usage.free_rows(np.array([copy]))
    return status


def encode(usage: Usage, row: int, now: int) -> dict[str, Any]:
    """A row as a checkpoint's status, as it is; zero values are left out as upstream leaves them out."""
    status: dict[str, Any] = {
        "lastUpdateTime": times.text(now),
        "version": VERSION,
        "cpuHistogram": _encode_histogram(usage.cpu.save(row)),
        "memoryHistogram": _encode_histogram(usage.memory.save(row)),
        "firstSampleStart": _encode_time(int(usage.first_sample[row])),
        "lastSampleStart": _encode_time(int(usage.last_sample[row])),
    }
    if usage.sample_count[row]:
        status["totalSamplesCount"] = int(usage.sample_count[row])
    return status


def _encode_histogram(saved: Saved) -> dict[str, Any]:
    result: dict[str, Any] = {"referenceTimestamp": _encode_time(saved.reference)}
    if saved.weights:
        result["bucketWeights"] = dict(sorted((str(bucket), n) for bucket, n in saved.weights.items()))
    if saved.total:
        result["totalWeight"] = saved.total
    return result


def _encode_time(time: int) -> str | None:
    return None if time == NEVER else times.text(time)


# Running peaks


def running_peaks(usage: Usage, instances: Mapping[str, int], now: int) -> list[RunningPeak]:
    """The peaks that :func:`save` leaves out, the largest first; *instances*: pod name → instance."""
    peaks = [
        RunningPeak(
            pod,
            int(usage.window_end[instance]),
            int(usage.memory_peak[instance]),
            int(usage.oom_peak[instance]),
            int(usage.memory_time[instance]),
        )
        for pod, instance in instances.items()
        if int(usage.window_end[instance]) > now
    ]
    peaks.sort(key=lambda peak: max(peak.memory_peak, peak.oom_peak), reverse=True)
    return peaks[:MOST_PEAKS]


def encode_peaks(peaks: Iterable[RunningPeak], status: Mapping[str, Any]) -> str:
    """The annotation's text. It belongs to exactly this status: another writer's status makes it void."""
    return msgspec.json.encode({"status": status["lastUpdateTime"], "peaks": list(peaks)}).decode()


def decode_peaks(
    annotations: Mapping[str, str] | None, status: Mapping[str, Any] | None
) -> list[RunningPeak]:
    """The running peaks beside a checkpoint's status; none without an annotation made for this status."""
    text = (annotations or {}).get(PEAKS_ANNOTATION)
    if text is None:
        return []
    try:
        content = msgspec.json.decode(text, type=_Peaks)
    except msgspec.DecodeError:
        return []
    return content.peaks if content.status == (status or {}).get("lastUpdateTime") else []


class _Peaks(msgspec.Struct):
    status: str
    peaks: list[RunningPeak]


def restore_peaks(usage: Usage, row: int, peaks: Iterable[RunningPeak], instances: Mapping[str, int]) -> None:
    """Add running peaks to a loaded row; a pod that still lives goes on with its window."""
    for peak in peaks:
        amount = max(peak.memory_peak, peak.oom_peak)
        usage.memory.add(
            np.array([row]),
            np.array([float(amount)]),
            np.array([MEMORY_WEIGHT]),
            np.array([peak.window_end]),
        )
        instance = instances.get(peak.pod)
        if instance is not None and usage.window_end[instance] == NEVER:
            usage.window_end[instance] = peak.window_end
            usage.memory_peak[instance] = peak.memory_peak
            usage.oom_peak[instance] = peak.oom_peak
            usage.memory_time[instance] = peak.newest_sample
