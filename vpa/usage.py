"""Usage samples, memory peaks and OOMs of pods become histogram rows.

A *row* is one aggregated container: all replicas of one container of one workload. An *instance* is one
container of one pod; it feeds one row and remembers what is its own: its newest samples and the memory peak
of its running window. Callers keep the names; this module knows numbers only.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from vpa import batches, buckets, numerics
from vpa.durations import SECOND
from vpa.histograms import NEVER, HistogramBank
from vpa.numerics import Floats, Ints
from vpa.objects.autoscalers import ContainerPolicy
from vpa.settings import Aggregation
from vpa.slots import Slots

CPU_WEIGHT = 0.1
"""Weight of one CPU sample; the container's request does not matter."""

MEMORY_WEIGHT = 1.0
"""Weight of one memory peak."""

_PART = 8192  # samples handled at once: all that they need stays in the processor's cache
_SERIES_PART = 1 << 17  # series cost less in larger parts
_LONGEST = 2**62  # nanoseconds of history, 146 years: differences of times stay inside an int64
_WIDE = 32  # rows in one wave from which on arrays are quicker than one row after another


class OOMOutcome(enum.Enum):
    """What became of a reported OOM."""

    RECORDED = "recorded"
    TOO_OLD = "too old"
    FAILED = "failed"


class Usage:
    """The state of all rows and instances. Times are nanoseconds since the Unix epoch, amounts whole
    millicores or bytes."""

    def __init__(self, settings: Aggregation | None = None, *, capacity: int = 1024) -> None:
        self.settings = settings or Aggregation()
        self.cpu = HistogramBank(
            buckets.cpu(), half_life=self.settings.cpu_histogram_decay_half_life, capacity=capacity
        )
        self.memory = HistogramBank(
            buckets.memory(), half_life=self.settings.memory_histogram_decay_half_life, capacity=capacity
        )
        # One element per row.
        self.first_sample: Ints = np.full(capacity, NEVER, dtype=np.int64)
        self.last_sample: Ints = np.full(capacity, NEVER, dtype=np.int64)
        self.sample_count: Ints = np.zeros(capacity, dtype=np.int64)
        self.created: Ints = np.full(capacity, NEVER, dtype=np.int64)
        self.interval: Ints = np.full(capacity, self.settings.memory_aggregation_interval, dtype=np.int64)
        self.interval_count: Ints = np.full(
            capacity, self.settings.memory_aggregation_interval_count, dtype=np.int64
        )
        self.bump_ratio: Floats = np.full(capacity, self.settings.oom_bump_up_ratio)
        self.min_bump: Floats = np.full(capacity, self.settings.oom_min_bump_up_bytes)
        self.oom_count: Ints = np.zeros(capacity, dtype=np.int64)
        self.oom_time: Ints = np.full(capacity, NEVER, dtype=np.int64)  # of the last OOM
        self.oom_memory: Ints = np.zeros(capacity, dtype=np.int64)  # what the last OOM counted as
        self._rows = Slots()
        # One element per instance.
        self.row: Ints = np.zeros(capacity, dtype=np.int64)
        self.cpu_time: Ints = np.full(capacity, NEVER, dtype=np.int64)
        self.memory_time: Ints = np.full(capacity, NEVER, dtype=np.int64)
        self.window_end: Ints = np.full(capacity, NEVER, dtype=np.int64)
        self.memory_peak: Ints = np.zeros(capacity, dtype=np.int64)
        self.oom_peak: Ints = np.zeros(capacity, dtype=np.int64)
        self._instances = Slots()

    # Rows and instances

    def new_rows(self, count: int, now: int) -> Ints:
        """Take *count* empty rows with the default settings."""
        rows = self._rows.take(count)
        if self._rows.used > len(self.created):
            self._grow_rows(max(self._rows.used, 2 * len(self.created)))
        self.created[rows] = now
        self.reset_settings(rows)
        return rows

    def reset_settings(self, rows: Ints) -> None:
        """Give the rows the default window and OOM settings again."""
        self.interval[rows] = self.settings.memory_aggregation_interval
        self.interval_count[rows] = self.settings.memory_aggregation_interval_count
        self.bump_ratio[rows] = self.settings.oom_bump_up_ratio
        self.min_bump[rows] = self.settings.oom_min_bump_up_bytes

    def configure(self, rows: Ints, policy: ContainerPolicy | None) -> None:
        """Give the rows the window and OOM settings of a container policy (feature gate PerVPAConfig).

        What the policy does not say, or says without sense, stays as it is.
        """
        if policy is None:
            return
        if policy.oom_bump_up_ratio is not None:
            self.bump_ratio[rows] = policy.oom_bump_up_ratio.milli() / 1000.0
        if policy.oom_min_bump_up is not None:
            self.min_bump[rows] = policy.oom_min_bump_up.milli() / 1000.0
        if (seconds := policy.memory_aggregation_interval_seconds or 0) > 0:
            self.interval[rows] = min(seconds * SECOND, _LONGEST)
        if (count := policy.memory_aggregation_interval_count or 0) > 0:
            self.interval_count[rows] = min(count, _LONGEST)

    def clear_rows(self, rows: Ints) -> None:
        """Forget the rows' history but keep the rows."""
        self.cpu.clear(rows)
        self.memory.clear(rows)
        self.first_sample[rows] = NEVER
        self.last_sample[rows] = NEVER
        self.sample_count[rows] = 0
        self.oom_count[rows] = 0

    def free_rows(self, rows: Ints) -> None:
        """Clear the rows and let them be used again; no instance may feed them any more."""
        self.clear_rows(rows)
        self._rows.give_back(rows)

    def new_instances(self, rows: Ints) -> Ints:
        """One new instance for each element of *rows*, feeding that row."""
        instances = self._instances.take(len(rows))
        if self._instances.used > len(self.row):
            self._grow_instances(max(self._instances.used, 2 * len(self.row)))
        self.row[instances] = rows
        for times in (self.cpu_time, self.memory_time, self.window_end):
            times[instances] = NEVER
        self.memory_peak[instances] = 0
        self.oom_peak[instances] = 0
        return instances

    def free_instances(self, instances: Ints) -> None:
        """The pods of these instances are gone."""
        self._instances.give_back(instances)

    def _grow_rows(self, capacity: int) -> None:
        self.cpu.grow(capacity)
        self.memory.grow(capacity)
        self.first_sample = _longer(self.first_sample, capacity, NEVER)
        self.last_sample = _longer(self.last_sample, capacity, NEVER)
        self.sample_count = _longer(self.sample_count, capacity, 0)
        self.created = _longer(self.created, capacity, NEVER)
        self.oom_count = _longer(self.oom_count, capacity, 0)
        self.oom_time = _longer(self.oom_time, capacity, NEVER)
        self.oom_memory = _longer(self.oom_memory, capacity, 0)
        self.interval = _longer(self.interval, capacity, 0)
        self.interval_count = _longer(self.interval_count, capacity, 0)
        self.bump_ratio = np.append(self.bump_ratio, np.zeros(capacity - len(self.bump_ratio)))
        self.min_bump = np.append(self.min_bump, np.zeros(capacity - len(self.min_bump)))

    def _grow_instances(self, capacity: int) -> None:
        self.row = _longer(self.row, capacity, 0)
        self.cpu_time = _longer(self.cpu_time, capacity, NEVER)
        self.memory_time = _longer(self.memory_time, capacity, NEVER)
        self.window_end = _longer(self.window_end, capacity, NEVER)
        self.memory_peak = _longer(self.memory_peak, capacity, 0)
        self.oom_peak = _longer(self.oom_peak, capacity, 0)

    # CPU

    def add_cpu(
        self,
        instances: Ints,
        times: Ints,
        millicores: Ints,
        *,
        weights: Floats | None = None,
        counts: Ints | None = None,
    ) -> NDArray[np.bool_]:
        """Add CPU samples in order; return which were accepted, ``bool[n]``.

        A sample is rejected when it is negative or not newer than the instance's newest accepted one. Its
        *weight* is 0.1 and it counts as one sample unless given.
        """
        if weights is None:
            weights = np.full(len(times), CPU_WEIGHT)
        if counts is None:
            counts = np.ones(len(times), dtype=np.int64)
        return batches.in_parts(_PART, self._add_cpu, instances, times, millicores, weights, counts)

    def _add_cpu(
        self, instances: Ints, times: Ints, millicores: Ints, weights: Floats, counts: Ints
    ) -> NDArray[np.bool_]:
        where = batches.compact(instances)
        newest = self.cpu_time[where]
        if not isinstance(where, slice) and not batches.is_distinct(instances):
            valid_times = np.where(millicores >= 0, times, NEVER)
            newest = batches.running_maximum(instances, valid_times, newest)
        accepted = (millicores >= 0) & (times > newest)
        if not accepted.all():
            times, millicores = times[accepted], millicores[accepted]
            weights, counts = weights[accepted], counts[accepted]
            where = instances[accepted]
        batches.fold(np.maximum, self.cpu_time, where, times)
        rows = self.row[where]
        self.cpu.add_to_buckets(rows, self.cpu.layout.find_amounts(millicores), weights, times)
        where = batches.compact(rows)
        batches.fold(np.maximum, self.last_sample, where, times)
        unset = self.first_sample[where] == NEVER
        if unset.any():
            self.first_sample[rows[unset]] = numerics.INT64_MAX
        batches.fold(np.minimum, self.first_sample, where, times)
        batches.fold(np.add, self.sample_count, where, counts)
        return accepted

    # Memory

    def add_memory(self, instances: Ints, times: Ints, amounts: Ints) -> NDArray[np.bool_]:
        """Add memory samples in order; return which were accepted, ``bool[n]``.

        A sample is rejected when it is negative or older than the instance's newest accepted one. Of each
        window only the largest sample stays in the histogram.
        """
        if isinstance(batches.compact(instances), slice) or batches.is_distinct(instances):
            return self._add_round(instances, times, amounts)
        return batches.in_parts(_SERIES_PART, self._add_series, instances, times, amounts)

    def _add_round(self, instances: Ints, times: Ints, amounts: Ints) -> NDArray[np.bool_]:
        """At most one sample per instance, as a poll brings them: few of them change a peak."""
        accepted = np.empty(len(instances), dtype=np.bool_)
        changing = np.empty(len(instances), dtype=np.bool_)
        for start in range(0, len(instances), _PART):
            part = slice(start, start + _PART)
            where = batches.compact(instances[part])
            fine = (amounts[part] >= 0) & (times[part] >= self.memory_time[where])
            accepted[part] = fine
            if fine.all():
                self.memory_time[where] = times[part]
            else:
                self.memory_time[instances[part][fine]] = times[part][fine]
            peaks = np.maximum(self.memory_peak[where], self.oom_peak[where])
            opens = times[part] >= self.window_end[where]  # also where no window was opened yet
            changing[part] = fine & (opens | ((amounts[part] > peaks) & (peaks != 0)))
        if changing.any():
            self._add_peaks(instances[changing], times[changing], amounts[changing], oom=False)
        return accepted

    def _add_peaks(self, instances: Ints, times: Ints, amounts: Ints, *, oom: bool) -> None:
        """Start new windows, or raise the peaks of the running ones; the instances are distinct."""
        ends = self.window_end[instances]
        ends = np.where(ends == NEVER, times, ends)
        peaks = np.maximum(self.memory_peak[instances], self.oom_peak[instances])
        opens = times >= ends
        if opens.any():
            interval = self.interval[self.row[instances]]
            ends = np.where(opens, ends + (times - ends) // interval * interval + interval, ends)
            peaks = np.where(opens, 0, peaks)
            self.memory_peak[instances[opens]] = 0
            self.oom_peak[instances[opens]] = 0
        self.window_end[instances] = ends
        self._replace(instances, ends, peaks, amounts)
        (self.oom_peak if oom else self.memory_peak)[instances] = amounts

    def _add_series(self, instances: Ints, times: Ints, amounts: Ints) -> NDArray[np.bool_]:
        """Several samples per instance, in order: the same as one after another, without a loop.

        Windows are locked to the first sample of an instance, so a sample's time tells its window. A sample
        changes the histogram when it is the first of a new window or larger than all before it there.
        """
        newest = self.memory_time[instances]
        newest = batches.running_maximum(instances, np.where(amounts >= 0, times, NEVER), newest)
        accepted = (amounts >= 0) & (times >= newest)
        instances, times, amounts = instances[accepted], times[accepted], amounts[accepted]
        if len(instances) == 0:
            return accepted
        np.maximum.at(self.memory_time, instances, times)
        rank = batches.occurrence(instances)
        start = np.full(len(self.row), NEVER, dtype=np.int64)
        start[instances[rank == 0]] = times[rank == 0]
        origin = self.window_end[instances]
        origin = np.where(origin == NEVER, start[instances], origin)
        interval = self.interval[self.row[instances]]
        window = np.where(times < origin, 0, (times - origin) // interval + 1)
        ends = origin + window * interval
        group = np.unique(instances * (window.max() + 1) + window, return_inverse=True)[1]
        opens = (batches.occurrence(group) == 0) & (window > 0)
        standing = np.maximum(self.memory_peak[instances], self.oom_peak[instances])
        peaks = batches.running_maximum(group, amounts, np.where(window == 0, standing, 0))
        # A window that starts at 0 bytes stays at 0, as upstream's does.
        blocked = np.zeros(int(group.max()) + 1, dtype=np.bool_)
        blocked[group[opens & (amounts == 0)]] = True
        blocked[group[(window == 0) & (standing == 0)]] = True
        changed = opens | (~blocked[group] & (amounts > peaks))
        self._replace(
            instances[changed],
            ends[changed],
            np.where(opens, 0, peaks)[changed],
            amounts[changed],
        )
        last = np.flatnonzero(batches.is_last(instances))
        final_window = np.zeros(len(self.row), dtype=np.int64)
        final_window[instances[last]] = window[last]
        moved = instances[last[window[last] > 0]]
        self.memory_peak[moved] = 0
        self.oom_peak[moved] = 0
        self.window_end[instances[last]] = ends[last]
        standing_peak = changed & (window == final_window[instances])
        self.memory_peak[instances[standing_peak]] = amounts[standing_peak]  # in order: the last one stays
        return accepted

    def _replace(self, instances: Ints, ends: Ints, old: Ints, new: Ints) -> None:
        """Take each window's old peak (0: none) out of the histogram and put the new one in, in order."""
        rows = self.row[instances]
        layout = self.memory.layout
        leaving, arriving = np.split(layout.find_amounts(np.concatenate((old, new))), 2)
        weights = np.full(len(rows), MEMORY_WEIGHT)
        wide, long = batches.wide_waves(rows, _WIDE)
        for wave in wide:
            out = wave[old[wave] != 0]
            if len(out):
                self.memory.subtract_from_buckets(rows[out], leaving[out], weights[out], ends[out])
            self.memory.add_to_buckets(rows[wave], arriving[wave], weights[wave], ends[wave])
        leaving = np.where(old == 0, -1, leaving)
        for run in long:
            self.memory.replace(int(rows[run[0]]), leaving[run], arriving[run], weights[run], ends[run])

    # OOM

    def record_oom(self, instance: int, time: int, memory: int) -> OOMOutcome:
        """Record that an instance was killed at *time* while it requested, or used, *memory* bytes.

        The evidence is the larger of that and of the window's usage peak, never an earlier bump, so repeated
        kills at one size don't add up.
        """
        row = int(self.row[instance])
        newest = int(self.memory_time[instance])
        if newest != NEVER and time < newest - int(self.interval[row]):
            return OOMOutcome.TOO_OLD
        used = max(memory, int(self.memory_peak[instance]))
        bump = int(numerics.to_amounts(np.array([self.min_bump[row]]))[0])
        scaled = int(numerics.scale(np.array([used]), float(self.bump_ratio[row]))[0])
        needed = max(used + bump, scaled)
        if needed < 0:
            return OOMOutcome.FAILED
        self.memory_time[instance] = time
        peak = max(int(self.memory_peak[instance]), int(self.oom_peak[instance]))
        if time >= int(self.window_end[instance]) or 0 < peak < needed:
            self._add_peaks(np.array([instance]), np.array([time]), np.array([needed]), oom=True)
        self.oom_count[row] += 1
        self.oom_time[row] = time
        self.oom_memory[row] = needed
        return OOMOutcome.RECORDED

    # Rows as wholes

    def merge(self, target: int, source: int) -> None:
        """Add row *source* to row *target*; the source's reference times may move, as upstream's do."""
        self.cpu.merge(target, source)
        self.memory.merge(target, source)
        first = int(self.first_sample[source])
        if self.first_sample[target] == NEVER or (first != NEVER and first < self.first_sample[target]):
            self.first_sample[target] = first
        self.last_sample[target] = max(self.last_sample[target], self.last_sample[source])
        self.sample_count[target] += self.sample_count[source]
        if self.oom_count[source] and self.oom_time[source] >= self.oom_time[target]:
            self.oom_time[target] = self.oom_time[source]
            self.oom_memory[target] = self.oom_memory[source]
        self.oom_count[target] += self.oom_count[source]

    def copy(self, source: int, target: int) -> None:
        """Make row *target* equal to row *source*."""
        self.cpu.copy(source, target)
        self.memory.copy(source, target)
        own = (self.first_sample, self.last_sample, self.sample_count)
        for column in (*own, self.oom_count, self.oom_time, self.oom_memory):
            column[target] = column[source]

    def subtract_peak(self, row: int, instance: int) -> None:
        """Take an instance's running peak out of a row's memory histogram."""
        peak = max(int(self.memory_peak[instance]), int(self.oom_peak[instance]))
        self.memory.subtract(
            np.array([row]),
            np.array([float(peak)]),
            np.array([MEMORY_WEIGHT]),
            self.window_end[[instance]],
        )

    def is_expired(self, rows: Ints, now: int) -> NDArray[np.bool_]:
        """Whether the newest CPU sample, or without any the creation, is a whole history length ago."""
        newest = np.where(self.sample_count[rows] == 0, self.created[rows], self.last_sample[rows])
        interval, count = self.interval[rows], self.interval_count[rows]
        length = np.where(count > _LONGEST // interval, _LONGEST, interval * count)
        return np.where(newest == NEVER, True, now - np.where(newest == NEVER, now, newest) >= length)


def _longer(column: Ints, capacity: int, value: int) -> Ints:
    return np.append(column, np.full(capacity - len(column), value, dtype=np.int64))
