"""What docs/differences.md says of the recommender and no other test shows, under both presets."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

import recommender.settings
from recommender.autoscalers import HistoryState
from recommender.loading import CHECKPOINT_SOURCE, ONE_BY_ONE, Loader
from tests.core.recommending import MIB, World, pod_view, vpa
from vpa.cluster.connection import Connection
from vpa.cluster.targets import Target
from vpa.cluster.workloads import OwnerKey
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.quantities import Quantity
from vpa.recommendations import humanize
from vpa.rules import preset
from vpa.selectors import NOTHING, Selector
from vpa.telemetry import programs

ROOT = Path(__file__).parents[2]
DAY = 24 * 3600
BOTH = pytest.mark.parametrize("rules", ["safe", "upstream"])


def single(made: World) -> dict[str, Any]:
    """The only recommendation."""
    (entry,) = made.status()["recommendation"]["containerRecommendations"]
    return cast(dict[str, Any], entry)


def started(*args: str, **of_pod: Any) -> World:
    made = World(*args)
    made.put_pod(pod_view("web-1-0", "web", **of_pod))
    made.put_vpa(vpa())
    return made


@BOTH
def test_after_one_sample_the_upper_bound_is_the_largest_number_there_is(rules: str) -> None:
    made = started(f"--compatibility={rules}")
    made.run(60, ("web-1-0", "web", 0.5, 400))
    assert single(made)["upperBound"] == {"cpu": "100G", "memory": "97656250000Ki"}


@BOTH
def test_looking_at_the_sum_of_several_histories_changes_none_of_them(rules: str) -> None:
    made = World(f"--compatibility={rules}")
    for name in ("old", "young"):
        made.put_pod(pod_view(name, "web", owner=None, labels={"app": "web", "part": name}))
    made.put_vpa(vpa(kind="Rollout"))
    made.run(DAY, ("old", "web", 0.5, 400), step=3600)
    made.pass_time(20 * DAY)
    made.run(120, ("young", "web", 0.1, 100))

    def everything() -> list[Any]:
        usage = made.engine.usage
        rows = made.engine.tracker.rows().tolist()
        assert len(rows) == 2
        return [
            (bank.weights(row).tolist(), bank.total[row], bank.reference[row], bank.low[row], bank.high[row])
            for bank in (usage.cpu, usage.memory)
            for row in rows
        ]

    before = everything()
    assert len({reference for _, _, reference, _, _ in before}) > 1, "else there is nothing to shift"
    for _ in range(3):
        made.engine.autoscalers.dirty.update(made.engine.autoscalers.served)
        made.tick()
    assert everything() == before


class Listing(Connection):
    """An API server that has one empty list for every question, and counts them."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        self.asked.append(path)
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode()


@BOTH
async def test_checkpoints_of_many_namespaces_are_listed_once(rules: str) -> None:
    made = World(f"--compatibility={rules}")
    for number in range(ONE_BY_ONE + 1):
        served = made.put_vpa(vpa(namespace=f"n{number}"))
        assert served is not None
        served.fetching.add(CHECKPOINT_SOURCE)
        assert served.history is HistoryState.SETTLED
    connection = Listing()
    loader = Loader(
        connection,
        made.engine.tracker,
        made.engine.autoscalers,
        rules=preset(rules),
        namespace="",
        now=lambda: made.now,
        report=lambda *_: None,
    )
    await loader.load(made.engine.autoscalers)
    assert connection.asked == ["/apis/autoscaling.k8s.io/v1/verticalpodautoscalercheckpoints"]
    assert not any(served.fetching for served in made.engine.autoscalers)


def test_the_help_says_what_flags_do_whose_names_say_something_else() -> None:
    flags = recommender.settings.TABLE.flags
    assert flags["min-checkpoints"].inert
    assert "writing checkpoints in one tick" in flags["checkpoints-timeout"].help
    assert "is dropped" in flags["memory-aggregation-interval-count"].help
    assert "annotation" in flags["cpu-integer-post-processor-enabled"].help


@BOTH
def test_whole_cores_are_recommended_where_an_annotation_asks_for_them(rules: str) -> None:
    made = World(f"--compatibility={rules}", "--cpu-integer-post-processor-enabled")
    made.put_pod(pod_view("web-1-0", "web", "side"))
    name = "vpa-post-processor.kubernetes.io/web_integerCPU"
    made.put_vpa(vpa(annotations={name: "true"}))
    made.run(60, ("web-1-0", "web", 1.2, 400), ("web-1-0", "side", 1.2, 400))
    targets = made.targets()
    assert targets["web"]["cpu"] == "2"
    assert targets["side"]["cpu"] == "1388m"


def test_humanized_memory_may_end_in_thousandths_of_a_byte() -> None:
    assert str(humanize(628694712)) == "628694712320m"
    assert str(humanize(250 * MIB)) == "250Mi"


@BOTH
def test_a_selector_that_becomes_that_of_everything_is_noticed(rules: str) -> None:
    made = World(f"--compatibility={rules}")
    made.put_pod(pod_view("loose", "web", owner=None))
    new = vpa(kind="Rollout")
    key = OwnerKey("shop", "Rollout", "web", "example.org/v1")
    served = made.put_vpa(new, Target(key, NOTHING))
    assert served is not None
    made.tick()
    assert made.targets() == {}
    made.resolve(served, Target(key, Selector()))
    made.tick()
    assert set(made.targets()) == {"web"}
    made.resolve(served, Target(key, NOTHING))
    made.engine.refresh()
    assert served.groups == []


def relabelled(*args: str) -> World:
    """A pod whose label changes between two samples."""
    made = started(*args)
    made.run(60, ("web-1-0", "web", 0.5, 400))
    made.put_pod(pod_view("web-1-0", "web", labels={"app": "web", "phase": "two"}))
    made.run(60, ("web-1-0", "web", 0.5, 400))
    return made


def test_a_change_of_labels_leaves_history_where_it_is_and_under_upstream_begins_another() -> None:
    for args, counts in ((), [2]), (("--compatibility=upstream",), [1, 1]):
        made = relabelled(*args)
        rows = made.engine.tracker.rows()
        assert made.engine.usage.sample_count[rows].tolist() == counts


@BOTH
def test_ratio_1_and_no_bump_still_make_a_sample_of_the_memory_at_the_kill(rules: str) -> None:
    made = started(f"--compatibility={rules}", "--feature-gates=PerVPAConfig=true", memory="500Mi")
    made.run(60, ("web-1-0", "web", 0.5, 100))
    policy = {
        "containerName": "*",
        "oomBumpUpRatio": "1",
        "oomMinBumpUp": "0",
        "memoryAggregationIntervalSeconds": 3600,
    }
    made.put_vpa(vpa(resourcePolicy={"containerPolicies": [policy]}))
    made.tick()
    (row,) = made.engine.tracker.rows().tolist()
    assert made.engine.usage.interval[row] == 3600 * 10**9, "the field of the API, in seconds"
    made.kill("web-1-0", "web", 500)
    made.tick()
    wanted = Quantity.parse(made.targets()["web"]["memory"]).value()
    assert 500 * MIB * 1.15 <= wanted < 600 * MIB * 1.15


@BOTH
def test_the_order_in_which_objects_come_changes_no_number(rules: str) -> None:
    pods = [
        pod_view(f"p{number}", "web", owner=None, labels={"app": "web", "n": str(number)})
        for number in range(5)
    ]
    vpas: list[VerticalPodAutoscaler] = [
        vpa(name, kind="Rollout", created=f"2026-0{month}-01T00:00:00Z")
        for month, name in enumerate(("web", "a", "z"), 1)
    ]

    def outcome(step: int) -> list[Any]:
        made = World(f"--compatibility={rules}")
        for view in pods[::step]:
            made.put_pod(view)
        for new in vpas[::step]:
            made.put_vpa(new, Target(OwnerKey("shop", "Rollout", "web", "x/v1"), made.target(new).selector))
        for hour in range(30):
            made.pass_time(3600)
            lines = [(f"p{n}", "web", 0.1 + 0.017 * n + hour / 100, 100.0 + 31 * n) for n in range(5)]
            made.read(*lines[::step])
            made.tick()
        return [made.status(name) for name in ("web", "a", "z")]

    assert outcome(1) == outcome(-1)


def test_the_start_says_which_release_of_upstream_is_followed() -> None:
    assert programs.UPSTREAM_VERSION == "1.8.0"
    page = (ROOT / "docs" / "differences.md").read_text()
    assert "than upstream's VPA 1.8" in page


def test_no_line_of_the_log_shows_a_placeholder() -> None:
    """Every message has as many places as it is given values, in the one syntax that is expanded."""
    found = 0
    for folder in ("vpa", "recommender", "updater", "admission"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text())):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                    continue
                owner = call.func.value
                if not (isinstance(owner, ast.Name) and owner.id in ("log", "logger")):
                    continue
                message, *values = call.args[1:] if call.func.attr == "log" else call.args
                if not isinstance(message, ast.Constant) or any(
                    isinstance(one, ast.Starred) for one in values
                ):
                    continue
                found += 1
                text = str(message.value).replace("%%", "")
                where = f"{path.relative_to(ROOT)}:{call.lineno}"
                assert len(re.findall(r"%(?:\.\d)?[sdgfr]", text)) == text.count("%") == len(values), where
                assert "{" not in text, where
    assert found > 50
