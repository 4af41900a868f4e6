"""PodDisruptionBudgets as the eviction API reads them: what it would refuse is not asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

from vpa.objects.limits import PodDisruptionBudget
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.selectors import NOTHING, Selector, SelectorError, from_object
from vpa.updates.budgets import is_pending, is_unready


class DisruptionBudgets:
    """All budgets of a cluster at one moment, and what a plan has already taken from them."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget], pods: Iterable[Pod] = ()) -> None:
        """*pods* serve only budgets without a status, as in files written by hand."""
        self._by_namespace: dict[str, list[tuple[PodDisruptionBudget, Selector]]] = {}
        for budget in budgets:
            found = self._by_namespace.setdefault(budget.metadata.namespace, [])
            found.append((budget, _selector(budget)))
        self._taken: dict[tuple[str, str], int] = {}
        self._pods = list(pods) if self._by_namespace else []

    def fresh(self) -> DisruptionBudgets:
        """The same budgets with nothing taken."""
        other = copy(self)
        other._taken = {}
        return other

    def of(self, pod: Pod) -> list[PodDisruptionBudget]:
        """The budgets that select the pod."""
        return [
            budget
            for budget, selector in self._by_namespace.get(pod.metadata.namespace, ())
            if selector.matches(pod.metadata.labels)
        ]

    def refusal(self, pod: Pod) -> Refusal | None:
        """Why the eviction API would refuse now; None: it would not. It lets go of pods that do not run."""
        found = self.of(pod)
        if not found or is_pending(pod):
            return None
        if len(found) > 1:
            names = ", ".join(budget.metadata.name for budget in found)
            return Refusal(
                Reason.DISRUPTION_BUDGET_BLOCKED,
                f"several PodDisruptionBudgets select the pod ({names}), so nobody can evict it: keep one",
            )
        budget = found[0]
        if is_unready(pod) and self._lets_unready_go(budget):
            return None
        status = budget.status
        name = budget.metadata.name
        if status is not None and status.observed_generation < budget.metadata.generation:
            return Refusal(
                Reason.DISRUPTION_BUDGET_BLOCKED,
                f"PodDisruptionBudget {name} was changed and is not counted yet; the next pass looks again",
            )
        taken = self._taken.get((budget.metadata.namespace, name), 0)
        allowed = self._allowed(budget)
        if allowed - taken > 0:
            return None
        planned = f" beside the {taken} that are planned" if taken else ""
        return Refusal(
            Reason.DISRUPTION_BUDGET_BLOCKED,
            f"PodDisruptionBudget {name} allows no eviction now{planned}: more pods must be ready, "
            "or its minAvailable lower or maxUnavailable higher",
        )

    def take(self, pod: Pod, *, back: bool = False) -> None:
        """Count an eviction of the pod, or with *back* that it does not happen after all."""
        if is_pending(pod):
            return
        for budget in self.of(pod):
            key = budget.metadata.namespace, budget.metadata.name
            self._taken[key] = self._taken.get(key, 0) + (-1 if back else 1)

    def _lets_unready_go(self, budget: PodDisruptionBudget) -> bool:
        """A pod that is not ready may go if the others are healthy enough, or by policy always."""
        if budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
            return True
        status = budget.status
        return status is not None and status.current_healthy >= status.desired_healthy > 0

    def _allowed(self, budget: PodDisruptionBudget) -> int:
        if budget.status is not None:
            return budget.status.disruptions_allowed
        selector = _selector(budget)
        pods = [
            pod
            for pod in self._pods
            if pod.metadata.namespace == budget.metadata.namespace and selector.matches(pod.metadata.labels)
        ]
        return _computed(budget, pods)


def _selector(budget: PodDisruptionBudget) -> Selector:
    try:
        return from_object(budget.spec.selector)
    except SelectorError:
        return NOTHING


def _computed(budget: PodDisruptionBudget, pods: Sequence[Pod]) -> int:
    """What the disruption controller would allow; percentages are rounded up, as there."""
    expected = len(pods)
    healthy = sum(pod.status.phase == "Running" and not is_unready(pod) for pod in pods)
    if budget.spec.max_unavailable is not None:
        wanted = expected - _scaled(budget.spec.max_unavailable, expected)
    else:
        wanted = _scaled(budget.spec.min_available or 0, expected)
    return max(healthy - max(wanted, 0), 0)


def _scaled(value: int | str, total: int) -> int:
    """A number, or a share of *total* such as ``30%``."""
    if isinstance(value, int):
        return value
    try:
        return -(-int(value.removesuffix("%")) * total // 100)
    except ValueError:
        return 0
