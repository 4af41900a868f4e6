"""Would a change make things worse? What API server, node, quota or the container itself would not bear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Container, Pod, Resources
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.sizes import nodes_fit
from vpa.sizes.footprints import Footprint, footprint, qos_class, resized
from vpa.updates.budgets import group_of
from vpa.updates.permissions import restarts
from vpa.updates.resize_patches import current, target_of
from vpa.updates.surroundings import Surroundings

MEMORY_MARGIN: Final = 10
"""Percent of the present memory use that a lowered limit leaves free."""

Pair = tuple[str, str]
"""Container and resource."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A resize that would fail."""

    refusal: Refusal
    eviction_helps: bool
    """A new pod may get what this one cannot be given."""


@dataclass(frozen=True, slots=True)
class Safety:
    """The checks of one pass. Each answers with the refusal, or None where it sees nothing."""

    surroundings: Surroundings
    rules: Rules

    def resize(self, pod: Pod, wanted: Mapping[str, Resources], changed: set[Pair]) -> Foreseen | None:
        """Why giving *pod* the resources *wanted* in place would fail or do harm."""
        after = resized(pod, wanted)
        if self.rules.foresee_resize_refusals:
            refusal = self._refused(pod, after, changed)
            if refusal is not None:
                return Foreseen(refusal, eviction_helps=True)
        foreseen = self._node(pod, after)
        if foreseen is not None:
            return foreseen
        refusal = self._quota(pod, after) or self._restart(pod, changed)
        return Foreseen(refusal, eviction_helps=False) if refusal is not None else None

    def eviction(self, pod: Pod, wanted: Mapping[str, Resources]) -> Refusal | None:
        """Why a new pod with the resources *wanted* in place of *pod* would not run, or would do harm."""
        after = resized(pod, wanted)
        rooms = self.surroundings.rooms
        if self.rules.foresee_node_fit and rooms:
            need = footprint(after.spec)
            if not rooms.fits(after, need):
                return self._no_node(after, need)
        return self._quota(pod, after) or self._below_use(pod, wanted)

    def disruption_budget(self, pod: Pod) -> Refusal | None:
        """Why a PodDisruptionBudget would not let go of the pod."""
        budgets = self.surroundings.disruption_budgets
        if budgets is None or not self.rules.foresee_disruption_budgets:
            return None
        return budgets.refusal(pod)

    def pairs_to_keep(
        self, pod: Pod, wanted: Mapping[str, Resources], *, grow_only: Refusal | None
    ) -> dict[Pair, Refusal]:
        """What a resize must not touch: memory limits below use; with *grow_only* all that shrinks."""
        kept: dict[Pair, Refusal] = {}
        if grow_only is not None:
            now = current(pod)
            for (name, kind, resource), nanos in target_of(wanted).items():
                if nanos < now.get((name, kind, resource), 0):
                    kept[name, resource] = grow_only
        for name, refusal in self._limits_below_use(pod, wanted).items():
            kept.setdefault((name, "memory"), refusal)
        return kept

    def _refused(self, pod: Pod, after: Pod, changed: set[Pair]) -> Refusal | None:
        """What the API server refuses whatever the cluster looks like."""
        before_class = pod.status.qos_class or qos_class(pod.spec)
        after_class = qos_class(after.spec)
        if before_class != after_class:
            return Refusal(
                Reason.QOS_WOULD_CHANGE,
                f"the pod is {before_class} and would be {after_class}: only a new pod can be",
            )
        rooms = self.surroundings.rooms
        room = rooms.room(pod.spec.node_name) if rooms else None
        if room is not None and (room.node.metadata.labels or {}).get("kubernetes.io/os") == "windows":
            return Refusal(
                Reason.RESIZE_REFUSED, "the pod runs on Windows, where nothing is resized in place"
            )
        if not self.surroundings.can_lower_memory_limits:
            for container in pod.spec.containers or ():
                if _lowers_memory(pod, after, container) and not restarts(pod, {(container.name, "memory")}):
                    return Refusal(
                        Reason.RESIZE_REFUSED,
                        f"this cluster lowers the memory limit of container {container.name} only with "
                        "resizePolicy RestartContainer (Kubernetes before 1.34)",
                    )
        return None

    def _node(self, pod: Pod, after: Pod) -> Foreseen | None:
        """Its own node has to hold the pod; a pod that only shrinks fits where it is."""
        rooms = self.surroundings.rooms
        if not self.rules.foresee_node_fit or not rooms:
            return None
        before, need = footprint(pod.spec), footprint(after.spec)
        if all(nanos <= before.get(resource, 0) for resource, nanos in need.items()):
            return None
        own = rooms.room(pod.spec.node_name)
        if own is not None and nodes_fit.holds(own.free_for(group_of(pod)), need):
            return None
        if not rooms.fits(after, need):
            return Foreseen(self._no_node(after, need), eviction_helps=False)
        if own is None:
            return None
        text = (
            f"node {pod.spec.node_name} cannot hold {nodes_fit.describe(need)}; "
            "another node can, so only a new pod gets it"
        )
        return Foreseen(Refusal(Reason.RESIZE_INFEASIBLE, text), eviction_helps=True)

    def _no_node(self, after: Pod, need: Footprint) -> Refusal:
        rooms = self.surroundings.rooms
        largest = rooms.largest(after, need) if rooms else None
        if largest is None:
            where = "the pod may run on no schedulable node"
        else:
            where = f"the largest that fits the pod has {nodes_fit.describe(largest[1])} ({largest[0]})"
        return Refusal(
            Reason.NO_NODE_FITS,
            f"no node can hold {nodes_fit.describe(need)}: {where}; add a larger node, lower maxAllowed, "
            "or use --cap-to-node",
        )

    def _quota(self, pod: Pod, after: Pod) -> Refusal | None:
        quotas = self.surroundings.quotas
        if not self.rules.foresee_quota or not quotas:
            return None
        return quotas.refusal(pod, after)

    def _restart(self, pod: Pod, changed: set[Pair]) -> Refusal | None:
        """A resize that restarts a container is an interruption, which no budget is asked about but by us."""
        return self.disruption_budget(pod) if restarts(pod, changed) else None

    def _below_use(self, pod: Pod, wanted: Mapping[str, Resources]) -> Refusal | None:
        return next(iter(self._limits_below_use(pod, wanted).values()), None)

    def _limits_below_use(self, pod: Pod, wanted: Mapping[str, Resources]) -> dict[str, Refusal]:
        """Container → why its memory limit is not lowered as *wanted*."""
        use = self.surroundings.memory_use
        if not self.rules.keep_memory_limit_above_use or use is None:
            return {}
        found: dict[str, Refusal] = {}
        for container in pod.spec.containers or ():
            new = (wanted[container.name].limits or {}).get("memory") if container.name in wanted else None
            old = ((container.resources and container.resources.limits) or {}).get("memory")
            used = use.get((pod.metadata.namespace, pod.metadata.name, container.name))
            if new is None or used is None or (old is not None and new >= old):
                continue
            if new.value() * 100 < used * (100 + MEMORY_MARGIN):
                found[container.name] = Refusal(
                    Reason.LIMIT_BELOW_USAGE,
                    f"container {container.name} uses {nodes_fit.describe({'memory': used * 10**9})} now; "
                    f"the new limit {new} must be {MEMORY_MARGIN} % above that",
                )
        return found


def history_loading(vpa: VerticalPodAutoscaler) -> Refusal | None:
    """Why the recommendation is not yet to be trusted for anything but growth."""
    for condition in (vpa.status.conditions if vpa.status is not None else None) or ():
        if condition.status != "True":
            continue
        if condition.type == "FetchingHistory":
            return Refusal(
                Reason.HISTORY_LOADING,
                "history is still being fetched: nothing is evicted and nothing shrinks until it is there",
            )
        if condition.type == "LowConfidence":
            return Refusal(
                Reason.HISTORY_LOADING,
                "less than a day of usage is known: nothing is evicted and nothing shrinks until then",
            )
    return None


def _lowers_memory(pod: Pod, after: Pod, container: Container) -> bool:
    key = (container.name, "limits", "memory")
    before, now = current(pod), current(after)
    return key in before and key in now and now[key] < before[key]
