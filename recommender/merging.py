"""History from Prometheus joins what rows know already, so that no sample counts twice.

While history is on its way, a VPA sees its checkpoints, or a first impression of history, in rows of its own
(``Served.initial``) beside the rows that present usage goes into. When all history of a controller is there,
both become one with the controller's rows. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recommender.autoscalers import Autoscalers, HistoryState, Served, VpaKey
from recommender.tracking import GroupKey, Tracker
from vpa.histograms import NEVER
from vpa.knowledge import NOTHING, of_row
from vpa.matching import TargetKey
from vpa.metrics.history.batches import HistoryBatch
from vpa.metrics.history.merging import Merge, merge
from vpa.metrics.history.tables import Points
from vpa.numerics import INT64_MAX, Floats, Ints
from vpa.times import SECOND
from vpa.usage import MEMORY_WEIGHT, Usage

PART = 16_384
"""So many samples are fed before others may run."""

Change = Callable[[Ints, Floats, Floats, Ints], None]
"""What adds samples to a histogram, or takes them out: rows, values, weights, times."""


_ALL = Merge(replaces=True, after=None, until=None)


@dataclass(slots=True)
class _Place:
    """One container of one controller."""

    target: TargetKey
    name: str
    row: int
    """A row of its own, until it is joined."""
    numbers: list[int] = field(default_factory=list)
    """Its containers of pods, as the batch numbers them."""
    merge: Merge = _ALL


class Join:
    """One batch of history on its way into rows.

    Feed it (`feed`), then `impress` or `complete`, and in any case `close`.
    """

    def __init__(self, tracker: Tracker, autoscalers: Autoscalers, batch: HistoryBatch, *, now: int) -> None:
        """*now*: nanoseconds."""
        self._tracker = tracker
        self._autoscalers = autoscalers
        self._batch = batch
        self._now = now
        self.targets = tuple(TargetKey(one.namespace, one.kind, one.name) for one in batch.targets)
        self._places: dict[tuple[TargetKey, str], _Place] = {}
        self._instances: Ints = np.full(len(batch.containers), -1, dtype=np.int64)
        self._find_places()
        for place in self._places.values():
            place.merge = self._decide(place)
        self._prepare()

    def readers(self, target: TargetKey) -> list[Served]:
        """The VPAs that wait for the history of a controller."""
        found = (self._autoscalers.served[key] for key in self._autoscalers.at(target))
        return [served for served in found if served.history is not HistoryState.SETTLED]

    def _find_places(self) -> None:
        present = {target: self._present(target) for target in self.targets}
        for number, container in enumerate(self._batch.containers):
            key = (TargetKey(container.namespace, container.kind, container.controller), container.name)
            named = present[key[0]]
            if named is not None and container.name not in named:
                continue
            if key not in self._places:
                self._places[key] = _Place(*key, int(self._tracker.usage.new_rows(1, self._now)[0]))
            self._places[key].numbers.append(number)

    def _present(self, target: TargetKey) -> frozenset[str] | None:
        """The containers whose history matters; None: all."""
        named: frozenset[str] = frozenset()
        for served in self.readers(target):
            seen = self._autoscalers.present(served)
            if seen is None:
                return None
            named |= seen
        return named

    # What counts

    def _decide(self, place: _Place) -> Merge:
        usage = self._tracker.usage
        first = [
            int(points.of(number)[0][0])
            for points in (self._batch.cpu, self._batch.memory)
            for number in place.numbers
            if len(points.of(number)[0])
        ]
        stored = self._stored(place)
        live = [
            int(usage.first_sample[row])
            for row in self._live_rows(place)
            if usage.first_sample[row] not in (NEVER, INT64_MAX)
        ]
        return merge(
            history_first=min(first, default=None),
            checkpoint_first=None if stored is None else int(usage.first_sample[stored]),
            checkpoint_last=None if stored is None else int(usage.last_sample[stored]),
            live_first=min(live, default=None),
        )

    def _stored(self, place: _Place) -> int | None:
        """The row of the checkpoint that knows most; None without one that has samples."""
        usage = self._tracker.usage
        rows = [
            served.initial[place.name]
            for served in self.readers(place.target)
            if place.name in served.initial and place.name not in served.impressions
        ]
        best = max(rows, key=lambda row: int(usage.sample_count[row]), default=None)
        return best if best is not None and usage.first_sample[best] != NEVER else None

    def _live_rows(self, place: _Place) -> list[int]:
        groups = list(self._tracker.at(place.target))
        groups += [group for served in self.readers(place.target) for group in served.groups]
        return [group.rows[place.name] for group in groups if place.name in group.rows]

    # Feeding

    def _prepare(self) -> None:
        """One instance for each container of a pod; windows go on in the rhythm of the pod that lives."""
        usage, batch = self._tracker.usage, self._batch
        for place in self._places.values():
            live = self._live_rows(place)
            if live:
                for column in (usage.interval, usage.interval_count):
                    column[place.row] = column[live[0]]
            rows = np.full(len(place.numbers), place.row, dtype=np.int64)
            self._instances[place.numbers] = usage.new_instances(rows)
            if place.merge.after is None:
                continue
            for number in place.numbers:
                instance = self._living(number)
                if instance is not None and usage.window_end[instance] != NEVER:
                    interval = int(usage.interval[place.row])
                    end = int(usage.window_end[instance])
                    back = max(-(-(end - place.merge.after) // interval), 0)
                    usage.window_end[self._instances[number]] = end - back * interval
        self._after: Ints = np.full(len(batch.containers), NEVER, dtype=np.int64)
        self._until: Ints = np.full(len(batch.containers), INT64_MAX, dtype=np.int64)
        for place in self._places.values():
            if place.merge.after is not None:
                self._after[place.numbers] = place.merge.after
            if place.merge.until is not None:
                self._until[place.numbers] = place.merge.until

    def _living(self, number: int) -> int | None:
        """The instance of a container that is still there."""
        one = self._batch.containers[number]
        return self._tracker.find(one.namespace, one.pod, one.name)

    def feed(self) -> Iterator[None]:
        """Feed all samples that count; let others run at each step."""
        usage, batch = self._tracker.usage, self._batch
        for index, times, values in _parts(self._counting(batch.cpu)):
            share = self._share(index, times)
            counts = np.rint(batch.count * share).astype(np.int64)
            some = counts > 0
            usage.add_cpu(
                self._instances[index[some]],
                times[some],
                values[some],
                weights=batch.weight * share[some],
                counts=counts[some],
            )
            yield
        memory = self._counting(batch.memory)
        goes_on = self._after != NEVER
        for chosen in (_only(memory, ~goes_on).thinned(self._intervals()), _only(memory, goes_on)):
            for index, times, values in _parts(chosen):
                usage.add_memory(self._instances[index], times, values)
                yield

    def _counting(self, points: Points) -> Points:
        """The points that count."""
        of, times = points.index, points.times
        counts = (self._instances[of] >= 0) & (times > self._after[of]) & (times <= self._until[of])
        return _chosen(points, counts)

    def _share(self, index: Ints, times: Ints) -> Floats:
        """How much of each point counts: it tells of the step before it, a part of which may be known."""
        share = np.ones(len(index))
        if self._batch.count > 1:
            after = self._after[index]
            bounded = after != NEVER
            new = (times[bounded] - after[bounded]) / (self._batch.grid.step * SECOND)
            share[bounded] = np.minimum(new, 1.0)
        return share

    def _intervals(self) -> Ints:
        """The length of the memory windows of each container, nanoseconds."""
        usage = self._tracker.usage
        found = np.full(len(self._instances), usage.settings.memory_aggregation_interval, dtype=np.int64)
        wanted = self._instances >= 0
        found[wanted] = usage.interval[usage.row[self._instances[wanted]]]
        return found

    # Joining

    def impress(self) -> set[VpaKey]:
        """The newest days are there: each VPA sees them beside its rows. Returns the VPAs concerned."""
        usage = self._tracker.usage
        for place in self._places.values():
            if not place.merge.replaces or of_row(usage, place.row) == NOTHING:
                continue
            for served in self.readers(place.target):
                row = served.initial.get(place.name)
                if row is None:
                    row = served.initial[place.name] = int(usage.new_rows(1, self._now)[0])
                usage.copy(place.row, row)
                served.impressions.add(place.name)
        return self._concerned()

    def complete(self) -> tuple[set[VpaKey], Ints]:
        """All is there: history, checkpoints and rows become one. Returns the VPAs and rows concerned."""
        usage = self._tracker.usage
        rows: list[int] = []
        for place in self._places.values():
            stored = self._stored(place)
            if stored is not None and not place.merge.replaces:
                usage.merge(place.row, stored)
            if self._autoscalers.by_controller:
                group = self._tracker.group(GroupKey(*place.target))
                row = self._tracker.row(group, place.name, self._now)
                _bring(usage, place.row, row)
                for number in place.numbers:
                    instance = self._living(number)
                    if instance is not None:
                        hand_over(usage, int(self._instances[number]), instance, row)
                rows.append(row)
            for served in self.readers(place.target):
                drop_initial(self._tracker, served, place.name)
                if not self._autoscalers.by_controller:
                    own = served.initial[place.name] = int(usage.new_rows(1, self._now)[0])
                    usage.copy(place.row, own)
        concerned = self._concerned()
        for target in self.targets:
            for served in self.readers(target):
                settle(self._tracker, self._autoscalers, served, now=self._now)
        return concerned, np.array(rows, dtype=np.int64)

    def _concerned(self) -> set[VpaKey]:
        keys = {served.key for target in self.targets for served in self.readers(target)}
        self._autoscalers.dirty |= keys
        return keys

    def close(self) -> None:
        """Give back what was only needed on the way."""
        usage = self._tracker.usage
        usage.free_instances(self._instances[self._instances >= 0])
        usage.free_rows(np.array([place.row for place in self._places.values()], dtype=np.int64))


def settle(tracker: Tracker, autoscalers: Autoscalers, served: Served, *, now: int) -> None:
    """No (more) history is to come: checkpoints that history did not replace join the controller's rows."""
    served.history = HistoryState.SETTLED
    autoscalers.dirty.add(served.key)
    served.impressions.clear()
    if not autoscalers.by_controller or served.controller is None:
        return
    usage = tracker.usage
    for name, row in list(served.initial.items()):
        own = tracker.row(tracker.group(GroupKey(*served.controller)), name, now)
        first = usage.first_sample[own]
        if first == NEVER or usage.last_sample[row] < first:
            _bring(usage, row, own)
        elif of_row(usage, own).is_less_than(of_row(usage, row)):
            usage.copy(row, own)  # both tell of the same time; the one that knows more stays
        drop_initial(tracker, served, name)


def drop_initial(tracker: Tracker, served: Served, container: str) -> None:
    """The VPA's own row of a container is needed no more."""
    row = served.initial.pop(container, None)
    if row is not None:
        tracker.usage.free_rows(np.array([row], dtype=np.int64))


def _parts(points: Points) -> Iterator[tuple[Ints, Ints, Ints]]:
    """(index, times, values) of all points, some at a time."""
    for start in range(0, len(points.index), PART):
        part = slice(start, start + PART)
        yield points.index[part], points.times[part], points.values[part]


def _only(points: Points, containers: NDArray[np.bool_]) -> Points:
    return _chosen(points, containers[points.index])


def _chosen(points: Points, chosen: NDArray[np.bool_]) -> Points:
    index = points.index[chosen]
    return Points(
        index=index,
        times=points.times[chosen],
        values=points.values[chosen],
        ends=np.searchsorted(index, np.arange(len(points.ends)), side="right"),
    )


def _bring(usage: Usage, source: int, row: int) -> None:
    if of_row(usage, row) == NOTHING:
        usage.copy(source, row)
    else:
        usage.merge(row, source)


def hand_over(usage: Usage, past: int, present: int, row: int) -> None:
    """A pod that lives goes on where history left it: its running window is one, not two.

    *past*: the instance that was fed from history, whose peaks are in *row* by now; *present*: the pod's own.
    """
    usage.cpu_time[present] = max(usage.cpu_time[present], usage.cpu_time[past])
    if usage.window_end[past] == NEVER or not usage.memory_peak[past]:
        return
    end, peak = int(usage.window_end[past]), int(usage.memory_peak[past])
    own = int(usage.row[present])
    standing = max(int(usage.memory_peak[present]), int(usage.oom_peak[present]))
    fresh = usage.window_end[present] == NEVER
    if not fresh and usage.memory_time[present] >= end:
        return  # the window of history was over before the one that runs began
    if not fresh or own != row:
        _peak(usage.memory.subtract, row, peak, end)
        if not fresh and standing:
            _peak(usage.memory.subtract, own, standing, int(usage.window_end[present]))
        _peak(usage.memory.add, own, max(peak, standing), end)
    usage.memory_peak[present] = max(int(usage.memory_peak[present]), peak)
    usage.window_end[present] = end
    usage.memory_time[present] = max(usage.memory_time[present], usage.memory_time[past])


def move_peak(usage: Usage, instance: int, row: int) -> None:
    """The instance's running peak, which lies in *row*, goes to the row that the instance feeds."""
    peak = max(int(usage.memory_peak[instance]), int(usage.oom_peak[instance]))
    if peak:
        _peak(usage.memory.subtract, row, peak, int(usage.window_end[instance]))
        _peak(usage.memory.add, int(usage.row[instance]), peak, int(usage.window_end[instance]))


def _peak(change: Change, row: int, peak: int, end: int) -> None:
    change(np.array([row]), np.array([float(peak)]), np.array([MEMORY_WEIGHT]), np.array([end]))
