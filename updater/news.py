"""What must not wait for the next tick: containers that die, and pods that come in place of evicted ones."""

from __future__ import annotations

import asyncio
from typing import Final

from updater.mirrors import Mirrors
from updater.ownership import VpaKey, key_of
from vpa.cluster.pacing import Clock, monotonic
from vpa.cluster.workloads import OwnerKey, controller_of
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.updates.priorities import OOM_KILLED

CRASH_LOOP: Final = "CrashLoopBackOff"
SICK_FOR: Final = 900.0
"""Seconds after a death in which a new recommendation of the pod's VPA is urgent."""


class News:
    """Gathers news of pods and VPAs until somebody takes them."""

    def __init__(self, mirrors: Mirrors, *, clock: Clock = monotonic) -> None:
        self.urgent = asyncio.Event()
        """A container was killed or crashes again and again, or its VPA recommends something else now."""
        self.arrived = asyncio.Event()
        """There are new pods."""
        self._mirrors = mirrors
        self._clock = clock
        self._owners: set[OwnerKey] = set()
        self._vpas: set[VpaKey] = set()
        self._new: set[OwnerKey] = set()
        self._sick: dict[OwnerKey, float] = {}
        self._begun = False

    def begin(self) -> None:
        """From now on changes are news."""
        self._mirrors.pods.subscribe(self._pod_changed)
        self._mirrors.vpas.subscribe(self._vpa_changed)
        self._begun = True

    def take_urgent(self) -> tuple[set[OwnerKey], set[VpaKey]]:
        """Direct owners of dying pods, and VPAs that may have something new for such pods."""
        owners, vpas = self._owners, self._vpas
        self._owners, self._vpas = set(), set()
        self.urgent.clear()
        return owners, vpas

    def take_new(self) -> set[OwnerKey]:
        """Direct owners of new pods."""
        new, self._new = self._new, set()
        self.arrived.clear()
        return new

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        owner = controller_of(new.metadata) if new is not None else None
        if new is None or owner is None or not self._begun:
            return
        if old is None:
            self._new.add(owner)
            self.arrived.set()
        elif deaths(new) - deaths(old):
            self._sick[owner] = self._clock()
            self._owners.add(owner)
            self.urgent.set()

    def _vpa_changed(self, old: VerticalPodAutoscaler | None, new: VerticalPodAutoscaler | None) -> None:
        """The recommender answers a kill with a larger recommendation, a moment later."""
        if old is None or new is None or not self._sick or _recommended(old) == _recommended(new):
            return
        limit = self._clock() - SICK_FOR
        for owner in [owner for owner, since in self._sick.items() if since < limit]:
            del self._sick[owner]
        if any(owner.namespace == new.metadata.namespace for owner in self._sick):
            self._vpas.add(key_of(new))
            self.urgent.set()


def deaths(pod: Pod) -> set[tuple[str, str, object]]:
    """The kills for lack of memory that the pod's containers show, and their crash loops."""
    found: set[tuple[str, str, object]] = set()
    for status in pod.status.container_statuses or ():
        for state in (status.state, status.last_state):
            if state.terminated is not None and state.terminated.reason == OOM_KILLED:
                found.add((status.name, OOM_KILLED, state.terminated.finished_at))
        if status.state.waiting is not None and status.state.waiting.reason == CRASH_LOOP:
            found.add((status.name, CRASH_LOOP, status.restart_count))
    return found


def _recommended(vpa: VerticalPodAutoscaler) -> object:
    return (vpa.status.recommendation, vpa.status.groups) if vpa.status is not None else None
