"""Decisions that are remembered are never given for another VPA, other bounds or another pod."""

from __future__ import annotations

from admission.memo import Admitted, Memo
from tests.core.pods import a_pod, a_vpa, container, limit_range, pod, the_ranges, vpa

SMALL = {"cpu": "100m"}
POD = a_pod(pod(container("app", SMALL)))
VPA = a_vpa(vpa({"app": {"cpu": "250m"}}))
RANGES = the_ranges()
DECISION = Admitted(b"[]", None)


def test_a_decision_holds_for_the_objects_that_it_was_made_for_and_no_others() -> None:
    memo = Memo()
    key = memo.key(POD, VPA)
    memo.put(key, VPA, RANGES, DECISION)
    assert memo.get(key, VPA, RANGES) is DECISION
    assert memo.get(key, a_vpa(vpa({"app": {"cpu": "250m"}})), RANGES) is None
    bounded = the_ranges(limit_range({"type": "Container", "max": {"cpu": "1"}}))
    assert memo.get(key, VPA, bounded) is None


def test_sizes_annotations_and_placement_make_another_pod() -> None:
    memo = Memo()
    others = [
        pod(container("app", {"cpu": "200m"})),
        pod(container("other", SMALL)),
        pod(container("app", SMALL), nodeSelector={"disk": "ssd"}),
        pod(container("app", SMALL), resources={"limits": {"cpu": "1"}}),
        {**pod(container("app", SMALL)), "metadata": {"annotations": {"a": "b"}}},
    ]
    keys = {memo.key(a_pod(one), VPA) for one in others}
    assert len(keys) == len(others)
    assert memo.key(POD, VPA) not in keys


def test_no_more_are_remembered_than_there_is_room_for() -> None:
    memo = Memo(remembered=10)
    for number in range(35):
        key = memo.key(a_pod(pod(container(f"c{number}", SMALL))), VPA)
        memo.put(key, VPA, RANGES, DECISION)
        assert len(memo) <= 10
        assert memo.get(key, VPA, RANGES) is DECISION
