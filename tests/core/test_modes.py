"""What each update mode permits."""

from __future__ import annotations

import pytest

from tests.core.pods import Data, a_vpa, vpa
from vpa.gates import FeatureGates
from vpa.modes import MODES, has_startup_boost, idle, permits, update_mode
from vpa.reasons import Reason

IN_PLACE_ON = FeatureGates.parse("InPlace=true")
NO_GATES = FeatureGates()


def mode(name: str | None) -> Data:
    return {"updatePolicy": {} if name is None else {"updateMode": name}}


@pytest.mark.parametrize("spec", [{}, mode(None), mode(""), mode("Auto")])
def test_an_unset_mode_and_auto_mean_the_default_mode(spec: Data) -> None:
    one = a_vpa(vpa({}, **spec))
    assert update_mode(one) == "Recreate"
    assert update_mode(one, default="InPlaceOrRecreate") == "InPlaceOrRecreate"
    assert permits(one, NO_GATES, default="InPlaceOrRecreate").in_place


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Off", (False, False, False)),
        ("Initial", (True, False, False)),
        ("Recreate", (True, False, True)),
        ("InPlaceOrRecreate", (True, True, True)),
        ("InPlace", (True, True, False)),
        ("Nonsense", (False, False, False)),
    ],
)
def test_a_mode_permits_admission_resize_and_eviction(name: str, expected: tuple[bool, bool, bool]) -> None:
    found = permits(a_vpa(vpa({}, **mode(name))), IN_PLACE_ON)
    assert (found.at_admission, found.in_place, found.by_eviction) == expected


def test_in_place_without_its_gate_only_sizes_new_pods() -> None:
    one = a_vpa(vpa({}, **mode("InPlace")))
    found = permits(one, NO_GATES)
    assert (found.at_admission, found.in_place, found.by_eviction) == (True, False, False)
    refusal = idle(one, NO_GATES)
    assert refusal is not None
    assert refusal.reason is Reason.FEATURE_GATE_OFF
    assert idle(one, IN_PLACE_ON) is None


def test_the_updater_is_idle_exactly_where_running_pods_may_not_be_touched() -> None:
    for name in MODES:
        one = a_vpa(vpa({}, **mode(name)))
        allowed = permits(one, IN_PLACE_ON)
        assert (idle(one, IN_PLACE_ON) is None) == (allowed.in_place or allowed.by_eviction)


def test_a_boost_counts_wherever_it_is_written() -> None:
    assert not has_startup_boost(a_vpa(vpa({})))
    assert has_startup_boost(a_vpa(vpa({}, startupBoost={})))
    assert has_startup_boost(a_vpa(vpa({}, policies=[{"containerName": "a", "startupBoost": {}}])))
