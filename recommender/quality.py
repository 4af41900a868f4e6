"""How well recommendations fit usage: upstream's ``vpa_quality_…`` metrics, from whole arrays of samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from recommender.metrics import QualityMetrics
from vpa.estimators import BOUNDS, CPU, MEMORY, RESOURCES
from vpa.numerics import Ints
from vpa.recommendations import Pass
from vpa.telemetry.metrics import size_label

NOBODY = -1
_UNCAPPED = len(BOUNDS)
_SCALE = {CPU: 1000.0, MEMORY: 1.0}
_OOM = {False: "false", True: "true"}


class Link(NamedTuple):
    """A row that feeds a container of a VPA: the container's slot, the resources, the VPA's mode and pods."""

    slot: int
    row: int
    resources: tuple[str, ...]
    mode: str
    pods: int


class Quality:
    """What is recommended for each row, and by a VPA of which mode."""

    def __init__(self, metrics: QualityMetrics) -> None:
        self.metrics = metrics
        self._modes: list[str] = []
        self._sizes: list[str] = []
        self._slots = _empty()
        self._rows = _empty()
        self._size = _empty()
        self._controls = {resource: np.zeros(0, dtype=np.bool_) for resource in RESOURCES}
        self._mode: Ints = _empty()
        self._recommended = {resource: _empty() for resource in RESOURCES}

    def link(self, links: Iterable[Link], capacity: int) -> None:
        """Take over which row feeds whom; rows that feed nobody any more have no recommendation."""
        found = list(links)
        self._slots = np.array([link.slot for link in found], dtype=np.int64)
        self._rows = np.array([link.row for link in found], dtype=np.int64)
        self._sizes = sorted({size_label(link.pods) for link in found})
        places = {size: place for place, size in enumerate(self._sizes)}
        self._size = np.array([places[size_label(link.pods)] for link in found], dtype=np.int64)
        self._modes = sorted({link.mode for link in found})
        self._mode = np.full(capacity, NOBODY, dtype=np.int64)
        modes = {mode: place for place, mode in enumerate(self._modes)}
        self._mode[self._rows] = [modes[link.mode] for link in found]
        for resource in RESOURCES:
            self._controls[resource] = np.array(
                [resource in link.resources for link in found], dtype=np.bool_
            )
            before = self._recommended[resource]
            now = np.full(capacity, -1, dtype=np.int64)
            kept = self._rows[self._rows < len(before)]
            now[kept] = before[kept]
            self._recommended[resource] = now

    def recommended(self, run: Pass) -> None:
        """New uncapped targets: how much they changed."""
        for resource in RESOURCES:
            chosen = self._controls[resource] & (run.place[self._slots] >= 0)
            rows = self._rows[chosen]
            now = run.finals[resource].amounts[_UNCAPPED, run.place[self._slots[chosen]]]
            before = self._recommended[resource][rows]
            known = before > 0
            change = now[known] / before[known] - 1
            modes, sizes = self._mode[rows[known]], self._size[chosen][known]
            for mode, name in enumerate(self._modes):
                for size, label in enumerate(self._sizes):
                    self.metrics.relative_change.observe_many(
                        change[(modes == mode) & (sizes == size)],
                        update_mode=name,
                        resource=resource,
                        vpa_size_log2=label,
                    )
            self._recommended[resource][rows] = now

    def used(self, resource: str, rows: Ints, amounts: Ints, *, oom: bool = False) -> None:
        """Accepted samples beside what was recommended for their rows."""
        inside = rows < len(self._mode)
        rows, amounts = rows[inside], amounts[inside]
        modes = self._mode[rows]
        recommended = self._recommended[resource][rows]
        for mode, name in enumerate(self._modes):
            chosen = modes == mode
            if chosen.any():
                self._observe(resource, name, amounts[chosen], recommended[chosen], oom)

    def _observe(self, resource: str, mode: str, amounts: Ints, recommended: Ints, oom: bool) -> None:
        metrics = self.metrics
        labels = {"update_mode": mode}
        missing = recommended <= 0
        known = np.where(missing, 0, recommended)
        flags = {} if resource == CPU else {"is_oom": _OOM[oom]}
        all_flags = {"resource": resource, "is_oom": _OOM[oom]}
        if missing.any():
            metrics.missing_recommendation.inc(float(missing.sum()), **labels, **all_flags)
        have = ~missing
        relative = (amounts[have] - known[have]) / known[have]
        metrics.relative_diff.observe_many(relative, **labels, **all_flags)
        gap = np.abs(amounts - known) / _SCALE[resource]
        over = known > amounts
        above = metrics.cpu_over if resource == CPU else metrics.memory_over
        below = metrics.cpu_under if resource == CPU else metrics.memory_under
        for lacking, text in ((False, "false"), (True, "true")):
            same = missing == lacking
            above.observe_many(gap[over & same], recommendation_missing=text, **labels, **flags)
            below.observe_many(gap[~over & same], recommendation_missing=text, **labels, **flags)
        present = metrics.cpu if resource == CPU else metrics.memory
        present.observe_many(known / _SCALE[resource], **labels, **flags)


def _empty() -> Ints:
    return np.zeros(0, dtype=np.int64)
