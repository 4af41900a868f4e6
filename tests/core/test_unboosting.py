"""The end of a startup boost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.core.updater_kit import (
    HOUR,
    NOW,
    UPSTREAM,
    make_options,
    make_plan,
    make_pod,
    make_pods,
    make_vpa,
    only,
    outcome,
    stamp,
)
from vpa.disruptions import Action, Decision
from vpa.objects.pods import Pod
from vpa.reasons import Reason
from vpa.rules import Rules
from vpa.updates.unboosting import duration, expired_containers

KEY = "vpaCpuStartupBoost/main"
BEFORE = '{"requests":{"cpu":"50m"},"limits":{}}'
BOOSTED = {"cpu": "900m", "memory": "400Mi"}


def boost(seconds: int | None) -> dict[str, Any]:
    cpu: dict[str, Any] = {"type": "Factor", "factor": 2}
    return {"cpu": cpu if seconds is None else {**cpu, "durationSeconds": seconds}}


def boosted(minutes_ready: int, annotation: str = BEFORE, status: str = "True", **fields: Any) -> Pod:
    ready = {
        "type": "Ready",
        "status": status,
        "lastTransitionTime": stamp(NOW - timedelta(minutes=minutes_ready)),
    }
    return make_pod(
        "p", requests=BOOSTED, annotations={KEY: annotation}, ready=None, conditions=[ready], **fields
    )


def told(pod: Pod, *, rules: Rules | None = None, mode: str = "Recreate", **vpa: Any) -> Decision:
    options = make_options(rules or Rules(), gates="CPUStartupBoost=true", min_replicas=1)
    vpa = {"startupBoost": boost(60), **vpa}
    return only(make_plan(make_vpa(mode, **vpa), [pod], options=options))


@pytest.mark.parametrize(
    ("minutes", "seconds", "status", "over"),
    [
        (2, 60, "True", True),
        (2, 0, "True", True),
        (0, 60, "True", False),
        (2, 60, "False", False),
        (1, 60, "True", False),
    ],
)
def test_a_boost_is_over_when_the_pod_was_ready_for_longer(
    minutes: int, seconds: int, status: str, over: bool
) -> None:
    vpa = make_vpa(startupBoost=boost(seconds))
    assert expired_containers(boosted(minutes, status=status), vpa, NOW) == (["main"] if over else [])


def test_the_policy_of_a_container_sets_its_own_duration() -> None:
    policy = {"containerPolicies": [{"containerName": "main", "startupBoost": boost(180)}]}
    vpa = make_vpa(startupBoost=boost(300), resourcePolicy=policy)
    assert (duration(vpa, "main"), duration(vpa, "other")) == (180, 300)
    assert duration(make_vpa(startupBoost=boost(None)), "main") == 0


def test_when_the_boost_is_over_the_container_gets_its_target() -> None:
    decision = told(boosted(2))
    assert (decision.action, decision.reason) == (Action.RESIZE, Reason.BOOST_EXPIRED)
    assert decision.patch is not None
    assert decision.patch.resize == [
        {"op": "add", "path": "/spec/containers/0/resources/requests/cpu", "value": "200m"}
    ]
    assert {"op": "remove", "path": "/metadata/annotations/vpaCpuStartupBoost~1main", "value": None} in (
        decision.patch.annotations
    )


def test_in_mode_off_it_gets_what_it_had_before() -> None:
    patch = told(boosted(2), mode="Off").patch
    assert patch is not None
    assert [one["value"] for one in patch.resize] == ["50m"]


def test_a_boost_that_is_not_over_keeps_the_pod_as_it_is() -> None:
    decision = told(boosted(0))
    assert (decision.action, decision.reason) == (Action.NONE, Reason.BOOST_ACTIVE)


def test_without_the_gate_boosts_are_no_matter() -> None:
    pod = boosted(2)
    plan = make_plan(make_vpa(startupBoost=boost(60)), [pod], options=make_options(min_replicas=1))
    assert only(plan).reason is Reason.OUTSIDE_BOUNDS


def test_with_a_recommendation_for_memory_alone_the_cpu_is_given_back() -> None:
    memory_only: dict[str, Any] = {"target": {"memory": "400Mi"}}
    patch = told(boosted(2), **memory_only).patch
    assert patch is not None
    assert [(one["path"].rsplit("/", 1)[1], one["value"]) for one in patch.resize] == [("cpu", "50m")]
    upstream = told(boosted(2), rules=UPSTREAM, **memory_only).patch
    assert upstream is not None
    assert {one["path"].rsplit("/", 1)[1] for one in upstream.resize} == {"memory"}, (
        "the boost stays for ever"
    )


def test_an_unreadable_annotation_does_not_keep_the_boost_for_ever() -> None:
    assert told(boosted(2, "broken")).action is Action.RESIZE
    upstream = told(boosted(2, "broken"), rules=UPSTREAM)
    assert (upstream.action, upstream.reason) == (Action.NONE, Reason.RESIZE_REFUSED)
    assert "looking for beginning of value" in upstream.message


def test_where_nothing_is_to_be_given_back_only_the_annotation_goes() -> None:
    decision = told(boosted(2, '{"requests":{},"limits":{}}'), mode="Off")
    assert decision.patch is not None
    assert decision.patch.resize == []
    assert [one["op"] for one in decision.patch.annotations] == ["remove"]


def test_ending_a_boost_touches_no_other_container() -> None:
    containers = [
        {"name": name, "resources": {"requests": {"cpu": "900m", "memory": "400Mi"}}}
        for name in ("main", "other")
    ]
    vpa: dict[str, Any] = {
        "containers": [{"containerName": name, "target": {"cpu": "100m"}} for name in ("main", "other")]
    }
    pod = boosted(2, containers=containers)
    for rules, paths in ((Rules(), 1), (UPSTREAM, 2)):
        patch = told(pod, rules=rules, mode="Initial", **vpa).patch
        assert patch is not None
        assert len(patch.resize) == paths


def test_ending_boosts_keeps_the_budget() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(NOW - HOUR)}
    pods = make_pods(4, requests=BOOSTED, annotations={KEY: BEFORE}, ready=None, conditions=[ready])
    options = make_options(gates="CPUStartupBoost=true")
    plan = make_plan(make_vpa(startupBoost=boost(60)), pods, options=options)
    assert [action for action, _ in outcome(plan).values()].count("resize") == 2
