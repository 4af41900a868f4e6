"""A pass in numbers: upstream's gauges and ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from updater.metrics import AllMetrics
from updater.settings import Settings
from vpa import modes
from vpa.disruptions import Action, Plan
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.reasons import Reason
from vpa.telemetry.metrics import size_label
from vpa.updates.budgets import group_of
from vpa.updates.passes import VpaPass

NOT_LIVE = (Reason.POD_TERMINATING, Reason.POD_FINISHED)


def publish(
    settings: Settings,
    metrics: AllMetrics,
    plan: Plan,
    counts: Mapping[tuple[str, Reason], int],
    now: datetime,
) -> None:
    """Replace the gauges of the last pass by those of *plan*; *counts* are its pods by action and reason."""
    metrics.own.pods.forget()
    for (action, reason), pods in counts.items():
        metrics.own.pods.set(pods, action=action, reason=reason)
    breakers = plan.memory.breakers
    stopped = sum(one.until is not None and one.until > now for one in breakers.watched.values())
    metrics.own.breakers.set(stopped, scope="vpa")
    metrics.own.breakers.set(float(breakers.until is not None and breakers.until > now), scope="cluster")
    metrics.loop.begin_pass()
    for one in plan.passes:
        if _counts(settings, one.managed.vpa):
            _publish_pass(metrics, one)


def _counts(settings: Settings, vpa: VerticalPodAutoscaler) -> bool:
    """Upstream counts only VPAs that it might do something for."""
    found = modes.update_mode(vpa, default=settings.behaviour.default_update_mode)
    return found not in (modes.OFF, modes.INITIAL) or modes.has_startup_boost(vpa)


def _publish_pass(metrics: AllMetrics, one: VpaPass) -> None:
    loop, vpa, able = metrics.loop, one.managed.vpa, _able(one)
    sized, moded, named = size(one), mode(vpa), name(vpa)
    metrics.named.add(one.managed.key)
    loop.controlled.inc(live(one), **sized, **moded)
    loop.evicted.inc(0, **sized, **moded, **named)
    loop.updated.inc(0, **sized, **named)
    done = Counter(found.way for found in one.candidates.values() if found.acted)
    if done[Action.EVICT]:
        loop.with_evicted.inc(1, **sized, **moded)
    if done[Action.RESIZE]:
        loop.with_updated.inc(1, **sized)
    if not able:
        return
    if one.trials.permits.in_place:
        loop.updatable.inc(able, **sized)
        loop.with_updatable.inc(1, **sized)
    else:
        loop.evictable.inc(able, **sized, **moded)
        loop.with_evictable.inc(1, **sized, **moded)


def live(one: VpaPass) -> int:
    """Pods that are neither leaving nor finished."""
    gone = sum(refusal.reason in NOT_LIVE for refusal, _ in one.settled.values())
    return len(one.managed.pods) - gone


def _able(one: VpaPass) -> int:
    """Pods that could have been changed when the pass began: done, failed, or kept out by other changes."""
    candidates = one.candidates.values()
    touched = {group_of(found.pod) for found in candidates if found.acted or found.final}
    return sum(
        found.acted
        or found.final
        or (
            found.refusal is not None
            and found.refusal.reason is Reason.BUDGET_SPENT
            and group_of(found.pod) in touched
        )
        for found in candidates
    )


def size(one: VpaPass | None) -> dict[str, str]:
    return {"vpa_size_log2": size_label(live(one) if one is not None else 0)}


def mode(vpa: VerticalPodAutoscaler) -> dict[str, str]:
    policy = vpa.spec.update_policy
    return {"update_mode": (policy.update_mode if policy is not None else None) or modes.RECREATE}


def name(vpa: VerticalPodAutoscaler) -> dict[str, str]:
    return {"vpa_name": vpa.metadata.name, "vpa_namespace": vpa.metadata.namespace}
