"""What metrics-server and cAdvisor say, and what our recommender makes of it, beside the work asked for."""

from __future__ import annotations

import time

import pytest

from tests.node import usage
from tests.node.figures import Figures
from tests.node.workloads import MI, Namespace, container, millicores, pod_spec
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from tests.testbed.realnodes.nodes import RealNodes
from tests.testbed.realnodes.scraping import Scraper
from vpa.quantities import Quantity

pytestmark = pytest.mark.usefixtures("chart")

MILLI, MIB = 240, 240
MEASURED_SECONDS = 15
OWN_MIB = 4
"""What the workload needs for itself."""


@pytest.fixture(scope="module")
def prometheus(real: Cluster, nodes: RealNodes) -> Scraper:
    """One that scrapes cAdvisor every 2 seconds, as long as the cluster runs."""
    return Scraper(real, nodes, interval=2)


@pytest.mark.brief
@pytest.mark.builds("prometheus")
def test_metrics_server_cadvisor_and_prometheus_agree_with_the_work_asked_for(
    namespace: Namespace, prometheus: Scraper, figures: Figures
) -> None:
    namespace.deployment("busy", pod_spec(container(milli=MILLI, mib=MIB), node="node-1"))
    pod = namespace.pod("busy")
    for _ in attempts(90, "metrics-server to know it", pause=1):
        found = usage.from_metrics_server(namespace, pod)["app"]
        if found.memory > MIB * MI:
            break
    seconds, begun = usage.cpu_from_cadvisor(namespace, pod)
    time.sleep(MEASURED_SECONDS)
    later, ended = usage.cpu_from_cadvisor(namespace, pod)
    rate = (later - seconds) / (ended - begun)
    found = usage.from_metrics_server(namespace, pod)["app"]
    assert rate == pytest.approx(MILLI / 1000, rel=0.1)
    assert found.cpu == pytest.approx(rate, rel=0.15)
    assert found.memory == pytest.approx((MIB + OWN_MIB) * MI, rel=0.05)
    assert usage.memory_from_cadvisor(namespace, pod) == pytest.approx(found.memory, rel=0.05)
    labels = f'namespace="{namespace.name}",pod="{pod["metadata"]["name"]}",container="app"'
    for _ in attempts(60, "Prometheus to have scraped a whole window of it", pause=2):
        scraped = prometheus.value(f"rate(container_cpu_usage_seconds_total{{{labels}}}[15s])") or 0.0
        held = prometheus.value(f"container_memory_working_set_bytes{{{labels}}}") or 0.0
        if scraped == pytest.approx(rate, rel=0.15) and held == pytest.approx(found.memory, rel=0.05):
            break
    figures("asked for", f"{MILLI}m and {MIB} + {OWN_MIB} MiB")
    figures("metrics-server", f"{found.cpu * 1000:.0f}m and {found.memory / MI:.0f} MiB")
    figures("cAdvisor", f"{rate * 1000:.0f}m")
    figures("Prometheus", f"{scraped * 1000:.0f}m and {held / MI:.0f} MiB")


def test_recommendations_follow_the_true_use(namespace: Namespace, figures: Figures) -> None:
    """Without its margin a target is the end of a bucket of the histogram; they are 5 % apart."""
    namespace.deployment("busy", pod_spec(container(milli=MILLI, mib=MIB), node="node-1"))
    namespace.vpa("busy", mode="Off", recommender=None)
    pod = namespace.pod("busy")
    start = time.monotonic()
    before, begun = usage.cpu_from_cadvisor(namespace, pod)
    told = ""
    for _ in attempts(240, "a recommendation within 10 % of the true use", pause=2):
        status = namespace.api.get("VerticalPodAutoscaler", "busy", namespace.name).get("status", {})
        recommended = status.get("recommendation", {}).get("containerRecommendations", ())
        seconds, now = usage.cpu_from_cadvisor(namespace, pod)
        if not recommended or now - begun < MEASURED_SECONDS:
            continue
        used = (seconds - before) / (now - begun), usage.memory_from_cadvisor(namespace, pod)
        target = recommended[0]["target"]
        bare = millicores(target["cpu"]) / 1.15, Quantity.parse(target["memory"]).value() / 1.15
        told = f"{bare[0]:.0f}m of {used[0] * 1000:.0f}m and {bare[1] / MI:.0f} of {used[1] / MI:.0f} MiB"
        if bare[0] == pytest.approx(used[0] * 1000, rel=0.1) and bare[1] == pytest.approx(used[1], rel=0.1):
            break
    figures("seconds", round(time.monotonic() - start))
    figures("target without the margin", told)
