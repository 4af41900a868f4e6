"""What happens in the cluster, brought to those whom it concerns as soon as it is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from recommender.autoscalers import VpaKey
from recommender.engine import Engine
from recommender.history import HistoryReader
from recommender.loading import CHECKPOINT_SOURCE, Loader
from recommender.mirrors import Mirrors
from recommender.ooms import Kill, new_kills, standing_kills
from recommender.placement import Placement
from recommender.publisher import Publisher
from recommender.records import PodRecord
from recommender.saving import Saver
from vpa.cluster.workloads import Record
from vpa.matching import target_key
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import LimitRange


class News:
    """Handlers of all mirrors."""

    def __init__(
        self,
        mirrors: Mirrors,
        engine: Engine,
        placement: Placement,
        *,
        loader: Loader,
        saver: Saver,
        publisher: Publisher,
        history: HistoryReader,
        with_checkpoints: bool,
    ) -> None:
        self.kills: list[Kill] = []
        """Kills that were seen and not yet recorded."""
        self.killed = asyncio.Event()
        """Set when there is one that must not wait for the tick."""
        self.unresolved: set[VpaKey] = set()
        """VPAs whose target is to be looked up (again)."""
        self._mirrors = mirrors
        self._engine = engine
        self._placement = placement
        self._loader = loader
        self._saver = saver
        self._publisher = publisher
        self._history = history
        self._with_checkpoints = with_checkpoints
        self._rules = engine.rules
        self._begun = False

    def begin(self) -> None:
        """Take in everything that the mirrors hold, and from now on every change of it."""
        self._mirrors.vpas.subscribe(self._vpa_changed)
        for mirror in self._mirrors.workloads.values():
            mirror.subscribe(self._workload_changed)
        self._mirrors.pods.subscribe(self._pod_changed)
        self._mirrors.evictions.subscribe(self._evicted)
        self._mirrors.limit_ranges.subscribe(self._limits_changed)
        self._begun = True

    def add_kills(self, kills: Iterable[Kill]) -> None:
        """Containers were killed for lack of memory."""
        self.kills += kills
        if self.kills and self._rules.oom_at_once:
            self.killed.set()

    def _vpa_changed(self, old: VerticalPodAutoscaler | None, new: VerticalPodAutoscaler | None) -> None:
        present = new or old
        if present is None:
            return
        key = (present.metadata.namespace, present.metadata.name)
        before = self._engine.autoscalers.served.get(key)
        if before is not None and old is not None and new is not None:
            as_written = self._publisher.seen(old, new)
            if as_written and not _asks_anew(old, new):
                self._engine.autoscalers.update(new)
                return
        served = self._engine.vpa_changed(old, new)
        if served is None:
            if before is not None:
                self._publisher.forget(key)
                self._saver.forget(before)
                self._loader.forget(before)
                self._history.forget(before)
            self.unresolved.discard(key)
        elif before is None:
            if self._with_checkpoints and (self._rules.late_checkpoints or not self._begun):
                served.fetching.add(CHECKPOINT_SOURCE)
            self._history.expect(served)
            self.unresolved.add(key)
        elif old is not None and target_key(old) != target_key(served.vpa):
            self._loader.forgive(served)
            self._history.expect(served)
            self.unresolved.add(key)

    def _workload_changed(self, old: Record | None, new: Record | None) -> None:
        record = new or old
        if record is not None:
            self.unresolved.update(self._engine.autoscalers.at(record.key.target))

    def _pod_changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        self._placement.changed(old, new)
        if not self._begun or new is None:
            return
        if old is not None:
            self.add_kills(new_kills(old, new))
        elif self._rules.oom_while_away:
            self.add_kills(standing_kills(new))

    def _evicted(self, old: list[Kill] | None, new: list[Kill] | None) -> None:
        if self._begun and old is None and new is not None:
            self.add_kills(new)

    def _limits_changed(self, old: LimitRange | None, new: LimitRange | None) -> None:
        limit_range = new or old
        if limit_range is not None:
            namespace = limit_range.metadata.namespace
            self._engine.autoscalers.dirty.update(self._engine.autoscalers.in_namespace(namespace))


def _asks_anew(old: VerticalPodAutoscaler, new: VerticalPodAutoscaler) -> bool:
    """Whether anything but the status has changed."""
    before, after = old.metadata, new.metadata
    return (
        before.generation != after.generation
        or before.uid != after.uid
        or before.annotations != after.annotations
        or old.spec != new.spec
    )
