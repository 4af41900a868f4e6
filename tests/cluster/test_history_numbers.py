"""What history means for the numbers: those of the same samples by file, and confidence as the data say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.test_history_command import objects
from tests.testbed.history_loads import Load, load
from tests.testbed.prometheus import Prometheus
from vpa.cli.history import usage_lines
from vpa.cli.objects import read
from vpa.cli.recommend import recommend
from vpa.metrics.history.batches import HistoryBatch
from vpa.metrics.history.planning import Target
from vpa.metrics.prometheus.access import Access
from vpa.metrics.prometheus.client import Client
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.quantities import Quantity
from vpa.recommendations import Roster
from vpa.settings import Estimation
from vpa.usage import Usage

pytestmark = pytest.mark.prometheus

API = [Target(namespace="other", kind="Deployment", name="api")]
WEB = [Target(namespace="shop", kind="Deployment", name="web")]


async def loaded(prometheus: Prometheus, now: float, *flags: str, targets: list[Target]) -> Load:
    async with Client(Access(addresses=(prometheus.url,))) as client:
        return await load(client, now, *flags, targets=targets)


def fed(batches: list[HistoryBatch]) -> dict[str, Any]:
    """Container → target and bounds, all pods of one workload in one row a container."""
    usage = Usage()
    rows: dict[str, int] = {}
    for batch in batches:
        for one in batch.containers:
            if one.name not in rows:
                rows[one.name] = int(usage.new_rows(1, 0)[0])
        instances = usage.new_instances(np.array([rows[one.name] for one in batch.containers], np.int64))
        interval = usage.interval[[rows[one.name] for one in batch.containers]]
        cpu, memory = batch.cpu, batch.memory.thinned(interval)
        count = len(cpu.times)
        usage.add_cpu(
            instances[cpu.index],
            cpu.times,
            cpu.values,
            weights=np.full(count, batch.weight),
            counts=np.full(count, batch.count),
        )
        usage.add_memory(instances[memory.index], memory.times, memory.values)
    roster = Roster(usage, Estimation())
    vpa = meta.convert({"metadata": {"name": "v"}, "spec": {}}, VerticalPodAutoscaler)
    roster.put(1, vpa, rows)
    recommendation = meta.to_builtins(roster.recommendation(1, roster.run()))
    return {one["containerName"]: one for one in recommendation["containerRecommendations"]}


@pytest.mark.parametrize("targets", [API, WEB], ids=["one pod", "pods of the past"])
async def test_a_load_gives_the_numbers_that_the_same_samples_give_by_file(
    prometheus: Prometheus, history_now: float, tmp_path: Path, targets: list[Target]
) -> None:
    """A point of a minute weighs and counts what a line of usage does."""
    found = await loaded(prometheus, history_now, "--history-resolution=1m", targets=targets)
    usage, file = tmp_path / "usage.jsonl", tmp_path / "objects.json"
    usage.write_bytes(b"\n".join(usage_lines(found.complete)))
    file.write_text(json.dumps({"kind": "List", "items": objects()}))
    _, result = recommend(read([str(file)]), [str(usage)])
    assert result.rejected == 0
    status = meta.to_builtins(result.statuses[targets[0].namespace, targets[0].name])
    by_file = {one["containerName"]: one for one in status["recommendation"]["containerRecommendations"]}
    by_load = fed(found.complete)
    assert {name: by_file[name] for name in by_load} == by_load


async def test_eight_full_days_leave_little_doubt_and_under_upstream_much(
    prometheus: Prometheus, history_now: float
) -> None:
    """192 points an hour apart count as 192 samples of a minute there, and as eight days of them here."""
    ours = fed((await loaded(prometheus, history_now, targets=API)).complete)["app"]
    flag = "--history-weighs-steps=false"
    theirs = fed((await loaded(prometheus, history_now, flag, targets=API)).complete)["app"]
    assert ours["target"] == theirs["target"]
    ratio = (
        Quantity.parse(theirs["upperBound"]["cpu"]).milli()
        / Quantity.parse(ours["upperBound"]["cpu"]).milli()
    )
    assert ratio == pytest.approx((1 + 1440 / 192) / (1 + 1 / (8 - 1 / 24)), rel=0.01)
