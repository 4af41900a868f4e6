"""What the API server's answers mean: one test for each row of the table of answers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.core.updater_kit import NOW, make_options, make_plan, make_pods, make_vpa, outcome, trusting
from vpa.reasons import Reason
from vpa.updates import answers
from vpa.updates.answers import Answer, Meaning, Scope

BUDGET = Answer(code=429, causes=("DisruptionBudget",), message="needs 2 healthy pods and has 2 currently")


def test_429_for_a_disruption_budget_backs_off_from_half_a_minute_to_five() -> None:
    pauses = [answers.eviction(BUDGET, failures=failures).pause.total_seconds() for failures in range(6)]
    assert pauses == [30, 60, 120, 240, 300, 300]
    meaning = answers.eviction(BUDGET)
    assert meaning.refusal.reason is Reason.DISRUPTION_BUDGET_BLOCKED
    assert "needs 2 healthy pods" in meaning.refusal.message
    assert meaning.scope is Scope.GROUP


def test_429_for_a_budget_that_is_not_counted_yet_obeys_retry_after() -> None:
    meaning = answers.eviction(Answer(code=429, causes=("DisruptionBudget",), retry_after=10))
    assert (meaning.refusal.reason, meaning.pause) == (
        Reason.DISRUPTION_BUDGET_BLOCKED,
        timedelta(seconds=10),
    )


@pytest.mark.parametrize("judge", [answers.eviction, answers.resize])
def test_429_without_a_cause_is_an_overloaded_server_for_everybody(judge: type) -> None:
    meaning: Meaning = judge(Answer(code=429, retry_after=7))
    assert meaning.refusal.reason is Reason.SERVER_BUSY
    assert meaning.scope is Scope.CLUSTER
    assert meaning.pause == timedelta(seconds=7)
    assert not meaning.refused


@pytest.mark.parametrize("judge", [answers.eviction, answers.resize])
def test_404_means_that_the_pod_is_gone(judge: type) -> None:
    meaning: Meaning = judge(Answer(code=404, message='pods "p" not found'))
    assert (meaning.refusal.reason, meaning.pause) == (Reason.POD_GONE, answers.NEVER)


@pytest.mark.parametrize("judge", [answers.eviction, answers.resize])
def test_409_means_that_it_is_another_pod_by_now(judge: type) -> None:
    meaning: Meaning = judge(Answer(code=409, message="the UID in the precondition does not match"))
    assert (meaning.refusal.reason, meaning.pause) == (Reason.POD_CHANGED, answers.NEVER)


def test_403_of_an_eviction_is_reported_and_left_alone_for_long() -> None:
    meaning = answers.eviction(Answer(code=403, message='cannot create resource "pods/eviction"'))
    assert (meaning.refusal.reason, meaning.pause) == (Reason.EVICTION_REFUSED, timedelta(hours=1))
    assert "pods/eviction" in meaning.refusal.message


def test_403_because_of_an_exhausted_budget_belongs_to_the_budget() -> None:
    meaning = answers.eviction(Answer(code=403, message="pdb disruption allowed is negative"))
    assert meaning.refusal.reason is Reason.DISRUPTION_BUDGET_BLOCKED


def test_500_for_two_budgets_is_a_mistake_of_the_user() -> None:
    said = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    meaning = answers.eviction(Answer(code=500, message=said))
    assert meaning.refusal.reason is Reason.DISRUPTION_BUDGET_BLOCKED
    assert meaning.misconfigured
    assert "remove one" in meaning.refusal.message


@pytest.mark.parametrize("code", [0, 408, 500, 502, 503, 504])
@pytest.mark.parametrize("judge", [answers.eviction, answers.resize])
def test_no_answer_and_errors_of_the_server_are_tried_again_soon(judge: type, code: int) -> None:
    meaning: Meaning = judge(Answer(code=code, message="" if code else "connection reset"))
    assert meaning.refusal.reason is Reason.SERVER_BUSY
    assert meaning.pause == timedelta(seconds=10)
    assert not meaning.refused, "it may have happened all the same"


def test_504_obeys_retry_after() -> None:
    assert answers.eviction(Answer(code=504, retry_after=10)).pause == timedelta(seconds=10)


def test_400_is_a_refusal() -> None:
    meaning = answers.eviction(Answer(code=400, message="name mismatch"))
    assert meaning.refusal.reason is Reason.EVICTION_REFUSED


def test_a_node_that_is_too_small_makes_a_resize_infeasible() -> None:
    meaning = answers.resize(Answer(code=403, causes=("NodeCapacity",), message="cpu, requested: 9"))
    assert meaning.infeasible
    assert meaning.refusal.reason is Reason.RESIZE_INFEASIBLE


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(code=403, causes=("UnsupportedPlatform",)), Reason.RESIZE_REFUSED),
        (Answer(code=403, message="exceeded quota: q"), Reason.QUOTA_EXCEEDED),
        (Answer(code=403, message="denied by policy"), Reason.RESIZE_REFUSED),
        (
            Answer(code=422, message="Pod QOS Class may not change as a result of resizing"),
            Reason.QOS_WOULD_CHANGE,
        ),
        (Answer(code=422, message="memory limits cannot be decreased"), Reason.RESIZE_REFUSED),
    ],
)
def test_other_refusals_of_a_resize_have_their_reason(answer: Answer, reason: Reason) -> None:
    meaning = answers.resize(answer)
    assert meaning.refusal.reason is reason
    assert not meaning.infeasible, "upstream takes only NodeCapacity for infeasible"


def test_a_missing_subresource_concerns_the_whole_cluster() -> None:
    meaning = answers.resize(Answer(code=404, message="the server could not find the requested resource"))
    assert meaning.feature_missing
    assert meaning.scope is Scope.CLUSTER


# What the plan makes of them


def test_after_a_blocked_eviction_one_other_pod_is_tried_and_then_the_group_left_alone() -> None:
    memory = trusting()
    plan = make_plan(make_vpa(), make_pods(6), memory=memory)
    assert len(plan.acted) == 3
    assert len(plan.refused(plan.acted[0], BUDGET, NOW)) == 1
    assert plan.refused(plan.acted[1], BUDGET, NOW) == []
    reasons = [reason for action, reason in outcome(plan).values() if action == "none"]
    assert reasons.count("DisruptionBudgetBlocked") == len(reasons)


def test_a_refused_pod_is_left_alone_until_its_pause_is_over() -> None:
    memory = trusting()
    pods = make_pods(2)
    plan = make_plan(make_vpa(), pods, memory=memory)
    plan.refused(plan.acted[0], BUDGET, NOW)
    soon = outcome(make_plan(make_vpa(), pods, memory=memory, now=NOW + timedelta(seconds=20)))
    assert soon["p0"] == ("none", "DisruptionBudgetBlocked")
    later = outcome(make_plan(make_vpa(), pods, memory=memory, now=NOW + timedelta(seconds=40)))
    assert later["p0"] == ("evict", "OutsideBounds")
    forgetful = make_options().rules.override(remember_refusals=False)
    options = make_options(forgetful)
    again = outcome(make_plan(make_vpa(), pods, memory=memory, options=options))
    assert again["p0"] == ("evict", "OutsideBounds"), "upstream asks again in each pass"


def test_an_overloaded_server_stops_the_plan() -> None:
    plan = make_plan(make_vpa(), make_pods(6))
    assert plan.refused(plan.acted[0], Answer(code=429, retry_after=5), NOW) == []
    assert {reason for action, reason in outcome(plan).values() if action == "none"} == {"ServerBusy"}


def test_an_eviction_of_which_nobody_knows_stays_counted() -> None:
    plan = make_plan(make_vpa(), make_pods(3))
    assert plan.refused(plan.acted[0], Answer(code=0, message="timeout"), NOW) == []
    plan = make_plan(make_vpa(), make_pods(3))
    assert plan.refused(plan.acted[0], Answer(code=404), NOW) == [], "the pod is down, whoever did it"


def test_a_refused_resize_is_remembered_until_its_target_shrinks_or_an_hour_is_over() -> None:
    memory = trusting()
    options = make_options(gates="InPlace=true")
    pods = make_pods(1)
    plan = make_plan(make_vpa("InPlace"), pods, memory=memory, options=options)
    plan.refused(plan.acted[0], Answer(code=403, causes=("NodeCapacity",)), NOW)

    def told(cpu: str, minutes: int) -> tuple[str, str]:
        vpa = make_vpa("InPlace", target={"cpu": cpu, "memory": "400Mi"})
        now = NOW + timedelta(minutes=minutes)
        return outcome(make_plan(vpa, pods, memory=memory, options=options, now=now))["p0"]

    assert told("200m", 1) == ("none", "ResizeInfeasible")
    assert told("300m", 1) == ("none", "ResizeInfeasible")
    assert told("150m", 1) == ("resize", "OutsideBounds")
    assert told("200m", 61) == ("resize", "OutsideBounds")
