"""How long history lives: a row goes with its controller, its container's name, or when it expires. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from recommender.autoscalers import Autoscalers
from recommender.tracking import BARE, Group, GroupKey, Tracker
from vpa.histograms import NEVER
from vpa.matching import TargetKey
from vpa.numerics import Ints
from vpa.rules import Rules

PERIOD = 3600.0
"""Seconds between two searches for history that is over."""


class Known(NamedTuple):
    """What the cluster says of a controller."""

    gone: bool
    """It surely does not exist; False also where nobody knows."""
    template: frozenset[str] | None
    """Containers of its pod template; None where nobody knows."""


class Lifetimes:
    """Finds what is over, and forgets it."""

    def __init__(
        self,
        tracker: Tracker,
        autoscalers: Autoscalers,
        *,
        rules: Rules,
        controller: Callable[[TargetKey], Known],
    ) -> None:
        self._tracker = tracker
        self._autoscalers = autoscalers
        self._rules = rules
        self._controller = controller
        self._orphans: set[GroupKey] = set()
        self._touched: Ints = np.zeros(0, dtype=np.int64)

    def touch(self, rows: Ints, now: int) -> None:
        """These rows have just learned something."""
        capacity = len(self._tracker.usage.created)
        if len(self._touched) < capacity:
            missing = np.full(capacity - len(self._touched), NEVER, dtype=np.int64)
            self._touched = np.append(self._touched, missing)
        self._touched[rows] = now

    def collect(self, now: int) -> int:
        """Forget what is over at *now* (nanoseconds); how many rows went."""
        before = len(self._tracker.rows())
        if self._rules.history_by_controller:
            self._collect(now)
        else:
            self._collect_as_upstream(now)
        for group in list(self._tracker.groups.values()):
            if not group.rows and not group.pods:
                self._tracker.drop_group(group)
        return before - len(self._tracker.rows())

    def _collect(self, now: int) -> None:
        orphans = set()
        for group in list(self._tracker.groups.values()):
            known = self._known(group)
            if known.gone and not group.pods:
                # Deleted and made anew (helm, kubectl replace) is not gone: it must be missed twice.
                if group.key in self._orphans:
                    self._tracker.drop_group(group)
                else:
                    orphans.add(group.key)
                continue
            if self._rules.present_containers and (present := self._present(group, known)) is not None:
                self._tracker.release(group, [name for name in group.rows if name not in present])
        self._orphans = orphans
        self._expire(self._reference(now))

    def _known(self, group: Group) -> Known:
        served = bool(self._autoscalers.concerned(group))
        if group.key.kind == BARE:
            return Known(gone=not served, template=None)
        known = self._controller(group.key.target)
        return known._replace(gone=known.gone or (known.template is None and not served and not group.pods))

    def _present(self, group: Group, known: Known) -> frozenset[str] | None:
        """The containers that somebody names; None where that cannot be told."""
        named = frozenset(group.containers)
        for key in self._autoscalers.concerned(group):
            seen = self._autoscalers.present(self._autoscalers.served[key])
            if seen is None:
                return None
            named |= seen
        if known.template is None:
            return named or None
        return named | known.template

    def _reference(self, now: int) -> int:
        """The present as samples know it: while no usage comes at all, nothing gets older."""
        rows = self._tracker.rows()
        last = self._tracker.usage.last_sample[rows]
        newest = int(last.max(initial=NEVER))
        return now if newest == NEVER else min(now, newest)

    def _expire(self, now: int) -> None:
        usage = self._tracker.usage
        self.touch(np.zeros(0, dtype=np.int64), now)
        for group in self._tracker.groups.values():
            names = list(group.rows)
            rows = np.array([group.rows[name] for name in names], dtype=np.int64)
            sampled = usage.sample_count[rows] > 0
            newest = np.where(sampled, usage.last_sample[rows], usage.created[rows])
            newest = np.maximum(newest, self._touched[rows])  # a memory peak or a kill is news too
            over = now - newest >= usage.interval[rows] * usage.interval_count[rows]
            self._tracker.release(group, [name for name, ended in zip(names, over, strict=True) if ended])

    def _collect_as_upstream(self, now: int) -> None:
        usage = self._tracker.usage
        for group in self._tracker.groups.values():
            contributive: set[str] = set()
            for key in group.pods:
                record = self._tracker.pods[key].record
                if not record.finished or self._target_exists(group):
                    contributive.update(record.shape.names)
            names = list(group.rows)
            rows = np.array([group.rows[name] for name in names], dtype=np.int64)
            expired = usage.is_expired(rows, now)
            for name, row, ended in zip(names, rows.tolist(), expired, strict=True):
                if usage.sample_count[row] == 0 and name not in contributive:
                    self._tracker.abandon(group, name)
                elif ended:
                    self._tracker.release(group, [name])

    def _target_exists(self, group: Group) -> bool:
        return any(not self._autoscalers.served[key].problem for key in self._autoscalers.concerned(group))
