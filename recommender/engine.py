"""The recommender without its surroundings: everything that is known, and what each piece of news does to it.

No I/O and no clock of its own; `recommender.service` brings news and carries out what is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from recommender import samples
from recommender.autoscalers import Autoscalers, Served, VpaKey, containers_of, is_served, rows_of
from recommender.decisions import Decisions, Verdict
from recommender.lifetimes import Known, Lifetimes
from recommender.metrics import AllMetrics
from recommender.ooms import Kill
from recommender.peaks import Peaks
from recommender.quality import Quality
from recommender.settings import Settings
from recommender.tracking import Tracker
from vpa.estimators import CPU, MEMORY
from vpa.matching import TargetKey
from vpa.metrics.usage import Usage as Reading
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.recommendations import Roster
from vpa.sizes.limit_ranges import Ranges
from vpa.times import SECOND
from vpa.usage import OOMOutcome, Usage


class Engine:
    """What the recommender knows."""

    def __init__(
        self,
        settings: Settings,
        *,
        metrics: AllMetrics,
        ranges: Mapping[str, Ranges],
        controller: Callable[[TargetKey], Known],
    ) -> None:
        """*ranges*: namespace → its LimitRanges. *controller*: what the cluster says of a controller."""
        self.settings = settings
        self.rules = settings.rules
        self.metrics = metrics.loop
        self.own = metrics.own
        self.usage = Usage(settings.aggregation)
        self.tracker = Tracker(self.usage)
        self.roster = Roster(self.usage, settings.estimation)
        self.autoscalers = Autoscalers(
            self.tracker, self.roster, rules=self.rules, behaviour=settings.behaviour
        )
        self.quality = Quality(metrics.quality)
        self.decisions = Decisions(
            self.tracker,
            self.roster,
            self.autoscalers,
            self.quality,
            metrics.loop,
            rules=self.rules,
            estimation=settings.estimation,
            threshold=settings.status_writes.status_write_threshold,
            ranges=ranges,
        )
        self.peaks = Peaks()
        self.looked: set[VpaKey] = set()
        """VPAs that may see other rows since the caller cleared this."""
        self.lifetimes = Lifetimes(self.tracker, self.autoscalers, rules=self.rules, controller=controller)

    # News

    def vpa_changed(
        self, old: VerticalPodAutoscaler | None, new: VerticalPodAutoscaler | None
    ) -> Served | None:
        """A VPA came, changed or went; returns it if it is ours (now)."""
        self.autoscalers.note(old, new)
        if new is not None and is_served(new, self.settings.loop.recommender_name, self.settings.selection):
            return self.autoscalers.put(new)
        gone = new or old
        if gone is not None:
            key = (gone.metadata.namespace, gone.metadata.name)
            self.autoscalers.drop(key)
            self.decisions.forget(key)
        return None

    def feed(self, reading: Reading, now: int) -> samples.Fed:
        """A reading of usage came; *now* in nanoseconds."""
        fed = samples.feed(self.tracker, reading, now=now, rules=self.rules)
        for resource, (rows, amounts) in ((CPU, fed.cpu), (MEMORY, fed.memory)):
            self.quality.used(resource, rows, amounts)
            self.lifetimes.touch(rows, now)
        for reason, count in (
            ("unknown", fed.unknown),
            ("ahead", fed.ahead),
            ("unreadable", reading.skipped),
        ):
            self.own.dropped_samples.inc(count, reason=reason)
        self.metrics.aggregates.set(len(self.tracker.rows()))
        return fed

    def record(self, kill: Kill, now: int) -> set[VpaKey]:
        """A container was killed for lack of memory; returns the VPAs that it concerns."""
        instance = self.tracker.find(kill.namespace, kill.pod, kill.container)
        if instance is None:
            self.own.ooms.inc(result="unknown")
            return set()
        ahead = self.rules.plausible_times and kill.time > now + samples.AHEAD
        outcome = self.usage.record_oom(instance, now if ahead else kill.time, kill.memory)
        self.own.ooms.inc(result=outcome.value)
        if outcome is not OOMOutcome.RECORDED:
            return set()
        rows = self.usage.row[[instance]]
        self.lifetimes.touch(rows, now)
        self.quality.used(MEMORY, rows, self.usage.oom_peak[[instance]], oom=True)
        return self.autoscalers.concerned(self.tracker.pods[kill.namespace, kill.pod].group)

    # Decisions

    def refresh(self) -> None:
        """Take in what has changed: who sees which rows."""
        looked = self.decisions.refresh()
        if not looked:
            return
        self.looked.update(served.key for served in looked)
        pairs = (
            (row, (*served.key, container))
            for served in self.autoscalers
            for container in containers_of(served)
            for row in rows_of(served, container)
        )
        self.peaks.link(pairs, len(self.usage.created))

    def decide(self, *, now: int, clock: float, keys: Collection[VpaKey] | None = None) -> Verdict:
        """What is to be written, of all VPAs or of *keys*. *now* in nanoseconds, *clock* in seconds."""
        self.refresh()
        known = None if keys is None else [key for key in keys if key in self.autoscalers.served]
        moment = datetime.fromtimestamp(now / SECOND, UTC)
        return self.decisions.decide(now=moment, clock=clock, keys=known)

    def collect(self, now: int) -> int:
        """Forget history that is over; how many rows went."""
        gone = self.lifetimes.collect(now)
        self.refresh()
        return gone
