"""History from a real Prometheus: all of it, whose it is, and nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest

from tests.testbed import history_world as world
from tests.testbed.history_loads import load
from tests.testbed.prometheus import Prometheus
from vpa.metrics.history.batches import COMPLETE, NEWEST
from vpa.metrics.history.grids import DAY, history_grid
from vpa.metrics.history.loading import HistoryError
from vpa.metrics.history.planning import Limits, Target
from vpa.metrics.prometheus.access import Access
from vpa.metrics.prometheus.client import Client
from vpa.metrics.prometheus.names import Names
from vpa.metrics.prometheus_usage import PrometheusUsage
from vpa.rules import preset

pytestmark = pytest.mark.prometheus

API = [Target(namespace="other", kind="Deployment", name="api")]


@pytest.fixture
async def client(prometheus: Prometheus) -> AsyncIterator[Client]:
    async with Client(Access(addresses=(prometheus.url,))) as client:
        yield client


def usage_of(pod: str, container: str, now: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return world.usage(next(one for one in world.PODS if one.name == pod), container, now)


async def test_history_loads_with_upstreams_default_flags(client: Client, history_now: float) -> None:
    found = await load(client, history_now)
    assert found.progress.notes == [
        'any job instead of "kubernetes-cadvisor"; labels pod and container instead of pod_name and name'
    ]
    assert {name: len(one.pods) for name, one in found.loaded().items()} == {
        "web": 5,
        "db": 1,
        "s0": 1,
        "s1": 1,
        "tick": 6,
        "api": 1,
    }
    assert found.progress.problems == []
    assert client.statistics.errors == {}


@pytest.mark.parametrize("name", ["cadvisor", "kube-prometheus", "deckhouse"])
async def test_a_preset_finds_the_same_as_the_defaults(client: Client, history_now: float, name: str) -> None:
    found = await load(client, history_now, f"--history-preset={name}", targets=API)
    assert found.progress.notes == []
    assert found.loaded()["api"].points == {"cpu": 192, "memory": 192}


async def test_pods_of_the_past_are_their_workloads_and_it_is_said_how_that_is_known(
    client: Client, history_now: float
) -> None:
    """Field case 37: the metric of the pods' labels is named without a range."""
    loaded = (await load(client, history_now)).loaded()
    assert sorted(loaded["web"].pods.values()) == ["cluster", "cluster", "owner", "owner", "owner"]
    assert set(loaded["tick"].pods.values()) == {"labels"}
    assert "5 pods (2 present, past: 3 by owner metrics)" in loaded["web"].words()
    assert "6 pods (0 present, past: 6 by labels)" in loaded["tick"].words()


async def test_two_statefulsets_with_the_same_labels_are_not_mixed(
    client: Client, history_now: float
) -> None:
    found = await load(client, history_now)
    assert list(found.loaded()["s0"].pods) == ["s0-0"]
    assert list(found.loaded()["s1"].pods) == ["s1-0"]
    assert found.of("s0-0", "app", "cpu")[1].max() <= 17
    assert found.of("s1-0", "app", "cpu")[1].max() > 500


def rates(pod: str, now: float, seconds: np.ndarray) -> list[float]:
    """Millicores as ``rate(…[1h])`` has them: of the hour's sixty samples it sees the differences."""
    times, cores, _ = usage_of(pod, "app", now)
    hour = 3600 - world.SCRAPE
    return [1000 * cores[(times > second - hour) & (times <= second)].mean() for second in seconds]


async def test_cpu_that_is_exposed_per_core_is_that_of_all_cores(client: Client, history_now: float) -> None:
    """Field case 36: eight series for one container."""
    seconds, millicores = (await load(client, history_now)).of("db-0", "app", "cpu")
    np.testing.assert_allclose(millicores[1:], rates("db-0", history_now, seconds[1:]), rtol=1e-3, atol=1)


async def test_a_copy_on_the_kubelets_other_path_does_not_count_twice(
    client: Client, history_now: float
) -> None:
    pod = "web-7d8c9b6f5-ddddd"
    seconds, millicores = (await load(client, history_now)).of(pod, "app", "cpu")
    np.testing.assert_allclose(millicores[2:], rates(pod, history_now, seconds[2:]), rtol=1e-3, atol=1)


async def test_memory_is_the_peak_of_each_step_and_under_upstream_the_use_at_its_end(
    client: Client, history_now: float
) -> None:
    times, _, memory = usage_of("db-0", "app", history_now)
    seconds, peaks = (await load(client, history_now)).of("db-0", "app", "memory")
    assert peaks.tolist() == [
        int(memory[(times > second - 3600) & (times <= second)].max()) for second in seconds
    ]
    seconds, ends = (await load(client, history_now, "--history-memory-peaks=false")).of(
        "db-0", "app", "memory"
    )
    assert ends.tolist() == [int(memory[times <= second][-1]) for second in seconds]


async def test_the_newest_days_of_everything_come_before_the_rest(client: Client, history_now: float) -> None:
    found = await load(client, history_now)
    assert [batch.stage for batch in found.batches] == [NEWEST, COMPLETE]
    newest = found.batches[0]
    assert DAY / 2 <= len(np.unique(newest.cpu.times)) * 3600 <= 1.5 * DAY


async def test_eight_days_at_thirty_seconds_are_read_within_what_prometheus_allows(
    client: Client, history_now: float
) -> None:
    """Field case 38: 23,040 points a series."""
    found = await load(client, history_now, "--history-resolution=30s", targets=API)
    assert found.loaded()["api"].points["cpu"] > 22_000
    assert client.statistics.errors == {}


async def test_a_query_with_too_many_points_is_cut_and_asked_again(
    client: Client, history_now: float
) -> None:
    whole = await load(client, history_now, "--history-resolution=30s", targets=API)
    errors = client.statistics.errors["TooMuchError"]
    cut = await load(
        client,
        history_now,
        "--history-resolution=30s",
        targets=API,
        limits=Limits(points=10**6, samples=10**7),
    )
    assert errors == 0
    assert client.statistics.errors["TooMuchError"] > 0
    assert cut.all_points() == whole.all_points()


async def test_any_cut_gives_the_same_points(client: Client, history_now: float) -> None:
    whole = await load(client, history_now)
    pieces = await load(client, history_now, limits=Limits(samples=400))
    assert pieces.progress.pieces > 10 * whole.progress.pieces
    assert pieces.all_points() == whole.all_points()


async def test_every_point_is_there_and_none_twice(client: Client, history_now: float) -> None:
    found = await load(client, history_now)
    grid = history_grid(now=history_now, length=8 * DAY, step=3600)
    seconds, _ = found.of("db-0", "app", "cpu")
    assert seconds.tolist() == list(range(grid.start, grid.end + 1, 3600))
    assert found.progress.counts.duplicates == 0
    assert sum(batch.counts.gaps for batch in found.batches) == 0


async def test_under_upstream_a_vector_of_labels_voids_everything(client: Client, history_now: float) -> None:
    flags = ("--compatibility=upstream", "--history-preset=cadvisor")
    with pytest.raises(
        HistoryError,
        match="cannot read last labels: cannot get timeseries for labels: "
        "expected query to return a matrix; got result type vector",
    ):
        await load(client, history_now, *flags)


async def test_under_upstream_a_range_of_labels_loads_what_the_labels_say(
    client: Client, history_now: float
) -> None:
    flags = (
        "--compatibility=upstream",
        "--history-preset=cadvisor",
        "--metric-for-pod-labels=kube_pod_labels[8d]",
    )
    found = await load(client, history_now, *flags)
    assert [batch.stage for batch in found.batches] == [COMPLETE]
    assert set(found.loaded()["tick"].pods.values()) == {"labels"}
    assert (found.batches[0].weight, found.batches[0].count) == (0.1, 1)


async def test_under_upstream_the_default_flags_load_nothing(client: Client, history_now: float) -> None:
    with pytest.raises(HistoryError):
        await load(client, history_now, "--compatibility=upstream")


async def test_a_workload_that_prometheus_knows_nothing_of_is_said_to_have_no_history(
    client: Client, history_now: float
) -> None:
    target = Target(namespace="nowhere", kind="Deployment", name="x")
    found = await load(client, history_now, targets=[target])
    assert found.loaded()["x"].words() == "Prometheus has no history of its pods"


async def test_present_usage_is_that_of_the_newest_scrapes(client: Client, history_now: float) -> None:
    source = PrometheusUsage(client=client, names=Names(), rules=preset("safe"))
    usage = await source.poll(history_now + 75)
    assert set(zip(usage.pods, usage.containers, strict=True)) == {
        (pod.name, container) for pod in world.PODS if pod.live for container in pod.containers
    }
    assert set(usage.times.tolist()) == {(int(history_now) // 60 + 1) * 60 * 10**9}
    entry = usage.pods.index("db-0")
    _, cores, memory = usage_of("db-0", "app", history_now)
    assert usage.cpu[entry] == pytest.approx(1000 * cores[-1], abs=2)
    assert usage.memory[entry] == memory[-1]


async def test_present_usage_of_one_namespace(client: Client, history_now: float) -> None:
    source = PrometheusUsage(client=client, names=Names(), rules=preset("safe"), namespace="other")
    assert set((await source.poll(history_now + 75)).namespaces) == {"other"}
