"""Several LimitRanges as one."""

from __future__ import annotations

from tests.core.pods import UPSTREAM, limit_range, the_ranges
from vpa.objects import meta


def test_the_lowest_maximum_and_the_highest_minimum_hold() -> None:
    found = the_ranges(
        limit_range({"type": "Container", "max": {"cpu": "1500m"}, "min": {"cpu": "1500m"}}),
        limit_range(
            {"type": "Container", "max": {"cpu": "2", "memory": "1Gi"}, "min": {"cpu": "1"}},
            {"type": "Pod", "max": {"cpu": "9"}},
            name="other",
        ),
    )
    assert found.container is not None
    assert meta.to_builtins(found.container.max) == {"cpu": "1500m", "memory": "1Gi"}
    assert meta.to_builtins(found.container.min) == {"cpu": "1500m"}
    assert found.pod is not None
    assert meta.to_builtins(found.pod.max) == {"cpu": "9"}


def test_defaults_are_joined_per_resource_by_name_whatever_the_order() -> None:
    one = limit_range({"type": "Container", "default": {"cpu": "1"}}, name="a")
    two = limit_range({"type": "Container", "default": {"cpu": "2", "memory": "1Gi"}}, name="b")
    for order in ((one, two), (two, one)):
        found = the_ranges(*order)
        assert found.container is not None
        assert meta.to_builtins(found.container.default) == {"cpu": "1", "memory": "1Gi"}
        found = the_ranges(*order, rules=UPSTREAM)
        assert found.container is not None
        last = order[1]["spec"]["limits"][0]["default"]
        assert meta.to_builtins(found.container.default) == last


def test_a_range_that_bounds_nothing_is_none() -> None:
    assert the_ranges().container is None
    assert the_ranges(limit_range({"type": "Container"}, {"type": "PersistentVolumeClaim"})).container is None
    only_requests = limit_range({"type": "Container", "defaultRequest": {"cpu": "1"}})
    assert the_ranges(only_requests).container is None


def test_a_ratio_alone_is_a_range_of_ours_and_none_of_upstreams() -> None:
    ratio = limit_range({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}})
    assert the_ranges(ratio).container is not None
    assert the_ranges(ratio, rules=UPSTREAM).container is None
