"""Which containers history counts for, how long it lives, and which kills shape it."""

from __future__ import annotations

import pytest

from recommender.lifetimes import Known
from tests.core.recommending import MIB, World, of_memory, pod_view, vpa, web_shop
from vpa.matching import TargetKey

HOUR = 3600
DAY = 24 * HOUR
WEB = TargetKey("shop", "Deployment", "web")


# Which containers count


def test_only_the_present_container_is_recommended_with_the_whole_minimum() -> None:
    """Field case 19: one container, renamed twice."""
    made = World()
    made.put_vpa(vpa())
    for number, name in enumerate("abc"):
        made.put_pod(pod_view(f"web-1-{name}", name))
        if number:
            made.drop_pod(f"web-1-{'abc'[number - 1]}")
        served = made.engine.autoscalers.served["shop", "web"]
        made.resolve(served, made.target(served.vpa, name))
        made.run(600, (f"web-1-{name}", name, 0.001, 10))
    assert made.targets() == {"c": {"cpu": "25m", "memory": "250Mi"}}


def test_during_a_rollout_old_and_new_containers_count() -> None:
    made = World()
    made.put_vpa(vpa())
    made.put_pod(pod_view("web-1-a", "old"))
    made.put_pod(pod_view("web-2-a", "new", owner=("ReplicaSet", "web-2")))
    served = made.engine.autoscalers.served["shop", "web"]
    made.resolve(served, made.target(served.vpa, "new"))
    made.tick()
    assert set(made.targets()) == {"old", "new"}


def test_upstream_recommends_removed_containers_on() -> None:
    made = World("--compatibility=upstream")
    made.put_vpa(vpa())
    made.put_pod(pod_view("web-1-a", "a"))
    made.run(600, ("web-1-a", "a", 0.1, 100))
    made.drop_pod("web-1-a")
    made.put_pod(pod_view("web-1-b", "b"))
    made.run(600, ("web-1-b", "b", 0.1, 100))
    assert set(made.targets()) == {"a", "b"}


def test_a_wildcard_policy_with_memory_alone_recommends_no_cpu() -> None:
    """Field case 34, first half."""
    made = web_shop()
    policy = {"containerPolicies": [{"containerName": "*", "controlledResources": ["memory"]}]}
    made.put_vpa(vpa(resourcePolicy=policy))
    made.run(600, ("web-1-0", "web", 0.5, 400))
    assert set(made.targets()["web"]) == {"memory"}


# Lifetimes


def collect(made: World, *, times_: int = 1) -> None:
    for _ in range(times_):
        made.pass_time(HOUR)
        made.engine.collect(made.now)


def rows(made: World) -> int:
    return len(made.engine.tracker.rows())


def test_history_survives_a_scale_down_to_zero_and_goes_when_its_controller_is_missed_twice() -> None:
    made = web_shop()
    made.run(600, ("web-1-0", "web", 0.5, 400))
    before = made.targets()
    made.controllers[WEB] = Known(gone=False, template=frozenset({"web"}))
    made.drop_pod("web-1-0")
    made.tick()
    collect(made, times_=3)
    assert made.targets() == before
    made.controllers[WEB] = Known(gone=True, template=None)
    collect(made)
    assert rows(made) == 1, "deleted and made anew within the hour is not gone"
    collect(made)
    assert rows(made) == 0
    made.tick()
    assert made.targets() == {}
    assert made.conditions()["NoPodsMatched"]["status"] == "True"


def test_a_controller_that_returns_finds_its_history() -> None:
    made = web_shop()
    made.run(600, ("web-1-0", "web", 0.5, 400))
    made.controllers[WEB] = Known(gone=True, template=None)
    made.drop_pod("web-1-0")
    made.tick()
    collect(made)
    made.controllers[WEB] = Known(gone=False, template=frozenset({"web"}))
    collect(made, times_=3)
    assert rows(made) == 1


def test_a_row_goes_when_neither_pod_nor_template_names_its_container() -> None:
    made = web_shop(containers=("web", "log"))
    made.controllers[WEB] = Known(gone=False, template=frozenset({"web"}))
    served = made.engine.autoscalers.served["shop", "web"]
    made.resolve(served, made.target(served.vpa, "web"))
    collect(made)
    assert rows(made) == 2, "the pod still names it"
    made.put_pod(pod_view("web-1-0", "web"))
    made.tick()
    collect(made)
    assert rows(made) == 1


def test_history_that_saw_nothing_for_eight_days_expires_while_others_live() -> None:
    made = web_shop()
    made.put_pod(pod_view("api-1-0", "api", owner=("ReplicaSet", "api-1"), labels={"app": "api"}))
    made.run(600, ("web-1-0", "web", 0.5, 400), ("api-1-0", "api", 0.5, 400))
    made.drop_pod("web-1-0")
    made.tick()
    made.pass_time(8 * DAY - HOUR - 60)
    made.read(("api-1-0", "api", 0.5, 400))
    collect(made)
    assert rows(made) == 2
    made.read(("api-1-0", "api", 0.5, 400))
    made.pass_time(60)
    made.read(("api-1-0", "api", 0.5, 400))
    collect(made)
    made.read(("api-1-0", "api", 0.5, 400))
    collect(made)
    assert rows(made) == 1


def test_while_no_usage_comes_at_all_nothing_expires() -> None:
    made = web_shop()
    made.run(600, ("web-1-0", "web", 0.5, 400))
    made.pass_time(30 * DAY)
    collect(made)
    made.tick()
    assert made.targets()["web"]["cpu"] == "587m"
    assert made.engine.usage.sample_count[made.engine.tracker.rows()].tolist() == [10]


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_upstream_drops_empty_history_of_finished_pods_whose_controller_is_gone(phase: str) -> None:
    """Facts 11.8, case 112."""
    made = World("--compatibility=upstream")
    made.put_pod(pod_view("job-1", "job", owner=("Job", "job"), phase=phase, labels={"app": "job"}))
    collect(made)
    assert rows(made) == (1 if phase == "Running" else 0)


def test_upstream_keeps_empty_history_while_the_target_exists() -> None:
    made = World("--compatibility=upstream")
    made.put_pod(pod_view("job-1", "job", owner=("Job", "job"), phase="Succeeded", labels={"app": "job"}))
    made.put_vpa(vpa("job", target="job", kind="Job"))
    made.tick()
    collect(made)
    assert rows(made) == 1
    collect(made, times_=9 * 24)
    assert rows(made) == 1, "expired, and found anew because the pod is still there"


# Targets that cannot be read


def unreadable(made: World, *, temporary: bool = True) -> None:
    served = made.engine.autoscalers.served["shop", "web"]
    target = made.target(served.vpa)
    problem = "Cannot read targetRef. Reason: unhandled targetRef v1 / Rollout / web, last error timeout"
    made.resolve(served, type(target)(target.key, problem=problem, temporary=temporary))
    made.tick()


def test_a_target_that_is_briefly_unreadable_changes_nothing_but_a_condition() -> None:
    """Field case 29."""
    made = web_shop()
    made.run(600, ("web-1-0", "web", 0.5, 400))
    before = made.status()
    unreadable(made)
    during = made.status()
    assert during["recommendation"] == before["recommendation"]
    assert made.conditions().keys() - {"ConfigUnsupported"} == {c["type"] for c in before["conditions"]}
    served = made.engine.autoscalers.served["shop", "web"]
    made.resolve(served, made.target(served.vpa, "web"))
    made.run(600, ("web-1-0", "web", 0.5, 400))
    assert "ConfigUnsupported" not in made.conditions()
    assert made.engine.usage.sample_count[made.engine.tracker.rows()].tolist() == [20]


def test_a_target_that_is_unreadable_at_the_start_keeps_what_is_in_the_status() -> None:
    made = World()
    status = {
        "conditions": [{"type": "RecommendationProvided", "status": "True"}],
        "recommendation": {
            "containerRecommendations": [{"containerName": "web", "target": {"cpu": "1", "memory": "1Gi"}}]
        },
    }
    made.put_vpa(vpa(kind="Rollout", status=status))
    unreadable(made)
    assert made.targets() == {"web": {"cpu": "1", "memory": "1Gi"}}
    assert made.conditions()["RecommendationProvided"]["status"] == "True"
    assert "NoPodsMatched" not in made.conditions()


def test_upstream_wipes_the_recommendation_of_an_unreadable_target() -> None:
    made = web_shop("--compatibility=upstream")
    made.run(600, ("web-1-0", "web", 0.5, 400))
    unreadable(made)
    assert made.targets() == {}
    assert made.conditions()["NoPodsMatched"]["status"] == "True"
    assert made.conditions()["RecommendationProvided"]["status"] == "False"


# Kills for lack of memory


def test_a_kill_right_after_the_start_is_enough_for_a_recommendation() -> None:
    """Field case 23."""
    made = web_shop()
    assert made.kill("web-1-0", "web", 500) == {("shop", "web")}
    made.tick()
    assert of_memory(made.targets()["web"]["memory"]) >= 600 * MIB


def test_a_kill_seen_just_after_a_sample_opened_a_new_window_is_accepted() -> None:
    """Field case 25."""
    made = web_shop()
    made.read(("web-1-0", "web", 0.1, 400))
    made.pass_time(DAY)
    made.read(("web-1-0", "web", 0.1, 400))
    made.pass_time(2)
    made.kill("web-1-0", "web", 500, ago=36)
    assert made.metrics.own.ooms.value(result="recorded") == 1
    made.tick()
    assert of_memory(made.targets()["web"]["memory"]) >= 600 * MIB


def test_repeated_kills_at_one_size_do_not_inflate_and_decay_after_quiet_days() -> None:
    """Field case 26: bump ratio 2, kills every few days at the same capped request."""
    made = web_shop("--oom-bump-up-ratio=2")
    policy = {"containerPolicies": [{"containerName": "web", "maxAllowed": {"memory": "700Mi"}}]}
    made.put_vpa(vpa(resourcePolicy=policy))
    seen = set()
    for _ in range(5):
        made.kill("web-1-0", "web", 700)
        made.run(3 * DAY, ("web-1-0", "web", 0.1, 600), step=HOUR)
        made.kill("web-1-0", "web", 700)
        made.tick()
        (entry,) = made.status()["recommendation"]["containerRecommendations"]
        assert entry["target"]["memory"] == "700Mi"
        seen.add(entry["uncappedTarget"]["memory"])
    assert len(seen) == 1, "the same evidence gives the same number each time"
    assert 1400 * MIB <= of_memory(seen.pop()) < 1540 * MIB
    made.put_vpa(vpa())
    made.run(7 * DAY, ("web-1-0", "web", 0.1, 900), step=HOUR)
    assert of_memory(made.targets()["web"]["memory"]) < 1000 * MIB


def test_when_every_replica_is_killed_the_target_rises_at_once() -> None:
    made = web_shop(pods=5)
    lines = [(f"web-1-{number}", "web", 0.1, 300.0) for number in range(5)]
    made.run(3 * DAY, *lines, step=HOUR)
    before = of_memory(made.targets()["web"]["memory"])
    keys = set()
    for number in range(5):
        keys |= made.kill(f"web-1-{number}", "web", 500)
    assert made.tick(sorted(keys)) != {}, "written without waiting for the tick"
    assert of_memory(made.targets()["web"]["memory"]) >= 600 * MIB > before


def test_a_kill_by_a_clock_that_is_a_day_ahead_locks_no_later_usage_out() -> None:
    made = web_shop()
    made.run(600, ("web-1-0", "web", 0.1, 400))
    made.kill("web-1-0", "web", 500, ago=-DAY)
    made.tick()
    assert of_memory(made.targets()["web"]["memory"]) >= 600 * MIB, "it counts all the same"
    made.run(600, ("web-1-0", "web", 0.1, 900))
    assert of_memory(made.targets()["web"]["memory"]) >= 890 * MIB


def test_clocks_that_jump_lose_no_samples_but_those_stamped_in_the_far_future() -> None:
    """Ours goes back by an hour for a minute; then that of the usage does, as if it had not been scraped."""
    made = web_shop()
    usage = ("web-1-0", "web", 0.1, 400.0)
    made.run(600, usage)
    (row,) = made.engine.tracker.rows().tolist()
    counted = made.engine.usage.sample_count
    for jump in (-HOUR, HOUR):  # a time before the newest sample is no news, and neither is it any harm
        made.pass_time(jump)
        made.read(usage)
        made.tick()
    assert counted[row] == 10
    made.run(600, usage)
    assert counted[row] == 20


def test_settings_of_a_policy_hold_for_kills_and_end_with_it() -> None:
    made = web_shop("--feature-gates=PerVPAConfig=true")
    policy = {"containerName": "*", "oomBumpUpRatio": "3", "oomMinBumpUp": "0"}
    made.put_vpa(vpa(resourcePolicy={"containerPolicies": [policy]}))
    made.tick()
    (row,) = made.engine.tracker.rows().tolist()
    assert (made.engine.usage.bump_ratio[row], made.engine.usage.min_bump[row]) == (3.0, 0.0)
    made.put_vpa(vpa())
    made.tick()
    assert made.engine.usage.bump_ratio[row] == 1.2


def test_upstream_keeps_settings_after_their_policy() -> None:
    made = web_shop("--feature-gates=PerVPAConfig=true", "--compatibility=upstream")
    policy = {"containerName": "*", "oomBumpUpRatio": "3"}
    made.put_vpa(vpa(resourcePolicy={"containerPolicies": [policy]}))
    made.tick()
    made.put_vpa(vpa())
    made.tick()
    (row,) = made.engine.tracker.rows().tolist()
    assert made.engine.usage.bump_ratio[row] == 3.0


def test_of_two_vpas_the_settings_of_the_oldest_hold() -> None:
    made = web_shop("--feature-gates=PerVPAConfig=true")
    for name, ratio, day in (("old", "2", "01"), ("new", "3", "02")):
        policy = {"containerName": "*", "oomBumpUpRatio": ratio}
        created = f"2026-06-{day}T00:00:00Z"
        made.put_vpa(vpa(name, created=created, resourcePolicy={"containerPolicies": [policy]}))
    made.put_vpa(vpa("web", created="2026-07-30T00:00:00Z"))
    made.tick()
    (row,) = made.engine.tracker.rows().tolist()
    assert made.engine.usage.bump_ratio[row] == 2.0
