"""Whose is a pod: its top-most controller is found, and the pod put into the group that shares its history.

Controllers are looked up once for all their pods. What is known already is placed at once; the rest waits for
:meth:`Placement.settle`, which may have to ask the API server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from recommender.autoscalers import Autoscalers
from recommender.records import PodRecord
from recommender.tracking import BARE, GroupKey, PodKey, Tracker
from vpa.cluster.owners import NodeOwnerError, OwnerError, Owners
from vpa.cluster.workloads import OwnerKey
from vpa.matching import TargetKey
from vpa.rules import Rules
from vpa.scopes import HOSTNAME, NodeLabels, scope_value

log = logging.getLogger(__name__)

AT_A_TIME = 500
"""Controllers that are looked up before others may run."""


class Placement:
    """Puts pods into groups."""

    def __init__(
        self,
        tracker: Tracker,
        autoscalers: Autoscalers,
        owners: Owners,
        *,
        rules: Rules,
        memory_saver: bool,
        node_labels: NodeLabels,
        nodes_known: Callable[[], bool],
        now: Callable[[], int],
    ) -> None:
        """*nodes_known*: whether *node_labels* is complete. *now*: the wall clock in nanoseconds."""
        self._tracker = tracker
        self._autoscalers = autoscalers
        self._owners = owners
        self._rules = rules
        self._memory_saver = memory_saver
        self._nodes = node_labels
        self._nodes_known = nodes_known
        self._now = now
        self._tops: dict[OwnerKey, TargetKey | None] = {}
        self._waiting: defaultdict[OwnerKey, dict[PodKey, PodRecord]] = defaultdict(dict)
        self._unwanted: dict[PodKey, PodRecord] = {}

    def changed(self, old: PodRecord | None, new: PodRecord | None) -> None:
        """A pod came, changed or went."""
        if new is not None:
            self.place(new)
        elif old is not None:
            self._forget(old)
            self._tracker.remove(old.key)

    def place(self, record: PodRecord) -> None:
        """Put a pod into its group, or let it wait."""
        owner = _owner(record) if self._rules.history_by_controller else None
        if owner is None:
            self._put(record, None)
        elif owner in self._tops:
            self._put(record, self._tops[owner])
        else:
            self._waiting[owner][record.key] = record

    async def settle(self) -> None:
        """Find the controllers that pods wait for; those that cannot be had now are tried the next time."""
        for number, owner in enumerate(list(self._waiting), 1):
            try:
                top = (await self._owners.topmost(owner)).key
                self._tops[owner] = top.target if top is not None else None
            except NodeOwnerError:
                self._tops[owner] = None
            except OwnerError as error:
                if error.temporary:
                    continue
                # Its controller is gone or broken: what it names is the best that is known.
                log.debug("The owner of pods cannot be followed: %s", error)
                self._tops[owner] = owner.target
            for record in self._waiting.pop(owner, {}).values():
                self._put(record, self._tops[owner])
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)

    def consider_again(self) -> None:
        """VPAs or nodes have become known: pods that were left out may have their place now."""
        for record in list(self._unwanted.values()):
            self.place(record)

    def rescope(self, target: TargetKey) -> None:
        """The node label that splits a DaemonSet, or the labels of its nodes, may have changed."""
        for key in [key for group in self._tracker.at(target) for key in group.pods]:
            self.place(self._tracker.pods[key].record)

    def forget_controllers(self) -> None:
        """Drop what is known of controllers that no pod names any more."""
        named = {_owner(record) for record in self._all()}
        self._tops = {owner: top for owner, top in self._tops.items() if owner in named}

    def _all(self) -> Iterable[PodRecord]:
        yield from (tracked.record for tracked in self._tracker.pods.values())
        yield from self._unwanted.values()

    def _put(self, record: PodRecord, top: TargetKey | None) -> None:
        labels = record.labels
        controller, owner = top, record.owner
        if not self._rules.history_by_controller and owner is not None:
            controller = TargetKey(record.namespace, owner.kind, owner.name)
        split = self._autoscalers.scope_of(controller) if controller is not None else ""
        if split not in ("", HOSTNAME) and not self._nodes_known():
            self._unwanted[record.key] = record
            return
        scope = scope_value(split, record.node, self._nodes)
        if not self._rules.history_by_controller:
            key = GroupKey(record.namespace, "", labels.text, scope)
        elif top is None:
            key = GroupKey(record.namespace, BARE, labels.text)
        else:
            key = GroupKey(*top, scope)
        found_by = labels if top is None else None
        known = record.key in self._tracker.pods
        if self._memory_saver and not known and not self._autoscalers.wants(key, found_by):
            self._unwanted[record.key] = record
            return
        self._unwanted.pop(record.key, None)
        self._tracker.put(record, key, found_by, self._now())

    def _forget(self, record: PodRecord) -> None:
        self._unwanted.pop(record.key, None)
        owner = _owner(record)
        if owner is not None and owner in self._waiting:
            self._waiting[owner].pop(record.key, None)


def _owner(record: PodRecord) -> OwnerKey | None:
    owner = record.owner
    if owner is None:
        return None
    return OwnerKey(record.namespace, owner.kind, owner.name, owner.api_version)
