"""All that a plan is made from beside VPAs and pods: the cluster at one moment, the settings, the memory.

Whatever is not known (None) switches the checks off that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vpa.objects.limits import HorizontalPodAutoscaler
from vpa.rules import Rules
from vpa.scopes import NodeLabels
from vpa.settings import Behaviour, Sizing, Updating
from vpa.sizes.limit_ranges import NO_RANGES, Ranges
from vpa.sizes.nodes_fit import Rooms
from vpa.updates.attempts import Attempts
from vpa.updates.breakers import Breakers
from vpa.updates.budgets import GroupKey
from vpa.updates.pdbs import DisruptionBudgets
from vpa.updates.quotas import Quotas


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to decide."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    updating: Updating = field(default_factory=Updating)
    sizing: Sizing = field(default_factory=Sizing)
    rules: Rules = field(default_factory=Rules)


@dataclass(kw_only=True, slots=True)
class Memory:
    """What is kept from pass to pass."""

    attempts: Attempts = field(default_factory=Attempts)
    breakers: Breakers = field(default_factory=Breakers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The cluster at one moment."""

    replicas: Mapping[GroupKey, int]
    """How many pods each direct owner wants; of a DaemonSet how many are ready."""
    ranges: Mapping[str, Ranges] = field(default_factory=dict)
    """By namespace."""
    rooms: Rooms | None = None
    nodes: NodeLabels = field(default_factory=dict)
    """For VPAs that a node label splits."""
    disruption_budgets: DisruptionBudgets | None = None
    quotas: Quotas | None = None
    hpas: Mapping[str, Sequence[HorizontalPodAutoscaler]] | None = None
    """By namespace."""
    memory_use: Mapping[tuple[str, str, str], int] | None = None
    """(namespace, pod, container) → bytes in use now."""
    webhook_ready: bool = True
    """The admission controller's lease is fresh, or is not asked for."""
    can_resize: bool = True
    """The cluster has ``pods/resize``."""
    can_lower_memory_limits: bool = True
    """A resize may lower a memory limit without a restart (Kubernetes 1.34)."""

    def fresh(self) -> Surroundings:
        """The same for a new plan, which counts anew what it takes from quotas and disruption budgets."""
        budgets, quotas = self.disruption_budgets, self.quotas
        return replace(
            self,
            disruption_budgets=budgets.fresh() if budgets is not None else None,
            quotas=quotas.fresh() if quotas is not None else None,
        )

    def range_of(self, namespace: str) -> Ranges:
        return self.ranges.get(namespace, NO_RANGES)
