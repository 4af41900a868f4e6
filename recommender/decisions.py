"""From rows to what each VPA's status is to say, and which of that is worth a write now. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from recommender.autoscalers import Autoscalers, HistoryState, PartKey, Served, VpaKey
from recommender.metrics import ObjectLabels, RecommenderMetrics
from recommender.quality import Link, Quality
from recommender.schedule import spread
from recommender.tracking import Tracker
from vpa import conditions, statuses
from vpa.capped import CAPPED
from vpa.conditions import (
    CONFIG_DEPRECATED,
    CONFIG_UNSUPPORTED,
    CONFLICT,
    FETCHING_HISTORY,
    LOW_CONFIDENCE,
    NO_PODS_MATCHED,
    RECOMMENDATION_PROVIDED,
)
from vpa.modes import RECREATE
from vpa.objects.autoscalers import (
    Condition,
    Recommendation,
    VerticalPodAutoscaler,
)
from vpa.objects.pods import Pod
from vpa.recommendations import Pass, Roster
from vpa.rules import Rules
from vpa.scopes import scope_label
from vpa.settings import Estimation
from vpa.sizes.limit_ranges import NO_RANGES, Ranges
from vpa.statuses import Difference, Known, Wanted

UPSTREAM_OWNED = frozenset({RECOMMENDATION_PROVIDED, NO_PODS_MATCHED, CONFIG_UNSUPPORTED, CONFIG_DEPRECATED})
OWNED = UPSTREAM_OWNED | {LOW_CONFIDENCE, FETCHING_HISTORY, CONFLICT, CAPPED}
"""Types of conditions that only the recommender writes."""

PROMETHEUS = "Prometheus"
_AWAITED = (HistoryState.FIRST, HistoryState.READING)

DRIFT = 3600.0
"""Seconds within which even small changes of bounds are written."""


class Verdict(NamedTuple):
    """What is to be written, and the pass that it comes from."""

    writes: dict[VpaKey, Wanted]
    run: Pass


class Decisions:
    """Decides what statuses are to say."""

    def __init__(
        self,
        tracker: Tracker,
        roster: Roster,
        autoscalers: Autoscalers,
        quality: Quality,
        metrics: RecommenderMetrics,
        *,
        rules: Rules,
        estimation: Estimation,
        threshold: float,
        ranges: Mapping[str, Ranges],
    ) -> None:
        """*threshold*: the share by which a bound must move to be written at once. *ranges*: namespace → its
        LimitRanges."""
        self._tracker = tracker
        self._roster = roster
        self._autoscalers = autoscalers
        self._quality = quality
        self._metrics = metrics
        self._rules = rules
        self._estimation = estimation
        self._threshold = threshold
        self._ranges = ranges
        self._looked: set[VpaKey] = set()
        self._young: set[VpaKey] = set()
        self._drifting: dict[VpaKey, float] = {}
        self._provided: set[VpaKey] = set()
        self._labels: dict[VpaKey, ObjectLabels] = {}
        self.fetch_failed = False
        """History cannot be fetched at the moment, which is worth a condition."""

    def forget(self, key: VpaKey) -> None:
        """The VPA is not ours any more."""
        for known in (self._looked, self._young, self._provided):
            known.discard(key)
        self._drifting.pop(key, None)
        self._labels.pop(key, None)

    # Looking

    def refresh(self) -> list[Served]:
        """Take in what has changed since the last time, and return the VPAs that it concerns."""
        changed, self._tracker.changed = self._tracker.changed, {}
        dirty = self._autoscalers.dirty
        for group in changed.values():
            dirty |= self._autoscalers.concerned(group)
        looked = [self._autoscalers.served[key] for key in dirty if key in self._autoscalers.served]
        dirty.clear()
        for served in looked:
            self._autoscalers.look(served)
            self._looked.add(served.key)
        if looked:
            self._quality.link(self._links(), len(self._tracker.usage.created))
        return looked

    def _links(self) -> Iterable[Link]:
        for served in self._autoscalers:
            mode = _written_mode(served.vpa)
            for scope, sight in served.parts.items():
                for container in self._roster.containers(served.part(scope)):
                    for row in sight[container.name]:
                        yield Link(container.slot, row, container.resources, mode, served.pods)

    # Deciding

    def decide(self, *, now: datetime, clock: float, keys: Collection[VpaKey] | None = None) -> Verdict:
        """What is to be written of all VPAs, or of *keys*; :meth:`refresh` comes first.

        *now*: the wall clock; *clock*: a monotonic one, seconds.
        """
        parts = None
        if keys is not None:
            parts = [part for key in keys for part in self._autoscalers.served[key].part_keys()]
        run = self._roster.run(parts)
        clearly, slightly = self._roster.moved(run, self._threshold)
        for key in _vpas(slightly):
            self._drifting.setdefault(key, clock + DRIFT * (0.5 + 0.5 * spread(key)))
        looked, self._looked = (
            (self._looked, set()) if keys is None else (set(keys), self._looked - set(keys))
        )
        due = {key for key, at in self._drifting.items() if at <= clock and (keys is None or key in keys)}
        writes: dict[VpaKey, Wanted] = {}
        for key in _vpas(clearly) | looked | due | self._grown_up(keys):
            served = self._autoscalers.served.get(key)
            if served is None or not served.resolved or (keys is not None and key not in keys):
                continue
            wanted = self._wanted(served, run)
            found = statuses.difference(served.vpa.status, wanted, threshold=self._threshold, now=now)
            if found is Difference.CLEAR or (found is Difference.DRIFT and key in due):
                writes[key] = wanted
                self._drifting.pop(key, None)
            elif found is Difference.DRIFT:
                self._drifting.setdefault(key, clock + DRIFT * (0.5 + 0.5 * spread(key)))
            else:
                self._drifting.pop(key, None)
            if wanted.recommendation is not None:
                for part in served.part_keys():
                    self._roster.mark_published(part, run)
            self._note(served, wanted, now)
        return Verdict(writes, run)

    def _grown_up(self, keys: Collection[VpaKey] | None) -> set[VpaKey]:
        """VPAs, of *keys* or of all, of which a day of usage is known by now."""
        young = [key for key in self._young if keys is None or key in keys]
        return {key for key in young if self._days(self._autoscalers.served[key]) >= 1}

    def _days(self, served: Served) -> float:
        """How many days of usage are known of the VPA's containers, the least of them; 0 without any."""
        return min((self._roster.confidence(part) for part in served.part_keys()), default=0.0)

    # Wishes

    def _wanted(self, served: Served, run: Pass) -> Wanted:
        generation = served.vpa.metadata.generation
        if served.fetching:
            told = self._rules.more_conditions and self.fetch_failed
            return Wanted(generation, None, conditions=statuses.fetching(served.fetching) if told else {})
        if served.history is HistoryState.FIRST and self._days(served) < 1:
            told = self._rules.more_conditions
            return Wanted(generation, None, conditions=statuses.fetching([PROMETHEUS]) if told else {})
        recommendation, groups = Recommendation(), None
        if scope_label(served.vpa):
            parts = ((scope, self._part(served.part(scope), run)) for scope in served.parts)
            groups = statuses.by_scope(parts)
        elif None in served.parts:
            recommendation = self._part(served.part(None), run)
        days = self._days(served)
        young = days < 1 and self._rules.more_conditions
        (self._young.add if young else self._young.discard)(served.key)
        known = Known(
            recommendation=recommendation,
            groups=groups,
            pods=served.pods,
            days=days,
            problem=served.problem,
            unreadable=served.temporary,
            awaited=[PROMETHEUS] if served.history in _AWAITED else [],
            rivals=[vpa.metadata.name for vpa in self._autoscalers.rivals(served)],
            pod=self._some_pod(served) if self._rules.more_conditions else None,
            ranges=self._ranges.get(served.key[0], NO_RANGES),
        )
        return statuses.wanted(served.vpa, known, rules=self._rules)

    def _part(self, part: PartKey, run: Pass) -> Recommendation:
        return self._roster.recommendation(part, run)

    def _some_pod(self, served: Served) -> Pod | None:
        """One pod of the VPA that runs; the first by name, so that the answer does not change by chance."""
        names = (key for group in served.groups for key in group.pods)
        running = (key for key in names if not self._tracker.pods[key].record.finished)
        chosen = min(running, default=None)
        if chosen is None:
            return None
        record = self._tracker.pods[chosen].record
        return record.shape.pod(record)

    # Figures

    def _note(self, served: Served, wanted: Wanted, now: datetime) -> None:
        """Keep the figures about VPAs up to date."""
        had = conditions.is_true(_present(served), RECOMMENDATION_PROVIDED)
        state = wanted.conditions.get(RECOMMENDATION_PROVIDED)
        provided = had if state is None else state.status == conditions.TRUE
        if provided and not had and served.key not in self._provided:
            created = served.vpa.metadata.creation_timestamp or now
            self._metrics.recommendation_latency.observe((now - created).total_seconds())
        (self._provided.add if provided else self._provided.discard)(served.key)
        self._labels[served.key] = ObjectLabels(
            update_mode=_written_mode(served.vpa) or RECREATE,
            has_recommendation=str(provided).lower(),
            api="v1",
            matches_pods=str(served.pods > 0).lower(),
            unsupported_config=str(bool(served.problem)).lower(),
        )

    def publish_figures(self, run: Pass) -> None:
        """Set the metrics about VPAs and their recommendations."""
        self._metrics.publish_objects(Counter(self._labels.values()))
        self._quality.recommended(run)


def _vpas(parts: Iterable[object]) -> set[VpaKey]:
    return {(part.namespace, part.name) for part in parts if isinstance(part, PartKey)}


def _written_mode(vpa: VerticalPodAutoscaler) -> str:
    return (vpa.spec.update_policy and vpa.spec.update_policy.update_mode) or ""


def _present(served: Served) -> list[Condition] | None:
    return served.vpa.status.conditions if served.vpa.status else None
