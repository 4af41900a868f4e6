"""Brings checkpoints into the rows of the VPAs that they belong to: at start, and when a VPA appears."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from recommender.autoscalers import Autoscalers, HistoryState, Served, VpaKey, containers_of
from recommender.merging import move_peak
from recommender.ooms import Kill, standing_kills
from recommender.schedule import CheckpointKey
from recommender.tracking import GroupKey, PodKey, Tracker
from vpa import checkpoints, times
from vpa.cluster.connection import Connection
from vpa.cluster.errors import Forbidden, NotFound
from vpa.cluster.reads import pages
from vpa.cluster.resources import CHECKPOINTS
from vpa.histograms import NEVER
from vpa.knowledge import NOTHING, Knowledge, adopt, of_row, of_state
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.checkpoints import Checkpoint
from vpa.rules import Rules
from vpa.times import SECOND

log = logging.getLogger(__name__)

CHECKPOINT_SOURCE = "checkpoints"
ONE_BY_ONE = 10
"""Namespaces that are listed one by one; for more, everything is listed."""
SLACK = 60 * SECOND
"""A kill may be a minute older than the checkpoint that does not know of it: kubelets tell late."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint object as it was last seen."""

    name: str
    version: str
    annotated: bool
    knowledge: Knowledge
    last_update: int
    """When it was written, nanoseconds; 0 if it does not say."""


class Loader:
    """Reads checkpoints."""

    def __init__(
        self,
        connection: Connection,
        tracker: Tracker,
        autoscalers: Autoscalers,
        *,
        rules: Rules,
        namespace: str,
        now: Callable[[], int],
        report: Callable[[VerticalPodAutoscaler, str, str], None],
    ) -> None:
        """*namespace*: the only one to be read, "" for all. *report*: warn of a VPA (reason, message)."""
        self.stored: dict[CheckpointKey, Stored] = {}
        """What is known to be stored, whether it was loaded or not."""
        self.results: Counter[str] = Counter()
        """Checkpoints by what became of them: ``loaded``, ``known``, ``absent``, ``broken``."""
        self._connection = connection
        self._tracker = tracker
        self._autoscalers = autoscalers
        self._rules = rules
        self._namespace = namespace
        self._now = now
        self._report = report
        self._aside: defaultdict[VpaKey, set[str]] = defaultdict(set)

    def returned(self, served: Served) -> bool:
        """Whether a container is there (again) whose checkpoint was left aside because it was not."""
        aside = self._aside.get(served.key)
        present = self._autoscalers.present(served) if aside else None
        return bool(aside and present is not None and aside & present)

    def forget(self, served: Served) -> None:
        """The VPA is not ours any more."""
        for container in self._containers(served):
            self.stored.pop((*served.key, container), None)
        self._aside.pop(served.key, None)

    def forgive(self, served: Served) -> None:
        """The VPA has another target: what is stored tells of the old one and may be overwritten."""
        for container in self._containers(served):
            stored = self.stored.get((*served.key, container))
            if stored is not None:
                stored = Stored(stored.name, stored.version, stored.annotated, NOTHING, 0)
                self.stored[(*served.key, container)] = stored

    def _containers(self, served: Served) -> set[str]:
        return {*containers_of(served), *self._aside.get(served.key, ())}

    def set_aside(self, key: VpaKey, container: str) -> None:
        """The container is gone; should it return, its checkpoint is loaded again."""
        self._aside[key].add(container)

    async def load(self, pending: Iterable[Served], evicted: Iterable[Kill] = ()) -> list[Kill]:
        """Load the checkpoints of all of *pending*, and return kills that happened while nobody watched.

        *evicted*: what events tell of. Raises a ``ClusterError`` when checkpoints cannot be had; what was
        loaded until then is loaded.
        """
        wanted = {served.key: served for served in pending}
        namespaces = sorted({namespace for namespace, _ in wanted})
        if self._namespace or len(namespaces) > ONE_BY_ONE:
            namespaces = [self._namespace]
        for namespace in namespaces:
            await self._list(namespace, wanted)
        fresh = [served for served in wanted.values() if CHECKPOINT_SOURCE in served.fetching]
        for served in fresh:
            served.fetching.discard(CHECKPOINT_SOURCE)
        if not self._rules.oom_while_away:
            return []
        told: defaultdict[PodKey, list[Kill]] = defaultdict(list)
        for kill in evicted:
            told[kill.namespace, kill.pod].append(kill)
        return [kill for served in fresh for kill in self._unseen_kills(served, told)]

    async def _list(self, namespace: str, wanted: Mapping[VpaKey, Served]) -> None:
        try:
            async for page in pages(self._connection, CHECKPOINTS, kind=Checkpoint, namespace=namespace):
                for poison in page.poison:
                    self.results["broken"] += 1
                    log.warning("Checkpoint %s cannot be read: %s", poison, poison.problem)
                for checkpoint in page.items:
                    key = (checkpoint.metadata.namespace, checkpoint.spec.vpa_object_name)
                    if key in wanted:
                        self._take(wanted[key], checkpoint)
        except (Forbidden, NotFound) as error:
            # Not in this cluster, or not for us: as if there were none.
            log.warning("No checkpoints are loaded: %s", error)

    def _take(self, served: Served, checkpoint: Checkpoint) -> None:
        container = checkpoint.spec.container_name
        key = (*served.key, container)
        try:
            state = checkpoints.decode(checkpoint.status)
        except checkpoints.CheckpointError as error:
            self._broken(served, checkpoint, error)
            self.stored[key] = stored_of(checkpoint, NOTHING)
            return
        self.stored[key] = stored_of(checkpoint, of_state(state))
        present = self._autoscalers.present(served)
        if present is not None and container not in present:
            self._aside[served.key].add(container)
            self.results["absent"] += 1
            return
        self._aside[served.key].discard(container)
        row, instances = self._place(served, container)
        peaks = checkpoints.decode_peaks(checkpoint.metadata.annotations, checkpoint.status)
        if not self._rules.running_peaks:
            peaks = []
        usage = self._tracker.usage
        fresh = [one for one in instances.values() if usage.window_end[one] == NEVER]
        try:
            used = adopt(usage, row, state, peaks, instances, now=self._now())
        except checkpoints.CheckpointError as error:
            self._broken(served, checkpoint, error)
            self.stored[key] = stored_of(checkpoint, NOTHING)
            return
        for instance in instances.values():
            if usage.row[instance] != row:  # history is still to come: what is known now stays aside
                usage.cpu_time[instance] = max(usage.cpu_time[instance], state.last_sample)
                if instance in fresh and usage.window_end[instance] != NEVER:
                    move_peak(usage, instance, row)
        self.results["loaded" if used else "known"] += 1
        self._autoscalers.dirty.add(served.key)

    def _place(self, served: Served, container: str) -> tuple[int, dict[str, int]]:
        """The row that a checkpoint goes to, and the instances (by pod) that feed it."""
        if self._rules.history_by_controller and served.controller is not None:
            group = self._tracker.group(GroupKey(*served.controller))
            row = self._tracker.row(group, container, self._now())
            instances = dict(self._tracker.feeding(group, container))
            settled = served.history is HistoryState.SETTLED
            if settled or of_row(self._tracker.usage, row) != NOTHING:
                return row, instances
            return self._own_row(served, container), instances
        return self._own_row(served, container), {}

    def _own_row(self, served: Served, container: str) -> int:
        if container not in served.initial:
            served.initial[container] = int(self._tracker.usage.new_rows(1, self._now())[0])
        return served.initial[container]

    def _broken(self, served: Served, checkpoint: Checkpoint, error: Exception) -> None:
        self.results["broken"] += 1
        name = f"{served.key[0]}/{served.key[1]}"
        message = f"cannot load checkpoint for VPA {name}. Reason: {error}"
        log.warning("%s", message, extra={"checkpoint": checkpoint.metadata.name})
        about = f"Checkpoint {checkpoint.metadata.name} cannot be loaded and will be overwritten: {error}"
        self._report(served.vpa, "CheckpointUnreadable", about)

    def _unseen_kills(self, served: Served, evicted: Mapping[PodKey, list[Kill]]) -> list[Kill]:
        """Kills that pods or events still tell of and that the checkpoints cannot know."""
        oldest = self._now() - self._tracker.usage.settings.memory_aggregation_interval
        found = []
        for key in [key for group in served.groups for key in group.pods]:
            for kill in (*standing_kills(self._tracker.pods[key].record), *evicted.get(key, ())):
                stored = self.stored.get((*served.key, kill.container))
                known_until = oldest if stored is None else max(oldest, stored.last_update - SLACK)
                if kill.time > known_until:
                    found.append(kill)
        return found


def stored_of(checkpoint: Checkpoint, knowledge: Knowledge) -> Stored:
    """What is remembered of a checkpoint object."""
    metadata = checkpoint.metadata
    try:
        last_update = times.parse(str((checkpoint.status or {}).get("lastUpdateTime")))
    except ValueError:
        last_update = 0
    return Stored(
        metadata.name, metadata.resource_version, bool(metadata.annotations), knowledge, last_update
    )
