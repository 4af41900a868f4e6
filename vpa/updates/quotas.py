"""Would a ResourceQuota refuse a pod of another size? Counted as the API server does, plus the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Final

from vpa.objects.limits import ResourceQuota
from vpa.objects.pods import Pod
from vpa.quantities import Quantity
from vpa.reasons import Reason, Refusal
from vpa.sizes.footprints import LIMITS, REQUESTS, Footprint, footprint, qos_class

_COUNTED: Final = {
    "cpu": (REQUESTS, "cpu"),
    "memory": (REQUESTS, "memory"),
    "requests.cpu": (REQUESTS, "cpu"),
    "requests.memory": (REQUESTS, "memory"),
    "limits.cpu": (LIMITS, "cpu"),
    "limits.memory": (LIMITS, "memory"),
}
"""Name in a quota → (kind, resource) of a pod's footprint."""


class Quotas:
    """All quotas of a cluster at one moment, and what a plan has already taken from them."""

    def __init__(self, quotas: Iterable[ResourceQuota], pods: Iterable[Pod] = ()) -> None:
        """*pods* serve only quotas without a status, as in files written by hand."""
        self._quotas: dict[str, list[ResourceQuota]] = {}
        for quota in quotas:
            self._quotas.setdefault(quota.metadata.namespace, []).append(quota)
        self._taken: dict[tuple[str, str, str], int] = {}
        self._pods = list(pods) if self._quotas else []

    def fresh(self) -> Quotas:
        """The same quotas with nothing taken."""
        other = copy(self)
        other._taken = {}
        return other

    def __bool__(self) -> bool:
        return bool(self._quotas)

    def of(self, pod: Pod) -> Sequence[ResourceQuota]:
        """The quotas that count the pod."""
        return [quota for quota in self._quotas.get(pod.metadata.namespace, ()) if applies(quota, pod)]

    def refusal(self, before: Pod, after: Pod) -> Refusal | None:
        """Why the quotas would not let *before* become *after*; None: they would."""
        for quota in self.of(after):
            for name, hard, used, growth in self._effects(quota, before, after):
                if growth > 0 and used + growth > hard:
                    return Refusal(
                        Reason.QUOTA_EXCEEDED,
                        f"ResourceQuota {quota.metadata.name} would refuse it: {name} needs "
                        f"{_text(name, growth)} more, of {_text(name, hard)} are {_text(name, used)} used; "
                        "raise the quota, or lower maxAllowed",
                    )
        return None

    def take(self, before: Pod, after: Pod, *, back: bool = False) -> None:
        """Count that *before* becomes *after*, or with *back* that it does not after all."""
        for quota in self.of(after):
            for name, _, _, growth in self._effects(quota, before, after):
                key = (quota.metadata.namespace, quota.metadata.name, name)
                self._taken[key] = self._taken.get(key, 0) + (-growth if back else growth)

    def _effects(self, quota: ResourceQuota, before: Pod, after: Pod) -> list[tuple[str, int, int, int]]:
        """(name, hard, used with what was taken, growth) of each resource that the quota bounds."""
        hard = quota.status.hard or quota.spec.hard or {}
        prints: dict[str, tuple[Footprint, Footprint]] = {}
        effects = []
        for name, bound in hard.items():
            if name not in _COUNTED:
                continue
            kind, resource = _COUNTED[name]
            if kind not in prints:
                prints[kind] = footprint(before.spec, kind), footprint(after.spec, kind)
            old, new = prints[kind]
            growth = new.get(resource, 0) - old.get(resource, 0)
            taken = self._taken.get((quota.metadata.namespace, quota.metadata.name, name), 0)
            effects.append((name, bound.nanos, self._used(quota, name) + taken, growth))
        return effects

    def _used(self, quota: ResourceQuota, name: str) -> int:
        used = quota.status.used
        if used is not None:
            return used[name].nanos if name in used else 0
        kind, resource = _COUNTED[name]
        return sum(
            footprint(pod.spec, kind).get(resource, 0)
            for pod in self._pods
            if pod.metadata.namespace == quota.metadata.namespace
            and pod.status.phase not in ("Succeeded", "Failed")
            and applies(quota, pod)
        )


def applies(quota: ResourceQuota, pod: Pod) -> bool:
    """Does the quota count the pod, by its scopes? A scope that we do not know counts no pod."""
    for scope in quota.spec.scopes or ():
        best_effort = qos_class(pod.spec) == "BestEffort"
        if scope == "BestEffort" and not best_effort:
            return False
        if scope == "NotBestEffort" and best_effort:
            return False
        if scope not in ("BestEffort", "NotBestEffort", "NotTerminating"):
            return False
    selector: Mapping[str, object] = quota.spec.scope_selector or {}
    expressions = selector.get("matchExpressions")
    if not expressions:
        return True
    return isinstance(expressions, list) and all(_selects(one, pod) for one in expressions)


def _selects(expression: object, pod: Pod) -> bool:
    """A ``scopeSelector`` is understood for the class of priority, which is what it is used for."""
    if not isinstance(expression, dict) or expression.get("scopeName") != "PriorityClass":
        return False
    name, values = pod.spec.priority_class_name, expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return name in values
        case "NotIn":
            return name not in values
        case "Exists":
            return bool(name)
        case "DoesNotExist":
            return not name
    return False


def _text(name: str, nanos: int) -> str:
    if name.endswith("cpu"):
        return str(Quantity.from_milli(-(-nanos // 1_000_000)))
    return str(Quantity.from_int(-(-nanos // 1_000_000_000), "BinarySI"))
