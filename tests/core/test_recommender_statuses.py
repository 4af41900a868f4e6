"""What statuses say, whom they leave alone, and when they are written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from recommender.autoscalers import is_served
from recommender.decisions import OWNED
from recommender.saving import PERIOD, object_name
from recommender.schedule import Schedule
from tests.core.recommending import World, pod_view, settings, vpa
from vpa import statuses
from vpa.metrics.usage import Usage
from vpa.objects import meta
from vpa.objects.autoscalers import Condition, GroupRecommendation, Recommendation, Status
from vpa.sizes.limit_ranges import Ranges
from vpa.statuses import Difference, Wanted

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
HOUR = 3600
DAY = 24 * HOUR


def recommendation(
    target: str = "100m", lower: str = "50m", upper: str = "200m", **more: str
) -> Recommendation:
    entry = {
        "containerName": more.get("container", "web"),
        "target": {"cpu": target},
        "lowerBound": {"cpu": lower},
        "upperBound": {"cpu": upper},
        "uncappedTarget": {"cpu": more.get("uncapped", target)},
    }
    return meta.convert({"containerRecommendations": [entry]}, Recommendation)


def status(found: Recommendation | None, *conditions: Condition, generation: int = 1) -> Status:
    return Status(recommendation=found, conditions=list(conditions) or None, observed_generation=generation)


def difference(present: Status | None, wanted: Recommendation, *, threshold: float = 0.01) -> Difference:
    return statuses.difference(present, Wanted(1, wanted), threshold=threshold, now=NOW)


# Differences


def test_equal_statuses_need_no_write_even_if_quantities_are_spelt_differently() -> None:
    assert difference(status(recommendation()), recommendation("0.1")) is Difference.NONE


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"target": "101m", "uncapped": "101m"}, Difference.CLEAR),
        ({"uncapped": "101m"}, Difference.CLEAR),
        ({"upper": "202m"}, Difference.CLEAR),
        ({"upper": "201m"}, Difference.DRIFT),
        ({"lower": "50500u"}, Difference.CLEAR),
        ({"lower": "50400u"}, Difference.DRIFT),
        ({"container": "other"}, Difference.CLEAR),
    ],
)
def test_a_target_always_matters_and_a_bound_from_one_percent_on(
    change: dict[str, str], found: Difference
) -> None:
    assert difference(status(recommendation()), recommendation(**change)) is found


def test_with_threshold_0_any_change_matters() -> None:
    changed = recommendation(lower="50400u")
    assert difference(status(recommendation()), changed, threshold=0.0) is Difference.CLEAR


def test_no_recommendation_differs_from_an_empty_one() -> None:
    """Facts 5.4."""
    assert difference(status(None), Recommendation()) is Difference.CLEAR
    assert difference(status(Recommendation()), Recommendation()) is Difference.NONE


def test_a_new_generation_and_a_changed_condition_matter() -> None:
    assert difference(status(recommendation(), generation=2), recommendation()) is Difference.CLEAR
    gone = Wanted(1, recommendation(), conditions={"NoPodsMatched": None})
    old = status(recommendation(), Condition(type="NoPodsMatched", status="True"))
    assert statuses.difference(old, gone, threshold=1.0, now=NOW) is Difference.CLEAR
    assert statuses.difference(status(recommendation()), gone, threshold=1.0, now=NOW) is Difference.NONE


# Patches


def test_a_patch_keeps_conditions_of_others_and_of_nobody_we_know() -> None:
    others = Condition(type="UpdateBlocked", status="True", reason="BudgetSpent")
    future = Condition(type="Quantum", status="Unknown")
    wanted = Wanted(3, recommendation(), conditions={"RecommendationProvided": provided()})
    patch = statuses.merge_patch(status(None, others, future), wanted, NOW)
    assert [one["type"] for one in patch["conditions"]] == [
        "Quantum",
        "RecommendationProvided",
        "UpdateBlocked",
    ]
    assert patch["observedGeneration"] == 3
    assert patch["recommendation"]["containerRecommendations"][0]["target"] == {"cpu": "100m"}
    assert "groups" not in patch


def provided() -> Condition:
    return Condition(type="RecommendationProvided", status="True")


def test_an_empty_recommendation_takes_the_old_containers_away() -> None:
    patch = statuses.merge_patch(status(recommendation()), Wanted(1, Recommendation()), NOW)
    assert patch["recommendation"] == {"containerRecommendations": None}


def test_while_history_is_to_come_the_recommendation_is_not_touched() -> None:
    wanted = Wanted(1, None, conditions=statuses.fetching({"checkpoints", "Prometheus"}))
    patch = statuses.merge_patch(status(recommendation()), wanted, NOW)
    assert "recommendation" not in patch
    (condition,) = patch["conditions"]
    assert (condition["type"], condition["reason"]) == ("FetchingHistory", "HistoryLoading")
    assert "Prometheus and checkpoints" in condition["message"]
    assert statuses.fetching(()) == {"FetchingHistory": None}


def test_upstreams_write_replaces_the_whole_status_with_what_was_read() -> None:
    others = Condition(type="UpdateBlocked", status="True")
    whole = statuses.whole_status(status(recommendation(), others), Wanted(2, Recommendation()), NOW)
    assert whole["recommendation"] == {}
    assert [one["type"] for one in whole["conditions"]] == ["UpdateBlocked"]


# Who is served (facts 3.9)


@pytest.mark.parametrize(
    ("args", "names", "served"),
    [
        ([], None, True),
        ([], ["default"], True),
        ([], ["other"], False),
        ([], ["other", "default"], True),
        (["--recommender-name=mine"], None, False),
        (["--recommender-name=mine"], ["other", "mine"], True),
        (["--vpa-object-namespace=shop"], None, True),
        (["--vpa-object-namespace=bank"], None, False),
        (["--ignored-vpa-object-namespaces=bank,shop"], None, False),
        (["--ignored-vpa-object-namespaces=bank, shop"], None, True),
    ],
)
def test_a_vpa_is_served_by_name_of_the_recommender_and_namespace(
    args: list[str], names: list[str] | None, served: bool
) -> None:
    given = settings(*args)
    recommenders = None if names is None else [{"name": name} for name in names]
    found = vpa(recommenders=recommenders) if recommenders else vpa()
    assert is_served(found, given.loop.recommender_name, given.selection) is served


def test_a_vpa_that_changes_to_another_recommender_is_dropped_and_its_rows_stay() -> None:
    made = World()
    made.put_pod(pod_view("web-1-0", "web"))
    made.put_vpa(vpa())
    made.run(600, ("web-1-0", "web", 0.5, 400))
    made.put_vpa(vpa(recommenders=[{"name": "other"}]))
    assert list(made.engine.autoscalers) == []
    assert made.tick() == {}
    made.put_vpa(vpa())
    made.tick()
    assert made.targets()["web"]["cpu"] == "587m"


# Conditions


def world(*args: str) -> World:
    made = World(*args)
    made.put_pod(pod_view("web-1-0", "web"))
    made.put_vpa(vpa())
    return made


def test_a_container_without_a_sample_is_recommended_the_minimum_and_said_to_be_little_known() -> None:
    made = world()
    made.tick()
    assert made.targets() == {"web": {"cpu": "25m", "memory": "250Mi"}}
    assert set(made.conditions()) == {"RecommendationProvided", "LowConfidence"}
    assert made.status()["observedGeneration"] == 1


def test_low_confidence_ends_after_a_day_and_that_is_written_at_once() -> None:
    made = world()
    made.run(DAY - 120, ("web-1-0", "web", 0.5, 400))
    assert made.conditions()["LowConfidence"]["reason"] == "LessThanADay"
    made.run(240, ("web-1-0", "web", 0.5, 400))
    assert "LowConfidence" not in made.conditions()


def test_two_vpas_on_one_target_are_both_told_and_the_oldest_that_acts_wins() -> None:
    made = world()
    made.put_vpa(vpa("newer", created="2026-07-20T00:00:00Z"))
    made.put_vpa(vpa("oldest", created="2026-01-01T00:00:00Z", updatePolicy={"updateMode": "Off"}))
    made.tick()
    assert "this one is the oldest" in made.conditions("web")["Conflict"]["message"]
    assert "web is the oldest" in made.conditions("newer")["Conflict"]["message"]
    assert "web is the oldest" in made.conditions("oldest")["Conflict"]["message"]
    made.drop_vpa("newer")
    made.drop_vpa("oldest")
    made.tick()
    assert "Conflict" not in made.conditions("web")


def test_a_rival_of_another_recommender_is_a_rival_too() -> None:
    made = world()
    made.put_vpa(vpa("theirs", recommenders=[{"name": "other"}]))
    made.tick()
    assert "theirs" in made.conditions()["Conflict"]["message"]


def test_capped_by_the_container_limit_says_so_with_the_uncapped_value() -> None:
    """Field case 10: 90 % of use at 9 cores, request and limit 10, RequestsOnly."""
    made = World()
    sized = {"requests": {"cpu": "10"}, "limits": {"cpu": "10"}}
    made.put_pod(pod_view("web-1-0", "web", resources=sized))
    policy = {"containerPolicies": [{"containerName": "web", "controlledValues": "RequestsOnly"}]}
    made.put_vpa(vpa(resourcePolicy=policy))
    made.run(600, ("web-1-0", "web", 9.0, 400))
    condition = made.conditions()["Capped"]
    assert condition["reason"] == "ContainerLimit"
    assert condition["message"] == "web gets 10 cpu instead of 10626m, capped by container limit"


def test_capped_by_a_policy_or_the_global_maximum_says_which() -> None:
    made = world("--container-recommendation-max-allowed-memory=300Mi")
    policy = {"containerPolicies": [{"containerName": "web", "maxAllowed": {"cpu": "500m"}}]}
    made.put_vpa(vpa(resourcePolicy=policy))
    made.run(600, ("web-1-0", "web", 0.9, 400))
    condition = made.conditions()["Capped"]
    assert condition["reason"] == "Several"
    assert "web gets 500m cpu instead of 1038m, capped by policy" in condition["message"]
    assert "capped by global maximum" in condition["message"]
    made.put_vpa(vpa())
    made.run(60, ("web-1-0", "web", 0.9, 100))
    made.ranges["shop"] = Ranges()
    assert "Capped" in made.conditions(), "memory is still capped by the flag"


def test_under_upstream_only_upstreams_conditions_are_set() -> None:
    made = world("--compatibility=upstream")
    made.put_vpa(vpa("newer", created="2026-07-20T00:00:00Z"))
    made.run(600, ("web-1-0", "web", 0.5, 400))
    assert set(made.conditions()) == {"RecommendationProvided"}


def test_the_types_that_we_own_are_those_of_the_design() -> None:
    assert {
        "RecommendationProvided",
        "NoPodsMatched",
        "ConfigUnsupported",
        "ConfigDeprecated",
        "LowConfidence",
        "FetchingHistory",
        "Conflict",
        "Capped",
    } == OWNED


# When


def mature(made: World, *, days: int) -> None:
    """As if the rows had seen a sample a minute for so long."""
    rows = made.engine.tracker.rows()
    made.engine.usage.first_sample[rows] -= days * DAY * 10**9
    made.engine.usage.sample_count[rows] += days * 1440


def test_small_drift_waits_up_to_an_hour_and_is_written_then() -> None:
    made = world()
    made.run(HOUR, ("web-1-0", "web", 0.5, 400))
    mature(made, days=5)
    made.run(120, ("web-1-0", "web", 0.5, 400))
    written = made.status()
    waited = 0
    while made.status() == written:
        made.run(60, ("web-1-0", "web", 0.5, 400))
        waited += 1
        assert waited <= 61
    assert waited >= 29, "not at once either"
    new, old = (one["recommendation"]["containerRecommendations"][0] for one in (made.status(), written))
    assert new["target"] == old["target"]
    assert new["upperBound"] != old["upperBound"]


def test_under_upstream_each_change_of_a_bound_is_written() -> None:
    made = world("--compatibility=upstream")
    made.run(HOUR, ("web-1-0", "web", 0.5, 400))
    mature(made, days=5)
    made.run(120, ("web-1-0", "web", 0.5, 400))
    writes = 0
    for _ in range(10):
        made.pass_time(60)
        made.read(("web-1-0", "web", 0.5, 400))
        writes += len(made.tick())
    assert writes >= 5


def test_after_a_restart_what_is_written_already_is_not_written_again() -> None:
    made = world()
    made.run(2 * DAY, ("web-1-0", "web", 0.5, 400), step=600)
    served = made.engine.autoscalers.served["shop", "web"]
    row = int(made.engine.tracker.rows()[0])
    fresh = World()
    fresh.time = made.time
    fresh.put_pod(pod_view("web-1-0", "web"))
    fresh.put_vpa(served.vpa)
    other = int(fresh.engine.tracker.rows()[0])
    for bank in ("cpu", "memory"):
        saved = getattr(made.engine.usage, bank).save(row)
        getattr(fresh.engine.usage, bank).load(other, saved)
    for column in ("first_sample", "last_sample", "sample_count"):
        getattr(fresh.engine.usage, column)[other] = getattr(made.engine.usage, column)[row]
    assert fresh.tick() == {}


def test_in_a_steady_state_a_thousand_vpas_cost_less_than_300_writes_a_minute() -> None:
    """Design 3, shown on a quarter of them: VPAs of two containers that are older than a day."""
    made = World()
    count, names = 250, ("web", "log")
    for number in range(count):
        name = f"w{number}"
        labels = {"app": name}
        made.put_pod(pod_view(f"{name}-1-a", *names, owner=("ReplicaSet", f"{name}-1"), labels=labels))
        made.put_vpa(vpa(name, target=name))
    random = np.random.default_rng(7)
    base_cpu, base_memory = random.uniform(20, 2000, 2 * count), random.uniform(50e6, 4e9, 2 * count)
    pods = [f"w{number}-1-a" for number in range(count) for _ in names]

    def read() -> None:
        made.pass_time(60)
        reading = Usage(
            namespaces=["shop"] * 2 * count,
            pods=pods,
            containers=[*names] * count,
            times=np.full(2 * count, made.now),
            cpu=(base_cpu * random.lognormal(0, 0.4, 2 * count)).astype(np.int64),
            memory=(base_memory * random.uniform(0.8, 1.0, 2 * count)).astype(np.int64),
        )
        made.engine.feed(reading, made.now)

    for _ in range(round(1.2 * 1440)):
        read()
    made.tick()
    schedule = Schedule(PERIOD)
    for number in range(count):
        for name in names:
            schedule.add(("shop", f"w{number}", name), made.time)
    writes = 0
    for _ in range(60):
        read()
        writes += len(made.tick())
        while (key := schedule.take(made.time)) is not None:
            schedule.done(key, made.time)
            writes += 1
    assert writes / 60 / count * 1000 < 300


# Names of checkpoints


def test_checkpoints_have_upstreams_names_and_names_of_their_own_where_those_will_not_do() -> None:
    assert object_name("web", "main") == "web-main"
    assert object_name("a-b", "c", taken=True) != object_name("a", "b-c", taken=True)
    longest = object_name("v" * 250, "c" * 60)
    assert len(longest) <= 253
    assert longest != object_name("v" * 250, "d" * 60)


def test_all_values_of_a_scope_are_written_also_the_empty_one() -> None:
    group: dict[str, Any] = {"containerRecommendations": []}
    wanted = Wanted(1, Recommendation(), meta.convert([group], list[GroupRecommendation]))
    assert statuses.merge_patch(None, wanted, NOW)["groups"][0]["scopeValue"] == ""
