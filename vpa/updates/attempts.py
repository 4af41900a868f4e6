"""What the updater remembers from pass to pass about single pods; the caller keeps it and drops nothing else.

An *attempt* is one try to change one pod to one target. All keys are pod uids, so a replaced pod starts anew.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from vpa.objects.autoscalers import ContainerRecommendation
from vpa.objects.pods import Pod
from vpa.reasons import Refusal

Target = Mapping[tuple[str, str, str], int]
"""(container, ``requests`` or ``limits``, resource) → nanos."""

REFUSED_FOR: Final = timedelta(hours=1)
"""How long a refused resize keeps us from trying the same or a larger target again."""

CACHE_LAG: Final = timedelta(minutes=5)
"""An accepted eviction whose pod still looks alive counts as done for so long: our copy is late."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try, and what came of it."""

    at: datetime
    target: Target
    generation: int = 0
    """The pod's ``metadata.generation`` after our write; 0 when unknown."""
    refusal: Refusal | None = None
    """Why it failed; None: it was accepted."""
    until: datetime | None = None
    """A refused one is not repeated before."""
    failures: int = 0
    """Refusals in a row."""


def shrinks(new: Target, old: Target) -> bool:
    """Is any value of *new* lower than its counterpart?"""
    return any(nanos < old[key] for key, nanos in new.items() if key in old)


def lower_target(new: Iterable[ContainerRecommendation], old: Iterable[ContainerRecommendation]) -> bool:
    """Does any container have a target in *new* that is lower than its last one in *old*?"""
    before = {entry.container_name: entry.target or {} for entry in old}
    return any(
        quantity < before[entry.container_name][resource]
        for entry in new
        if entry.container_name in before
        for resource, quantity in (entry.target or {}).items()
        if resource in before[entry.container_name]
    )


@dataclass(slots=True)
class Attempts:
    """The attempts of all pods, and when their resizes were first seen."""

    resizes: dict[str, Attempt] = field(default_factory=dict)
    evictions: dict[str, Attempt] = field(default_factory=dict)
    infeasible: dict[str, tuple[ContainerRecommendation, ...]] = field(default_factory=dict)
    """The VPA's recommendation when a resize in mode InPlace was found infeasible (upstream's memory)."""
    sightings: dict[str, datetime] = field(default_factory=dict)
    """``namespace/name`` (kept for ever, as upstream) or ``uid@generation`` → when first seen resizing."""

    def sight(self, key: str, now: datetime) -> datetime:
        """When *key* was first seen resizing: now, if it was not yet."""
        return self.sightings.setdefault(key, now)

    def resize_refused(self, uid: str, target: Target, now: datetime) -> Refusal | None:
        """The refusal of an earlier attempt that still holds for *target*."""
        attempt = self.resizes.get(uid)
        if attempt is None or attempt.refusal is None or attempt.until is None or attempt.until <= now:
            return None
        return None if shrinks(target, attempt.target) else attempt.refusal

    def eviction_refused(self, uid: str, now: datetime) -> Refusal | None:
        """The refusal of an earlier eviction, while its pause lasts."""
        attempt = self.evictions.get(uid)
        if attempt is None or attempt.refusal is None or attempt.until is None or attempt.until <= now:
            return None
        return attempt.refusal

    def is_leaving(self, pod: Pod, now: datetime) -> bool:
        """Was the pod evicted by us, though our copy does not show it yet?"""
        attempt = self.evictions.get(pod.metadata.uid)
        return attempt is not None and attempt.refusal is None and now - attempt.at < CACHE_LAG

    def accepted(
        self, where: dict[str, Attempt], uid: str, target: Target, now: datetime, *, generation: int = 0
    ) -> None:
        """Remember in *where* (`resizes` or `evictions`) that the API server took it."""
        where[uid] = Attempt(at=now, target=target, generation=generation)

    def refused(
        self,
        where: dict[str, Attempt],
        uid: str,
        target: Target,
        now: datetime,
        *,
        refusal: Refusal,
        pause: timedelta,
    ) -> None:
        """Remember in *where* that the API server refused, and for how long to leave the pod alone."""
        before = where.get(uid)
        failures = before.failures + 1 if before is not None and before.refusal is not None else 1
        attempt = Attempt(at=now, target=target, refusal=refusal, until=now + pause, failures=failures)
        where[uid] = attempt if before is None else replace(attempt, generation=before.generation)

    def failures(self, where: dict[str, Attempt], uid: str) -> int:
        """Refusals in a row so far."""
        attempt = where.get(uid)
        return attempt.failures if attempt is not None and attempt.refusal is not None else 0

    def forget(self, alive: Container[str]) -> None:
        """Drop all that belongs to pods that are gone; *alive* holds the uids of those that are not."""
        for memory in (self.resizes, self.evictions, self.infeasible):
            for uid in [uid for uid in memory if uid not in alive]:
                del memory[uid]
        for key in [key for key in self.sightings if "@" in key and key.partition("@")[0] not in alive]:
            del self.sightings[key]
