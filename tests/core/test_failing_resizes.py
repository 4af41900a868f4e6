"""Resizes that the node took on and fails to make: said, and not asked for again and again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.updater_kit import HOUR, NOW, make_options, make_plan, make_pod, make_vpa, only, stamp
from vpa.disruptions import Action
from vpa.reasons import Reason


def failing(message: str = "no luck") -> list[dict[str, Any]]:
    found = {"type": "PodResizeInProgress", "status": "True", "reason": "Error", "message": message}
    return [found]


@pytest.mark.parametrize("mode", ["InPlace", "InPlaceOrRecreate"])
@pytest.mark.parametrize("told", [True, False], ids=["by the kubelet", "by the spec"])
def test_a_resize_that_the_node_fails_to_make_is_told_though_the_figures_are_those_of_the_target(
    mode: str, told: bool
) -> None:
    size = {"cpu": "200m", "memory": "400Mi"}
    status = {"containerStatuses": [{"name": "main", "resources": {"requests": size}}]} if told else {}
    pod = make_pod("p", requests=size, conditions=failing(), status=status)
    options = make_options(gates="InPlace=true", min_replicas=1)
    decision = only(make_plan(make_vpa(mode), [pod], options=options))
    assert (decision.action, decision.reason) == (Action.NONE, Reason.RESIZE_REFUSED)
    assert "the node refuses the resize (no luck)" in decision.message
    below = make_pod("p", requests=size, conditions=failing("memory limit (4) below current usage"))
    decision = only(make_plan(make_vpa(mode), [below], options=options))
    assert decision.reason is Reason.LIMIT_BELOW_USAGE
    assert only(make_plan(make_vpa("Recreate"), [pod])).reason is Reason.UP_TO_DATE


def test_mode_in_place_waits_for_a_node_that_fails_and_asks_for_another_target_only() -> None:
    options = make_options(gates="InPlace=true", min_replicas=1)
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "200m", "memory": "400Mi"}}}]}
    told = {"name": "main", "resources": {"requests": {"cpu": "100m", "memory": "400Mi"}}}
    since = stamp(NOW - HOUR)
    pod = make_pod(
        "p",
        spec=spec,
        status={"containerStatuses": [told]},
        conditions=[{**failing()[0], "lastTransitionTime": since}],
    )
    assert only(make_plan(make_vpa("InPlace"), [pod], options=options)).reason is Reason.RESIZE_REFUSED
    other = make_vpa("InPlace", target={"cpu": "300m", "memory": "400Mi"})
    assert only(make_plan(other, [pod], options=options)).action is Action.RESIZE
