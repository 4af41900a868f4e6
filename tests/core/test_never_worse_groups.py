"""The rules of ``safe`` about groups of pods and about others who act on them; each has its switch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.updater_kit import (
    ALONE,
    EVICT,
    HOUR,
    NOW,
    RESIZE,
    make_options,
    make_plan,
    make_pod,
    make_pods,
    make_vpa,
    only,
    outcome,
    trusting,
    without,
)
from vpa.disruptions import Action
from vpa.objects import meta
from vpa.objects.limits import HorizontalPodAutoscaler, PodDisruptionBudget
from vpa.reasons import Reason
from vpa.updates.pdbs import DisruptionBudgets

# Owners


def test_pods_of_an_unknown_kind_of_owner_have_a_budget() -> None:
    pods = make_pods(4, owner=("Rollout", "r"))
    told = outcome(make_plan(make_vpa(), pods))
    assert list(told.values()).count(EVICT) == 2
    off = without("budget_for_unknown_owners")
    told = outcome(make_plan(make_vpa(), pods, options=off))
    assert list(told.values()).count(EVICT) == 4, "upstream evicts all at once"


def test_a_pod_without_a_controller_is_never_evicted() -> None:
    pods = make_pods(3, owner=None)
    assert set(outcome(make_plan(make_vpa(), pods)).values()) == {("none", "NoController")}


def test_a_boosted_pod_does_not_lift_the_minimum_of_its_group() -> None:
    boosted = make_pod("boosted", annotations={"vpaCpuStartupBoost/main": "{}"})
    vpa = make_vpa(policy={"minReplicas": 3})
    told = outcome(make_plan(vpa, [boosted, make_pod("p")]))
    assert told["p"] == ("none", "TooFewReplicas")
    off = without("boost_keeps_min_replicas")
    assert outcome(make_plan(vpa, [boosted, make_pod("p")], options=off))["boosted"] == EVICT


# HPA


def hpa(resource: str, kind: str = "Utilization", name: str = "web") -> HorizontalPodAutoscaler:
    return meta.convert(
        {
            "metadata": {"name": "h", "namespace": "n"},
            "spec": {
                "scaleTargetRef": {"kind": "Deployment", "name": name},
                "metrics": [{"type": "Resource", "resource": {"name": resource, "target": {"type": kind}}}],
            },
        },
        HorizontalPodAutoscaler,
    )


def test_a_resource_that_an_hpa_scales_by_is_left_alone() -> None:
    vpa = make_vpa("InPlaceOrRecreate")
    patch = only(make_plan(vpa, [make_pod("p")], hpas={"n": [hpa("cpu")]})).patch
    assert patch is not None
    assert [one["path"].rsplit("/", 1)[1] for one in patch.resize] == ["memory"]


def test_a_pod_that_only_an_hpa_holds_back_says_so_with_the_remedy() -> None:
    pod = make_pod("p", requests={"cpu": "100m", "memory": "400Mi"})
    around: dict[str, Any] = {"hpas": {"n": [hpa("cpu")]}}
    decision = only(make_plan(make_vpa(), [pod], options=ALONE, **around))
    assert decision.reason is Reason.HPA_CONFLICT
    assert "HorizontalPodAutoscaler h" in decision.message
    assert "--ignore-hpa" in decision.message
    ignored = make_options(min_replicas=1, ignore_hpa=True)
    assert only(make_plan(make_vpa(), [pod], options=ignored, **around)).action is Action.EVICT


@pytest.mark.parametrize("other", [hpa("cpu", "AverageValue"), hpa("memory"), hpa("cpu", name="else")])
def test_an_hpa_that_scales_by_something_else_disturbs_nothing(other: HorizontalPodAutoscaler) -> None:
    pod = make_pod("p", requests={"cpu": "100m", "memory": "400Mi"})
    assert only(make_plan(make_vpa(), [pod], options=ALONE, hpas={"n": [other]})).action is Action.EVICT


# Several VPAs


def test_a_pod_that_an_older_idle_vpa_holds_back_says_so() -> None:
    decision = only(make_plan(make_vpa("Initial"), [make_pod("p")], rivals=("newer",)))
    assert decision.reason is Reason.CONFLICT
    assert "newer" in decision.message
    assert outcome(make_plan(make_vpa(), make_pods(3), rivals=("newer",)))["p0"] == EVICT


# PodDisruptionBudgets


def pdb(allowed: int, name: str = "b", **fields: Any) -> PodDisruptionBudget:
    return meta.convert(
        {
            "metadata": {"name": name, "namespace": "n", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, **fields},
            "status": {"disruptionsAllowed": allowed, "observedGeneration": 1},
        },
        PodDisruptionBudget,
    )


def test_a_budget_that_allows_nothing_is_not_asked() -> None:
    around: dict[str, Any] = {"disruption_budgets": DisruptionBudgets([pdb(0)])}
    decision = next(make_plan(make_vpa(), make_pods(3), **around).others())
    assert decision.reason is Reason.DISRUPTION_BUDGET_BLOCKED
    assert "PodDisruptionBudget b" in decision.message
    off = without("foresee_disruption_budgets")
    assert outcome(make_plan(make_vpa(), make_pods(3), options=off, **around))["p0"] == EVICT


def test_a_plan_takes_no_more_than_a_budget_allows() -> None:
    told = outcome(make_plan(make_vpa(), make_pods(6), disruption_budgets=DisruptionBudgets([pdb(2)])))
    assert list(told.values()).count(EVICT) == 2
    assert list(told.values()).count(("none", "DisruptionBudgetBlocked")) == 4


def test_two_budgets_on_one_pod_are_a_mistake_that_is_named() -> None:
    budgets = DisruptionBudgets([pdb(5), pdb(5, "c")])
    decision = next(make_plan(make_vpa(), make_pods(3), disruption_budgets=budgets).others())
    assert decision.reason is Reason.DISRUPTION_BUDGET_BLOCKED
    assert "(b, c)" in decision.message


def test_a_resize_asks_no_disruption_budget_unless_it_restarts_a_container() -> None:
    vpa = make_vpa("InPlaceOrRecreate")
    budgets = DisruptionBudgets([pdb(0)])
    assert outcome(make_plan(vpa, make_pods(3), disruption_budgets=budgets))["p0"] == RESIZE
    container = {
        "name": "main",
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
        "resources": {"requests": {"cpu": "100m", "memory": "200Mi"}},
    }
    told = outcome(make_plan(vpa, make_pods(3, containers=[container]), disruption_budgets=budgets))
    assert told["p0"] == ("none", "DisruptionBudgetBlocked")


# Readiness and what earlier passes left open


def test_a_pod_that_is_not_ready_counts_as_down() -> None:
    pods = [make_pod("ready"), make_pod("also"), make_pod("starting", ready=False)]
    told = outcome(make_plan(make_vpa(), pods))
    assert [told["ready"], told["also"]] == [("none", "BudgetSpent")] * 2
    assert told["starting"] == EVICT, "it serves nobody, so it may go"
    off = without("count_readiness")
    assert outcome(make_plan(make_vpa(), pods, options=off))["ready"] == EVICT


def test_an_eviction_of_the_last_pass_still_counts() -> None:
    memory = trusting()
    pods = make_pods(3)
    first = make_plan(make_vpa(), pods, memory=memory)
    (decision,) = first.acted
    first.accepted(decision, NOW)
    again = make_plan(make_vpa(), pods, memory=memory, replicas=3)
    assert again.acted == []
    told = outcome(again)
    assert told[decision.pod.metadata.name] == ("none", "PodTerminating")
    assert ("none", "BudgetSpent") in told.values()


def test_a_resize_of_the_last_pass_still_counts_until_it_is_done() -> None:
    memory = trusting()
    vpa = make_vpa("InPlaceOrRecreate")
    pods = make_pods(3)
    first = make_plan(vpa, pods, memory=memory)
    first.accepted(first.acted[0], NOW, generation=2)
    again = outcome(make_plan(vpa, pods, memory=memory))
    assert [action for action, _ in again.values()].count("resize") == 0
    later = outcome(make_plan(vpa, pods, memory=memory, now=NOW + HOUR / 30))
    assert [action for action, _ in later.values()].count("resize") == 1
    off = without("count_open_attempts")
    told = outcome(make_plan(vpa, pods, memory=memory, options=off))
    assert [action for action, _ in told.values()].count("resize") == 1
