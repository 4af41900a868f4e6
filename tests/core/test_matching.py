"""Which VPA is a pod's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.pods import SAFE, UPSTREAM, Data, a_pod, a_vpa, pod, vpa
from vpa.gates import FeatureGates
from vpa.matching import (
    ADMISSION,
    UPDATER,
    TargetIndex,
    TargetKey,
    controller_of,
    strongest,
    takes_part,
    target_key,
)
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.rules import Rules
from vpa.selectors import EVERYTHING, NOTHING, from_labels

BOOST_ON = FeatureGates.parse("CPUStartupBoost=true")
KEY = TargetKey("n", "Deployment", "web")


def named(
    name: str, created: str | None = None, mode: str | None = None, **spec: Any
) -> VerticalPodAutoscaler:
    if mode is not None:
        spec["updatePolicy"] = {"updateMode": mode}
    spec.setdefault("targetRef", {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"})
    data = vpa({}, **spec)
    data["metadata"] = {"name": name, "namespace": "n", "creationTimestamp": created}
    return a_vpa(data)


def test_the_oldest_wins_then_the_name() -> None:
    young = named("a", "2026-03-01T00:00:00Z")
    old = named("z", "2026-01-01T00:00:00Z")
    twin = named("y", "2026-01-01T00:00:00Z")
    index = TargetIndex([young, old, twin])
    assert [found.metadata.name for found in index.at(KEY)] == ["y", "z", "a"]
    assert strongest([young, old, twin], {}, lambda _: EVERYTHING) is twin
    assert strongest([young, old, twin], {}, lambda one: None if one is twin else EVERYTHING) is old


def test_a_vpa_whose_selector_does_not_match_is_passed_over() -> None:
    old, young = named("old", "2026-01-01T00:00:00Z"), named("young", "2026-02-01T00:00:00Z")
    selectors = {"old": from_labels({"app": "a"}), "young": from_labels({"app": "b"})}
    found = strongest([old, young], {"app": "b"}, lambda one: selectors[one.metadata.name])
    assert found is young
    assert strongest([old], {"app": "b"}, lambda _: NOTHING) is None


def test_two_stateful_sets_with_the_same_labels_do_not_mix() -> None:
    vpas = [
        named(name, targetRef={"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name})
        for name in ("s0", "s1")
    ]
    index = TargetIndex(vpas)
    for name in ("s0", "s1"):
        found = strongest(
            index.at(TargetKey("n", "StatefulSet", name)), {"app": "s"}, lambda _: from_labels({"app": "s"})
        )
        assert found is not None
        assert found.metadata.name == name


def test_the_index_follows_every_change() -> None:
    index = TargetIndex([named("a"), named("b")])
    assert len(index) == 2
    index.put(named("a", targetRef={"kind": "Deployment", "name": "api"}))
    assert [found.metadata.name for found in index.at(KEY)] == ["b"]
    assert index.is_target(TargetKey("n", "Deployment", "api"))
    index.remove("n", "b")
    index.remove("n", "never-there")
    assert not index.is_target(KEY)
    assert index.at(KEY) == []
    without = a_vpa(vpa({}))
    assert target_key(without) is None
    index.put(without)
    assert [found.metadata.name for found in index] == ["a"]


names = st.sampled_from(["a", "b", "c"])
targets = st.sampled_from(["web", "api"])
changes = st.lists(st.tuples(st.booleans(), names, targets), max_size=30)


@given(changes)
def test_the_index_is_what_a_scan_would_find(steps: list[tuple[bool, str, str]]) -> None:
    index, plain = TargetIndex(), {}
    for put, name, target in steps:
        if put:
            plain[name] = named(name, targetRef={"kind": "Deployment", "name": target})
            index.put(plain[name])
        else:
            plain.pop(name, None)
            index.remove("n", name)
    for target in ("web", "api"):
        key = TargetKey("n", "Deployment", target)
        expected = sorted(name for name, one in plain.items() if target_key(one) == key)
        assert [found.metadata.name for found in index.at(key)] == expected


@pytest.mark.parametrize(
    ("mode", "boosted", "expected"),
    [
        # mode, boost → upstream's webhook, upstream's updater, ours
        ("Off", False, (False, False, False)),
        ("Off", True, (True, True, True)),
        ("Initial", False, (True, False, True)),
        ("Initial", True, (True, True, True)),
        ("Recreate", False, (True, True, True)),
        ("InPlace", False, (True, True, True)),
    ],
)
def test_who_competes_for_pods(mode: str, boosted: bool, expected: tuple[bool, bool, bool]) -> None:
    spec: Data = {"startupBoost": {}} if boosted else {}
    one = named("v", mode=mode, **spec)

    def answer(service: str, rules: Rules) -> bool:
        return takes_part(one, service=service, rules=rules, gates=BOOST_ON)

    assert (answer(ADMISSION, UPSTREAM), answer(UPDATER, UPSTREAM), answer(ADMISSION, SAFE)) == expected
    assert answer(UPDATER, SAFE) is answer(ADMISSION, SAFE)


def test_a_boost_whose_gate_is_off_does_not_bring_a_vpa_in() -> None:
    one = named("v", mode="Off", startupBoost={})
    assert not takes_part(one, service=ADMISSION, rules=SAFE, gates=FeatureGates())
    assert takes_part(one, service=ADMISSION, rules=UPSTREAM, gates=FeatureGates())


def test_the_last_owner_that_controls_counts() -> None:
    data = pod()
    data["metadata"]["ownerReferences"] = [
        {"kind": "Deployment", "name": "a", "controller": True},
        {"kind": "ReplicaSet", "name": "b", "controller": True},
        {"kind": "Job", "name": "c", "controller": False},
        {"kind": "Job", "name": "d"},
    ]
    found = controller_of(a_pod(data).metadata)
    assert found is not None
    assert found.name == "b"
    assert controller_of(a_pod(pod()).metadata) is None
