"""How a VPA stands after a pass, as the conditions that the updater owns."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.core.updater_kit import HOUR, NOW, make_vpa
from updater import standing
from updater.standing import PASSING, QUIET, Group, Lasting, Standing
from vpa.disruptions import Action, Decision
from vpa.objects import meta
from vpa.objects.autoscalers import Condition, VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.updates.hpas import Claim

KEY = ("n", "v")


def made(**left_alone: int) -> Standing:
    """A VPA of four pods, so many of which are left alone for each reason."""
    found = {Reason[name.upper()]: Group(count, f"{name} is why") for name, count in left_alone.items()}
    return Standing(make_vpa(), 4, found)


def blocked(one: Standing, *lasting: Reason) -> Condition | None:
    return standing.conditions(one, lasting, breaker=None, claims=())[standing.UPDATES_BLOCKED]


def test_the_reason_of_most_pods_is_the_conditions_and_the_message_tells_all() -> None:
    found = blocked(made(quota_exceeded=1, no_node_fits=3))
    assert found is not None
    assert (found.status, found.reason) == ("True", "NoNodeFits")
    assert found.message == "3 of 4 pods: no_node_fits is why; 1 of 4 pods: quota_exceeded is why"


@pytest.mark.parametrize("reason", sorted(QUIET))
def test_what_is_no_trouble_is_no_condition(reason: Reason) -> None:
    assert blocked(made(**{reason.name.lower(): 4}), *Reason) is None


@pytest.mark.parametrize("reason", sorted(PASSING))
def test_what_is_part_of_any_update_is_told_only_when_it_lasts(reason: Reason) -> None:
    one = made(**{reason.name.lower(): 2})
    assert blocked(one) is None
    found = blocked(one, reason)
    assert found is not None
    assert found.reason == reason


def test_a_reason_lasts_from_five_minutes_on_and_begins_anew_after_a_break() -> None:
    lasting, minute = Lasting(), timedelta(minutes=1)
    reasons = [Reason.BUDGET_SPENT, Reason.UP_TO_DATE]
    assert lasting.update(KEY, reasons, NOW) == set()
    assert lasting.update(KEY, reasons, NOW + 4 * minute) == set()
    assert lasting.update(KEY, reasons, NOW + 5 * minute) == {Reason.BUDGET_SPENT}
    assert lasting.update(KEY, [], NOW + 6 * minute) == set()
    assert lasting.update(KEY, reasons, NOW + 7 * minute) == set()
    lasting.forget({})
    assert lasting.update(KEY, reasons, NOW + HOUR) == set()


def test_a_breaker_and_an_hpa_have_conditions_of_their_own() -> None:
    refusal = Refusal(Reason.LOOP_BREAKER, "the new pod came without its target")
    found = standing.conditions(
        made(loop_breaker=3), [Reason.LOOP_BREAKER], breaker=refusal, claims=[Claim("web", "cpu")]
    )
    assert found[standing.UPDATES_BLOCKED] is None
    breaker, conflict = found[standing.LOOP_BREAKER], found[standing.HPA_CONFLICT]
    assert breaker is not None
    assert breaker.message == refusal.message
    assert conflict is not None
    assert "HorizontalPodAutoscaler web scales this target by cpu utilisation" in conflict.message


def test_what_does_not_hold_is_removed() -> None:
    found = standing.conditions(made(), [], breaker=None, claims=())
    assert found == dict.fromkeys(standing.OWNED)


def test_only_claims_on_what_the_vpa_recommends_matter() -> None:
    claims = [Claim("a", "cpu"), Claim("b", "memory", "main"), Claim("c", "memory", "other")]
    vpa = make_vpa(target={"memory": "100Mi"})
    assert [claim.hpa for claim in standing.relevant(claims, vpa)] == ["b"]
    assert standing.relevant(claims, VerticalPodAutoscaler()) == []


def test_a_new_process_learns_from_the_condition_until_when_evictions_are_stopped() -> None:
    condition = {"type": "LoopBreaker", "status": "True", "lastTransitionTime": "2026-08-01T11:30:00Z"}
    vpa = meta.convert({"status": {"conditions": [condition]}}, VerticalPodAutoscaler)
    assert standing.stopped_until(vpa) == NOW + HOUR / 2
    assert standing.stopped_until(make_vpa()) is None


def test_pods_are_counted_by_reason_with_one_message_each() -> None:
    one = made()
    for name in ("first", "second"):
        one.add(
            Decision(pod=Pod(), vpa=one.vpa, action=Action.NONE, reason=Reason.QUOTA_EXCEEDED, message=name)
        )
    assert one.left_alone == {Reason.QUOTA_EXCEEDED: Group(2, "first")}
