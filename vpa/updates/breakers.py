"""The loop breaker: evictions stop where new pods do not come with their target, so that none is in vain.

After an eviction the next new pod of the same VPA is looked at. If it does not carry the target (the webhook
was not called, another one overwrote it), the VPA's pods are left alone for an hour, then twice as long, and
so on. When many VPAs fail and none succeeds, all evictions stop. While no recent success is known, evictions
begin with one pod of each VPA and few in all: a webhook that fails is found out before it does harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.sizes.observed import observed_containers

FIRST_PAUSE: Final = timedelta(hours=1)
LONGEST_PAUSE: Final = timedelta(hours=24)
TRUST: Final = timedelta(minutes=2)
"""A success counts as proof that the webhook works for so long."""
PATIENCE: Final = timedelta(minutes=10)
"""A replacement that has not come by then is not waited for any longer."""
PROBES: Final = 10
"""Evictions whose replacement is not seen yet, in all VPAs together, while there is no proof."""
MANY: Final = 3
"""So many VPAs that fail in a row stop all evictions."""

Key = tuple[str, str]
"""Namespace and name of a VPA."""


@dataclass(slots=True)
class Watched:
    """What is known about the pods of one VPA."""

    seen: set[str]
    """Uids that are no news."""
    waiting: dict[str, datetime] = field(default_factory=dict)
    """Uid of an evicted pod → when; one new pod is expected for each."""
    failures: int = 0
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A replacement that was looked at."""

    key: Key
    pod: Pod
    carries: bool
    refusal: Refusal | None = None
    """Why the VPA's evictions stop, when they do."""


@dataclass(slots=True)
class Breakers:
    """The loop breakers of all VPAs, and the one of the cluster."""

    watched: dict[Key, Watched] = field(default_factory=dict)
    proven: datetime | None = None
    """When a new pod was last seen with its target."""
    failed: dict[Key, datetime] = field(default_factory=dict)
    """VPAs that failed since then."""
    trips: int = 0
    until: datetime | None = None

    def look(
        self, key: Key, pods: Iterable[Pod], carries: Callable[[Pod], bool | None], now: datetime
    ) -> list[Finding]:
        """Look at the VPA's new pods; *carries* says whether one has its target, None if nobody can tell.

        A pod with its target proves that the webhook works only if the webhook left its mark on it.
        """
        pods = list(pods)
        watched = self.watched.get(key)
        if watched is None:
            self.watched[key] = Watched(seen={pod.metadata.uid for pod in pods})
            return []
        findings: list[Finding] = []
        for pod in pods:
            uid = pod.metadata.uid
            if uid in watched.seen:
                continue
            watched.seen.add(uid)
            good = carries(pod)
            if good:
                self._succeeded(watched, now, proof=observed_containers(pod) is not None)
                findings.append(Finding(key, pod, carries=True))
            elif good is False and watched.waiting:
                findings.append(
                    Finding(key, pod, carries=False, refusal=self._failed(key, watched, pod, now))
                )
            if watched.waiting:
                del watched.waiting[min(watched.waiting, key=watched.waiting.__getitem__)]
        watched.seen.intersection_update({pod.metadata.uid for pod in pods} | watched.waiting.keys())
        for uid in [uid for uid, at in watched.waiting.items() if now - at > PATIENCE]:
            del watched.waiting[uid]
        return findings

    def evicted(self, key: Key, pod: Pod, now: datetime) -> None:
        """An eviction was accepted: its replacement is waited for."""
        watched = self.watched.setdefault(key, Watched(seen=set()))
        watched.seen.add(pod.metadata.uid)
        watched.waiting[pod.metadata.uid] = now

    def refusal(self, key: Key, *, planned: int, open_in_all: int, now: datetime) -> Refusal | None:
        """Why no (further) pod of the VPA may be evicted now.

        *planned* evictions of the VPA are about to be made; *open_in_all* of all VPAs are that or `unproven`.
        """
        watched = self.watched.get(key)
        if watched is not None and watched.until is not None and watched.until > now:
            return _paused(watched.failures, watched.until)
        if self.until is not None and self.until > now:
            return Refusal(
                Reason.LOOP_BREAKER,
                f"new pods of {len(self.failed)} VPAs came without their target, so nothing is evicted until "
                f"{self.until:%H:%M} UTC: see that the admission controller runs and its webhook is called",
            )
        waiting = planned + (len(watched.waiting) if watched is not None else 0)
        trusted = self.trusts(now) and not (watched is not None and watched.failures)
        if waiting and not trusted:
            return Refusal(
                Reason.LOOP_BREAKER,
                "another pod was evicted first, to see that its replacement comes with the target; "
                "the others follow when it does",
            )
        if not trusted and open_in_all >= PROBES:
            return Refusal(
                Reason.LOOP_BREAKER,
                f"{PROBES} evicted pods are waited for, to see that their replacements come with the target; "
                "the others follow when one does",
            )
        return None

    def trusts(self, now: datetime) -> bool:
        """Was a new pod seen with its target a short time ago?"""
        return self.proven is not None and now - self.proven < TRUST

    def unproven(self) -> int:
        """Evictions whose replacements were not seen yet."""
        return sum(len(watched.waiting) for watched in self.watched.values())

    def forget(self, keys: Collection[Key]) -> None:
        """Drop all VPAs but those of *keys*."""
        for memory in (self.watched, self.failed):
            for key in [key for key in memory if key not in keys]:
                del memory[key]

    def _succeeded(self, watched: Watched, now: datetime, *, proof: bool) -> None:
        """The VPA goes on; with *proof* that the webhook works so do those that it alone had stopped."""
        watched.failures, watched.until = 0, None
        if not proof:
            return
        self.proven = now
        if self.until is not None or self.trips:
            for other in self.failed:
                if other in self.watched and self.watched[other].failures == 1:
                    self.watched[other].until = None
        self.failed.clear()
        self.trips, self.until = 0, None

    def _failed(self, key: Key, watched: Watched, pod: Pod, now: datetime) -> Refusal:
        self.proven = None
        watched.failures += 1
        watched.until = now + min(FIRST_PAUSE * 2 ** (watched.failures - 1), LONGEST_PAUSE)
        self.failed[key] = now
        if len(self.failed) >= MANY and (self.until is None or self.until <= now):
            self.trips += 1
            self.until = now + min(FIRST_PAUSE * 2 ** (self.trips - 1), LONGEST_PAUSE)
        return _paused(watched.failures, watched.until)


def _paused(failures: int, until: datetime) -> Refusal:
    times = "" if failures == 1 else f" ({failures} times in a row)"
    return Refusal(
        Reason.LOOP_BREAKER,
        f"after an eviction the new pod came without its target{times}, so none is evicted until "
        f"{until:%Y-%m-%d %H:%M} UTC: see that the admission controller runs, that its webhook is called, "
        "and that no other webhook overwrites the resources",
    )
