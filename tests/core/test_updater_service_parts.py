"""Small parts of the updater's service: what is urgent, what an answer says, what lowers a limit."""

from __future__ import annotations

import pytest

from tests.core.updater_kit import NOW, make_options, make_plan, make_pod, make_vpa, stamp
from updater.acting import answer_of
from updater.news import deaths
from updater.surroundings import lowering
from updater.troubles import Troubles
from vpa.cluster.errors import Cause, Forbidden, Invalid, TooManyRequests, Unreachable
from vpa.updates.answers import Answer

KILLED = {"terminated": {"reason": "OOMKilled", "finishedAt": stamp(NOW)}}
STATUSES = {
    "nothing": ({}, 0),
    "killed now": ({"state": KILLED}, 1),
    "killed before": ({"lastState": KILLED}, 1),
    "crash loop": ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": KILLED}, 2),
    "another end": ({"lastState": {"terminated": {"reason": "Error"}}}, 0),
}


@pytest.mark.parametrize("name", STATUSES)
def test_kills_and_crash_loops_are_deaths(name: str) -> None:
    status, count = STATUSES[name]
    pod = make_pod("p", status={"containerStatuses": [{"name": "main", **status}]})
    assert len(deaths(pod)) == count


def test_a_kill_that_moves_from_state_to_last_state_is_no_new_death() -> None:
    now = make_pod("p", status={"containerStatuses": [{"name": "main", "state": KILLED}]})
    then = make_pod("p", status={"containerStatuses": [{"name": "main", "lastState": KILLED}]})
    assert deaths(now) == deaths(then)


def test_an_answer_keeps_what_the_server_said() -> None:
    causes = (Cause("DisruptionBudget", "", ""),)
    error = TooManyRequests("no", code=429, reason="TooManyRequests", causes=causes, retry_after=10.0)
    assert answer_of(error) == Answer(
        code=429,
        reason="TooManyRequests",
        message="no",
        causes=("DisruptionBudget",),
        retry_after=10.0,
    )
    assert answer_of(Unreachable("reset")) == Answer(code=0, message="reset")
    assert answer_of(Forbidden("no", code=403)).code == 403


def test_a_patch_that_does_not_fit_means_another_pod() -> None:
    """The server names no cause then; what it validates, it names."""
    assert answer_of(Invalid("the server rejected our request", code=422)).code == 409
    named = Invalid("invalid", code=422, causes=(Cause("FieldValueInvalid", "", "spec"),))
    assert answer_of(named).code == 422


@pytest.mark.parametrize(
    ("limit", "target", "found"), [("1Gi", "200Mi", {"n"}), ("100Mi", "900Mi", set()), (None, "1Gi", set())]
)
def test_only_namespaces_with_a_shrinking_memory_limit_are_asked_for_their_use(
    limit: str | None, target: str, found: set[str]
) -> None:
    limits = None if limit is None else {"memory": limit}
    requests = {"cpu": "100m", "memory": limit or "2Gi"}
    pod = make_pod("p", requests=requests, limits=limits)
    plan = make_plan(make_vpa(target={"memory": target}), [pod], options=make_options(min_replicas=1))
    assert len(plan.acted) == 1
    assert lowering(plan) == found


def test_a_trouble_is_said_when_it_begins_and_when_it_becomes_another() -> None:
    said: list[str] = []
    troubles = Troubles(said.append)
    assert troubles.bad("The lease", "stale")
    assert not troubles.bad("The lease", "stale")
    assert troubles.bad("The lease", Unreachable("x"))
    assert not troubles.bad("The lease", Unreachable("y"))
    troubles.good("The lease")
    assert troubles.bad("The lease", "stale")
    assert said == ["The lease: stale", "The lease: x", "The lease: stale"]
