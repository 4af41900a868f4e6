"""What docs/differences.md says of updater and webhook and no other test shows, under both presets."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.registry import CollectorRegistry

from tests.core import pods
from tests.core.pods import admitted, container, limit_range, pod, sizes, the_ranges
from tests.core.updater_kit import (
    HOUR,
    NOW,
    SAFE,
    UPSTREAM,
    make_options,
    make_plan,
    make_pod,
    make_pods,
    make_vpa,
    only,
    outcome,
    trusting,
)
from updater import figures
from updater.metrics import AllMetrics
from updater.settings import TABLE, Settings
from vpa.disruptions import Action
from vpa.gates import FeatureGates
from vpa.matching import ADMISSION, UPDATER, takes_part
from vpa.reasons import Reason
from vpa.rules import Rules
from vpa.sizes.limit_ranges import Ranges
from vpa.updates.answers import Answer

BOTH = pytest.mark.parametrize("rules", [SAFE, UPSTREAM], ids=["safe", "upstream"])
GATES = "CPUStartupBoost=true,InPlace=true"


@BOTH
def test_of_an_old_vpa_that_only_sizes_new_pods_and_a_younger_one_updater_and_webhook_choose(
    rules: Rules,
) -> None:
    old, young = make_vpa("Initial"), make_vpa("Recreate")

    def first(service: str) -> Any:
        gates = FeatureGates()
        return next(one for one in (old, young) if takes_part(one, service=service, rules=rules, gates=gates))

    assert first(ADMISSION) is old
    assert first(UPDATER) is (old if rules is SAFE else young)


@BOTH
def test_a_container_without_bounds_under_a_pod_limit_range_does_not_stop_the_updater(rules: Rules) -> None:
    """Upstream's updater ends there; under its rules ours leaves the pod alone."""
    ranges: dict[str, Ranges] = {
        "n": the_ranges(limit_range({"type": "Pod", "max": {"cpu": "250m"}}), rules=rules)
    }
    containers = [
        {"name": name, "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}}
        for name in ("main", "side")
    ]
    vpa = make_vpa(
        containers=[{"containerName": "main", "target": {"cpu": "150m"}, "upperBound": {"cpu": "1"}}]
    )
    told = outcome(
        make_plan(
            vpa,
            [make_pod("p", containers=containers)],
            ranges=ranges,
            options=make_options(rules, min_replicas=1),
        )
    )
    assert told["p"] == (("evict", "OutsideBounds") if rules is SAFE else ("none", "UpstreamFails"))


def test_memory_that_is_not_recommended_stays_and_under_upstream_becomes_minus_one() -> None:
    whole = pod(
        container("main", {"memory": "1Gi"}, {"memory": "1Gi"}),
        container("side", {"cpu": "100m"}, {"cpu": "100m"}),
    )
    entry = {"target": {"cpu": "100m"}, "lowerBound": {"cpu": "100m"}, "upperBound": {"cpu": "100m"}}
    main = {
        "target": {"memory": "2Gi"},
        "lowerBound": {"memory": "2Gi"},
        "upperBound": {"memory": "2Gi"},
    }
    wanted = pods.vpa({"main": main, "side": entry})
    bound = limit_range({"type": "Pod", "max": {"memory": "1Gi"}})
    ours, _ = admitted(whole, wanted, bound)
    assert "memory" not in sizes(ours)[1][0]
    theirs, _ = admitted(whole, wanted, bound, rules=UPSTREAM)
    assert sizes(theirs)[1][0]["memory"] == "-1"


def test_a_boost_without_type_is_none_and_under_upstream_a_factor() -> None:
    wanted = pods.vpa({"main": {"cpu": "150m"}}, startupBoost={"cpu": {"factor": 2}})
    whole = pod(container("main", {"cpu": "100m"}))
    for rules, cpu in ((SAFE, "150m"), (UPSTREAM, "300m")):
        result, _ = admitted(whole, wanted, rules=rules, gates=GATES)
        assert sizes(result)[0][0]["cpu"] == cpu


@BOTH
def test_a_boost_with_no_cpu_to_start_from_is_ignored_and_under_upstream_stays_for_ever(
    rules: Rules,
) -> None:
    boost = {"cpu": {"type": "Quantity", "quantity": "500m"}}
    result, _ = admitted(pod(container("main")), pods.vpa({}, startupBoost=boost), rules=rules, gates=GATES)
    requests, _ = sizes(result)[0]
    assert requests == ({} if rules is SAFE else {"cpu": "500m"})


@BOTH
def test_no_threshold_and_no_recommendation_together_are_no_trouble(rules: Rules) -> None:
    vpa = make_vpa(containers=[])
    options = make_options(rules, pod_update_threshold=0.0, min_replicas=1)
    decision = only(make_plan(vpa, [make_pod("p")], options=options))
    assert (decision.action, decision.reason) == (Action.NONE, Reason.NO_RECOMMENDATION)


@BOTH
def test_during_a_rollout_each_replica_set_has_a_budget_of_its_own(rules: Rules) -> None:
    old = [make_pod(f"old-{number}", owner=("ReplicaSet", "web-1")) for number in range(4)]
    new = [make_pod(f"new-{number}", owner=("ReplicaSet", "web-2")) for number in range(4)]
    plan = make_plan(make_vpa(), [*old, *new], options=make_options(rules))
    evicted = [one.pod.metadata.name.partition("-")[0] for one in plan.acted]
    assert sorted(evicted) == ["new", "new", "old", "old"]


@BOTH
def test_pods_that_fall_back_to_eviction_count_as_resizable_in_the_gauges(rules: Rules) -> None:
    flags = ["--min-replicas=1"] + (["--compatibility=upstream"] if rules is UPSTREAM else [])
    settings = TABLE.parse(flags).fill(Settings)
    late = {
        "type": "PodResizePending",
        "status": "True",
        "reason": "Infeasible",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-08-01T11:00:00Z",
    }
    pods = make_pods(1, conditions=[late])
    plan = make_plan(
        make_vpa("InPlaceOrRecreate"), pods, options=make_options(rules, min_replicas=1), replicas=1
    )
    assert [one.action for one in plan.acted] == [Action.EVICT]
    metrics = AllMetrics(CollectorRegistry())
    figures.publish(settings, metrics, plan, {}, NOW)
    size, mode = {"vpa_size_log2": "0"}, {"update_mode": "InPlaceOrRecreate"}
    assert metrics.loop.evictable.value(**size, **mode) == 0
    assert metrics.loop.updatable.value(**size) == 1
    assert metrics.loop.with_evicted.value(**size, **mode) == 1


@BOTH
def test_a_later_resize_of_a_pod_waits_its_own_time(rules: Rules) -> None:
    """Upstream counts from the first sighting of the name: the pod is evicted at once."""
    deferred = {
        "type": "PodResizePending",
        "status": "True",
        "reason": "Deferred",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-08-01T11:59:00Z",
    }
    vpa = make_vpa("InPlaceOrRecreate")
    options = make_options(rules, min_replicas=1)
    memory = trusting()
    first = make_pods(1, conditions=[{**deferred, "lastTransitionTime": "2026-08-01T09:59:00Z"}])
    make_plan(vpa, first, options=options, memory=memory, now=NOW - 2 * HOUR)
    make_plan(vpa, make_pods(1), options=options, memory=memory, now=NOW - HOUR)
    told = outcome(make_plan(vpa, make_pods(1, conditions=[deferred]), options=options, memory=memory))
    assert told["p0"][0] == ("none" if rules is SAFE else "evict")


@BOTH
def test_a_container_that_the_webhook_never_saw_is_resized_only_by_upstream(rules: Rules) -> None:
    containers = [{"name": name, "resources": {"requests": {"cpu": "100m"}}} for name in ("main", "injected")]
    vpa = make_vpa(
        "InPlaceOrRecreate",
        containers=[
            {"containerName": name, "target": {"cpu": "200m"}, "lowerBound": {"cpu": "200m"}}
            for name in ("main", "injected")
        ],
    )
    seen = make_pod("p", containers=containers, annotations={"vpaObservedContainers": "main"})
    patch = only(make_plan(vpa, [seen], options=make_options(rules, min_replicas=1))).patch
    assert patch is not None
    assert len(patch.resize) == (1 if rules is SAFE else 2)


@BOTH
def test_a_container_without_a_recommendation_is_scaled_by_a_pod_limit_range_only_by_upstream(
    rules: Rules,
) -> None:
    whole = pod(
        container("main", {"cpu": "100m"}, {"cpu": "100m"}),
        container("side", {"cpu": "100m"}, {"cpu": "400m"}),
    )
    bound = limit_range({"type": "Pod", "max": {"cpu": "1"}})
    result, _ = admitted(whole, pods.vpa({"main": {"cpu": "5"}}), bound, rules=rules)
    assert (sizes(result)[1] == ({"cpu": "100m"}, {"cpu": "400m"})) is (rules is SAFE)


@BOTH
def test_a_minimum_of_a_pod_limit_range_is_missed_by_a_byte_only_by_upstream(rules: Rules) -> None:
    whole = pod(*(container(name, {"memory": "1Gi"}, {"memory": "1Gi"}) for name in ("a", "b")))
    bound = limit_range({"type": "Pod", "min": {"memory": "4Gi"}})
    wanted = pods.vpa({"a": {"memory": "1Gi"}, "b": {"memory": "2Gi"}})
    result, _ = admitted(whole, wanted, bound, rules=rules)
    total = sum(pods.nanos(requests, "memory") for requests, _ in sizes(result)) // 10**9
    assert (total >= 2**32) is (rules is SAFE)
    assert total >= 2**32 - 1


@BOTH
def test_a_container_that_opted_out_is_still_changed_by_upstream_while_the_status_names_it(
    rules: Rules,
) -> None:
    whole = pod(container("main", {"cpu": "1"}), container("side", {"cpu": "1"}))
    wanted = pods.vpa(
        {"main": {"cpu": "4"}, "side": {"cpu": "4"}}, policies=[{"containerName": "side", "mode": "Off"}]
    )
    result, _ = admitted(whole, wanted, rules=rules)
    assert sizes(result)[1][0]["cpu"] == ("1" if rules is SAFE else "4")


@BOTH
def test_a_pod_without_a_recommendation_gets_empty_resources_only_by_upstream(rules: Rules) -> None:
    whole = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "main"}]}}
    _, done = admitted(whole, pods.vpa({}), rules=rules)
    empty = {"op": "add", "path": "/spec/containers/0/resources", "value": {}}
    assert (empty in done.patch) is (rules is UPSTREAM)


def test_a_refusal_is_forgotten_once_a_resize_worked() -> None:
    memory, options = trusting(), make_options(gates=GATES)

    def planned(cpu: str, minutes: int) -> Any:
        vpa = make_vpa("InPlace", target={"cpu": cpu, "memory": "400Mi"})
        now = NOW + minutes * HOUR / 60
        return make_plan(vpa, make_pods(1), memory=memory, options=options, now=now)

    first = planned("300m", 0)
    first.refused(first.acted[0], Answer(code=403, causes=("NodeCapacity",)), NOW)
    assert outcome(planned("300m", 10))["p0"] == ("none", "ResizeInfeasible")
    smaller = planned("200m", 10)
    smaller.accepted(smaller.acted[0], NOW + HOUR / 6)
    assert outcome(planned("300m", 20))["p0"] == ("resize", "OutsideBounds")
