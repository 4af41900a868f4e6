"""What a pod should look like: sizes that are admitted, explained, and stay."""

from __future__ import annotations

from tests.core.pods import (
    SAFE,
    a_pod,
    a_vpa,
    admitted,
    container,
    limit_range,
    nanos,
    pod,
    refusals,
    sizes,
    the_ranges,
    vpa,
)
from vpa.objects import meta
from vpa.objects.nodes import Node
from vpa.pods import desired
from vpa.reasons import Reason
from vpa.sizes.nodes_fit import Rooms

GI, MI = 2**30, 2**20


def test_a_pod_limit_range_keeps_bounds_around_the_target_and_a_fitted_pod_as_it_is() -> None:
    whole = pod(
        container("main", {"memory": "500Mi"}, {"memory": "1000Mi"}),
        container("helper", {"memory": "100Mi"}, {"memory": "150Mi"}),
    )
    wanted = vpa(
        {
            "main": {
                "target": {"memory": "1500Mi"},
                "lowerBound": {"memory": "900Mi"},
                "upperBound": {"memory": "4Gi"},
            },
            "helper": {
                "target": {"memory": "300Mi"},
                "lowerBound": {"memory": "299Mi"},
                "upperBound": {"memory": "301Mi"},
            },
        }
    )
    bound = limit_range({"type": "Pod", "max": {"memory": "1Gi"}})
    first, done = admitted(whole, wanted, bound)
    assert refusals(first, bound) == []
    assert done.desired is not None
    again = desired(a_pod(first), a_vpa(wanted), the_ranges(bound), rules=SAFE)
    for entry, (requests, _) in zip(again.recommendations, sizes(first), strict=True):
        assert entry.target is not None
        assert entry.lower_bound is not None
        assert entry.upper_bound is not None
        assert entry.lower_bound["memory"] <= entry.target["memory"] <= entry.upper_bound["memory"]
        assert str(entry.target["memory"]) == requests["memory"]


def test_shares_of_a_pod_limit_range_add_up_to_its_maximum_to_the_byte() -> None:
    bound = limit_range(
        {"type": "Pod", "max": {"memory": "115Gi"}, "min": {"memory": "50Mi"}},
        {"type": "Container", "default": {"memory": "512Mi"}, "defaultRequest": {"memory": "256Mi"}},
    )
    targets = {"a": 23574998, "b": 1389197403, "c": 1312092764}
    for limit in ("512Mi", "10Gi", "47Gi", "100Gi"):
        whole = pod(*(container(name, {"memory": "256Mi"}, {"memory": limit}) for name in targets))
        wanted = vpa({name: {"memory": str(value)} for name, value in targets.items()})
        result, _ = admitted(whole, wanted, bound)
        total = sum(nanos(limits, "memory") for _, limits in sizes(result)) // 10**9
        assert total <= 115 * GI
        assert refusals(result, bound) == []
        unbound, _ = admitted(whole, wanted)
        if refusals(unbound, bound):
            assert total > 115 * GI - 1000


def test_with_requests_only_no_ratio_is_read_out_of_a_default_limit() -> None:
    bound = limit_range(
        {
            "type": "Container",
            "default": {"cpu": "3"},
            "defaultRequest": {"cpu": "50m"},
            "max": {"cpu": "3"},
        }
    )
    policies = [{"containerName": "*", "controlledValues": "RequestsOnly"}]
    for limits in ({"memory": "2Gi"}, {"memory": "2Gi", "cpu": "3"}):
        whole = pod(container("main", {"cpu": "50m", "memory": "600Mi"}, limits))
        wanted = vpa({"main": {"cpu": "400m", "memory": "700Mi"}}, policies=policies)
        (requests, after), *_ = sizes(admitted(whole, wanted, bound)[0])
        assert requests["cpu"] == "400m"
        assert after == limits


def test_a_policy_minimum_above_the_limit_range_lowers_the_limit_and_the_pod_is_admitted() -> None:
    bound = limit_range(
        {"type": "Container", "max": {"memory": "2560Mi"}}, {"type": "Pod", "max": {"memory": "2560Mi"}}
    )
    whole = pod(container("main", {"cpu": "50m", "memory": "128Mi"}, {"cpu": "250m", "memory": "1280Mi"}))
    policies = [
        {
            "containerName": "*",
            "minAllowed": {"cpu": "50m", "memory": "768Mi"},
            "maxAllowed": {"cpu": "1", "memory": "1536Mi"},
        }
    ]
    wanted = vpa({"main": {"cpu": "78m", "memory": "768Mi"}}, policies=policies)
    result, done = admitted(whole, wanted, bound)
    assert refusals(result, bound) == []
    assert sizes(result) == [({"cpu": "78m", "memory": "768Mi"}, {"cpu": "390m", "memory": "2560Mi"})]
    assert "memory limit capped to fit" in done.patch[-2]["value"]


def test_a_request_at_its_fixed_limit_says_what_caps_it_and_what_was_wanted() -> None:
    whole = pod(container("main", {"cpu": "10"}, {"cpu": "10"}))
    wanted = vpa(
        {"main": {"target": {"cpu": "10350m"}, "uncappedTarget": {"cpu": "10350m"}}},
        policies=[{"containerName": "main", "controlledValues": "RequestsOnly"}],
    )
    result = desired(a_pod(whole), a_vpa(wanted), the_ranges(), rules=SAFE)
    cap = result.capped_by("main", "cpu")
    assert cap is not None
    assert (cap.by, str(cap.before), str(cap.after)) == ("container limit", "10350m", "10")
    assert result.capped_by("main", "memory") is None


def test_a_resource_with_an_explicit_limit_of_zero_is_left_alone_and_the_reason_is_said() -> None:
    whole = pod(container("main", {"memory": "64Mi"}, {"cpu": "0", "memory": "64Mi"}))
    wanted = vpa({"main": {"cpu": "627m", "memory": "128Mi"}})
    result, done = admitted(whole, wanted)
    assert refusals(result) == []
    assert sizes(result) == [({"memory": "128Mi"}, {"cpu": "0", "memory": "128Mi"})]
    assert done.desired is not None
    assert [(item.resource, item.why.reason) for item in done.desired.left_alone] == [
        ("cpu", Reason.ZERO_LIMIT)
    ]


def test_a_resource_that_is_not_controlled_is_not_mentioned() -> None:
    whole = pod(container("main", {"cpu": "100m", "memory": "64Mi"}, {"cpu": "200m", "memory": "128Mi"}))
    policies = [{"containerName": "main", "controlledResources": ["cpu"]}]
    bound = limit_range({"type": "Pod", "max": {"memory": "100Mi"}, "min": {"memory": "90Mi"}})
    for target in ({"cpu": "300m"}, {"cpu": "300m", "memory": "1Gi"}):
        for ranges in ((), (bound,)):
            _, done = admitted(whole, vpa({"main": target}, policies=policies), *ranges)
            assert "memory" not in str(done.patch)
            assert "cpu" in str(done.patch)


def test_policy_bounds_finer_than_a_pod_can_hold_do_not_make_its_size_differ_for_ever() -> None:
    policies = [{"containerName": "*", "minAllowed": {"cpu": "187500u", "memory": "1.2Gi"}}]
    whole = pod(container("main", {"cpu": "10m", "memory": "64Mi"}))
    result, _ = admitted(whole, vpa({"main": {"cpu": "100m", "memory": "100Mi"}}, policies=policies))
    assert sizes(result)[0][0] == {"cpu": "188m", "memory": "1288490189"}
    again = desired(
        a_pod(result),
        a_vpa(vpa({"main": {"cpu": "100m", "memory": "100Mi"}}, policies=policies)),
        the_ranges(),
        rules=SAFE,
    )
    assert {name: str(value) for name, value in again.containers[0].requests.items()} == sizes(result)[0][0]


def test_pod_level_resources_bound_the_containers() -> None:
    whole = pod(
        container("main", {"cpu": "100m"}, {"cpu": "200m"}),
        container("side", {"cpu": "100m"}),
        resources={"requests": {"cpu": "500m"}, "limits": {"cpu": "600m"}},
    )
    result, done = admitted(whole, vpa({"main": {"cpu": "800m"}, "side": {"cpu": "200m"}}))
    assert refusals(result) == []
    assert done.desired is not None
    cap = done.desired.capped_by("main", "cpu")
    assert cap is not None
    assert cap.by == "pod-level resources"
    assert sum(nanos(requests, "cpu") for requests, _ in sizes(result)) == 500_000_000


def test_native_sidecars_count_against_pod_level_resources_and_are_not_touched() -> None:
    sidecar = container("proxy", {"cpu": "200m"}, restartPolicy="Always")
    whole = pod(
        container("main", {"cpu": "100m"}),
        initContainers=[sidecar],
        resources={"requests": {"cpu": "500m"}},
    )
    result, _ = admitted(whole, vpa({"main": {"cpu": "2"}, "proxy": {"cpu": "2"}}))
    assert sizes(result)[0][0] == {"cpu": "300m"}
    assert result["spec"]["initContainers"] == [sidecar]


def test_a_container_with_resource_claims_is_left_alone() -> None:
    claimed = container("gpu", {"cpu": "1"})
    claimed["resources"]["claims"] = [{"name": "device"}]
    result, done = admitted(
        pod(claimed, container("main", {"cpu": "1"})), vpa({"gpu": {"cpu": "4"}, "main": {"cpu": "2"}})
    )
    assert [requests for requests, _ in sizes(result)] == [{"cpu": "1"}, {"cpu": "2"}]
    assert done.desired is not None
    assert done.desired.left_alone[0].why.reason is Reason.RESOURCE_CLAIMS


def test_a_mirror_pod_is_left_alone() -> None:
    whole = pod(container("main", {"cpu": "1"}))
    whole["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    _, done = admitted(whole, vpa({"main": {"cpu": "4"}}))
    assert done.patch == []
    assert done.reason is not None
    assert done.reason.reason is Reason.MIRROR_POD


def test_an_opted_out_container_is_left_alone_while_its_old_recommendation_is_still_there() -> None:
    whole = pod(container("main", {"cpu": "1"}), container("side", {"cpu": "1"}, {"cpu": "2"}))
    wanted = vpa(
        {"main": {"cpu": "4"}, "side": {"cpu": "4"}}, policies=[{"containerName": "side", "mode": "Off"}]
    )
    for ranges in ((), (limit_range({"type": "Pod", "max": {"cpu": "3"}}),)):
        result, done = admitted(whole, wanted, *ranges)
        assert sizes(result)[1] == ({"cpu": "1"}, {"cpu": "2"})
        assert done.desired is not None
        assert done.desired.left_alone[0].why.reason is Reason.CONTAINER_OPTED_OUT


def test_a_pod_limit_range_does_not_resize_a_container_without_a_recommendation() -> None:
    whole = pod(
        container("main", {"cpu": "100m"}, {"cpu": "100m"}),
        container("side", {"cpu": "100m"}, {"cpu": "400m"}),
    )
    bound = limit_range({"type": "Pod", "max": {"cpu": "1"}})
    result, _ = admitted(whole, vpa({"main": {"cpu": "5"}}), bound)
    assert sizes(result) == [({"cpu": "600m"}, {"cpu": "600m"}), ({"cpu": "100m"}, {"cpu": "400m"})]


def test_a_pod_that_breaks_the_limit_range_as_written_is_scaled_as_a_whole() -> None:
    whole = pod(*(container(name, {"cpu": "400m"}, {"cpu": "400m"}) for name in ("main", "side")))
    bound = limit_range({"type": "Pod", "max": {"cpu": "400m"}})
    result, _ = admitted(whole, vpa({"main": {"cpu": "400m"}}), bound)
    assert sizes(result) == [({"cpu": "200m"}, {"cpu": "200m"})] * 2
    assert refusals(result, bound) == []


def test_a_resource_for_which_nothing_fits_stays_as_it_is_and_the_reason_is_said() -> None:
    whole = pod(
        container("main", {"cpu": "1", "memory": "64Mi"}), container("side", {"cpu": "4"}, {"cpu": "4"})
    )
    bound = limit_range({"type": "Pod", "max": {"cpu": "2"}})
    policies = [{"containerName": "side", "mode": "Off"}]
    target = {"target": {"cpu": "3", "memory": "1Gi"}, "lowerBound": {"cpu": "2", "memory": "1Gi"}}
    result, done = admitted(whole, vpa({"main": target}, policies=policies), bound)
    assert sizes(result)[0][0] == {"cpu": "1", "memory": "1Gi"}
    assert done.desired is not None
    alone = done.desired.left_alone[-1]
    assert (alone.container, alone.resource, alone.why.reason) == ("main", "cpu", Reason.NO_SIZE_FITS)
    assert "pod LimitRange" in alone.why.message
    fitted = desired(
        a_pod(whole), a_vpa(vpa({"main": target}, policies=policies)), the_ranges(bound), rules=SAFE
    )
    (entry,) = fitted.recommendations
    assert (entry.target or {}).keys() == (entry.lower_bound or {}).keys() == {"memory"}


def test_a_container_gets_no_request_beside_one_that_takes_all_that_the_pod_may_have() -> None:
    whole = pod(container("a"), container("b", None, {"memory": "1Gi"}))
    bound = limit_range({"type": "Pod", "max": {"memory": "1Gi"}})
    result, done = admitted(whole, vpa({"a": {"memory": "1Gi"}}), bound)
    assert result["spec"] == whole["spec"]
    assert done.reason is not None
    assert done.reason.reason is Reason.NO_SIZE_FITS


def test_the_minimum_of_a_pod_limit_range_is_reached_to_the_byte() -> None:
    whole = pod(*(container(name, {"memory": "1Gi"}, {"memory": "1Gi"}) for name in ("a", "b")))
    bound = limit_range({"type": "Pod", "min": {"memory": "4Gi"}})
    result, _ = admitted(whole, vpa({"a": {"memory": "1Gi"}, "b": {"memory": "2Gi"}}), bound)
    assert refusals(result, bound) == []
    assert sum(nanos(requests, "memory") for requests, _ in sizes(result)) <= (4 * GI + 1) * 10**9


def test_a_limit_range_ratio_is_kept_when_only_the_request_shrinks() -> None:
    whole = pod(container("main", {"cpu": "1"}, {"cpu": "2"}))
    bound = limit_range({"type": "Container", "maxLimitRequestRatio": {"cpu": "4"}})
    wanted = vpa(
        {"main": {"cpu": "100m"}}, policies=[{"containerName": "*", "controlledValues": "RequestsOnly"}]
    )
    result, _ = admitted(whole, wanted, bound)
    assert sizes(result) == [({"cpu": "500m"}, {"cpu": "2"})]


def test_a_limit_that_would_not_fit_in_64_bits_stays() -> None:
    whole = pod(container("main", {"memory": "1"}, {"memory": "4Ei"}))
    result, _ = admitted(whole, vpa({"main": {"memory": "1Gi"}}))
    assert sizes(result) == [({"memory": "1Gi"}, {"memory": "4Ei"})]


def test_the_room_of_a_node_bounds_the_whole_pod() -> None:
    whole = pod(container("a", {"cpu": "1"}, {"cpu": "2"}), container("b", {"cpu": "1"}))
    small, large = (
        meta.convert({"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu}}}, Node)
        for name, cpu in (("small", "2"), ("large", "4"))
    )
    wanted = vpa({"a": {"cpu": "6"}, "b": {"cpu": "2"}})
    result, done = admitted(whole, wanted, cap_to=Rooms([small, large]))
    assert sizes(result) == [({"cpu": "3"}, {"cpu": "6"}), ({"cpu": "1"}, {})]
    assert done.desired is not None
    cap = done.desired.capped_by("a", "cpu")
    assert cap is not None
    assert cap.by == "node"


def test_without_a_recommendation_the_reason_is_said() -> None:
    empty = vpa({})
    result = desired(a_pod(pod(container("main"))), a_vpa(empty), the_ranges(), rules=SAFE)
    assert result.reason is not None
    assert result.reason.reason is Reason.NO_RECOMMENDATION
    del empty["status"]
    result = desired(a_pod(pod(container("main"))), a_vpa(empty), the_ranges(), rules=SAFE)
    assert result.reason is not None
    assert result.reason.reason is Reason.NO_RECOMMENDATION


def test_the_kubelets_word_about_sizes_counts_more_than_the_spec() -> None:
    whole = pod(container("main", {"cpu": "100m"}, {"cpu": "100m"}))
    whole["status"] = {
        "containerStatuses": [
            {"name": "main", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}
        ]
    }
    result = desired(a_pod(whole), a_vpa(vpa({"main": {"cpu": "3"}})), the_ranges(), rules=SAFE)
    assert str(result.containers[0].limits["cpu"]) == "6"
