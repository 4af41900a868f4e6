"""Usage tick by tick from a real Prometheus, in a cluster whose Metrics API does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.recommending import MIB, Shop
from tests.testbed.cadvisor import Cadvisor
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi
from tests.testbed.prometheus import Prometheus
from tests.testbed.prometheus_proxy import PrometheusProxy
from vpa.quantities import Quantity

pytestmark = [pytest.mark.cluster, pytest.mark.prometheus]

FLAG = "--usage-source=prometheus"


@pytest.fixture
def shop(cluster: Cluster, metrics: MetricsApi, namespace: str) -> Shop:
    """A namespace with two pods of one workload and its VPA, and no usage from the Metrics API."""
    made = Shop(cluster, namespace)
    made.workload("web", replicas=2)
    made.vpa("web")
    metrics.fail(503)
    return made


@pytest.fixture
def cadvisor(shop: Shop) -> Iterator[Cadvisor]:
    """What the containers of the shop use."""
    with Cadvisor() as made:
        use(shop, made, cpu=0.5)
        made.use(shop.namespace, "stray", "web", cpu=0.5, memory=float("nan"))  # a pod that is not there
        yield made


def use(shop: Shop, cadvisor: Cadvisor, *, cpu: float) -> None:
    for pod in shop.api.list("Pod", shop.namespace):
        cadvisor.use(shop.namespace, pod["metadata"]["name"], "web", cpu=cpu, memory=400 * MIB)


def test_each_tick_reads_usage_from_prometheus_where_there_is_no_metrics_api(
    shop: Shop, cadvisor: Cadvisor, tmp_path: Path
) -> None:
    prometheus = Prometheus(tmp_path / "prometheus", scraped={"kubelet": cadvisor.url})
    address = f"--prometheus-address={prometheus.url}"
    with prometheus, shop.recommender(FLAG, address, interval="1s") as running:
        shop.wait("usage", lambda: shop.has_cpu("web", "587m"), running.process)
        assert Quantity.parse(shop.targets("web")["web"]["memory"]).value() > 400 * MIB
        assert running.logged("Usage from Prometheus: any job instead of") == 1, "its names were found out"
        before, ticks = running.samples(), running.ticks()
        running.wait_for_ticks(6)
        pods_and_ticks = 2 * (running.ticks() - ticks)
        figures = running.figures()
        for reason in ("unknown", "unreadable"):
            assert figures[f'vpa_recommender_dropped_samples_total{{reason="{reason}"}}'] >= 6
        assert 6 <= running.samples() - before <= pods_and_ticks + 4, "a sample a tick of each of two pods"

        use(shop, cadvisor, cpu=0.9)
        shop.wait("the newest usage", lambda: shop.cpu("web") != "587m", running.process)
        target, well = shop.targets("web"), running.logged("Prometheus: well again")

        prometheus.kill()
        running.wait_for_ticks(4)
        assert shop.targets("web") == target
        assert running.logged("Prometheus: Prometheus query") == 1, "said once, not in each tick"
        assert running.logged("Cannot connect to host") >= 1
        prometheus.start()
        prometheus.wait_until_ready()
        running.wait_for_samples(4)
        assert running.logged("Prometheus: well again") == well + 1
        assert running.logged("A tick failed") == 0
        assert running.process.stop() == 0
        assert shop.checkpoint("web", "web")["totalSamplesCount"] >= before
    assert not [path for path in shop.cluster.metrics.requests() if shop.namespace in path]


def test_a_prometheus_that_never_answers_costs_a_tick_seconds_and_not_the_service(shop: Shop) -> None:
    """Its queries for history may take minutes; a tick can't wait for as long."""
    deaf = PrometheusProxy("http://127.0.0.1:9", delay=lambda asked: 3600.0)
    with deaf, shop.recommender(FLAG, f"--prometheus-address={deaf.url}") as running:
        running.wait_for_ticks(2)
        assert running.logged("no answer within 5 s; usage is read again in the next tick") == 1
        assert running.logged("A tick failed") == 0
        shop.wait_for_target("web", "web")
