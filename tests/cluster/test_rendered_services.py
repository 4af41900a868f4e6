"""The whole circle with exactly the arguments, environment, roles and probes that are rendered."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.cluster import rendering, sources
from tests.cluster.recommending import MIB, Shop
from tests.cluster.rendered_pods import RenderedPod
from tests.cluster.rendering import COMPONENTS
from tests.cluster.service_network import ServiceNetwork
from tests.testbed.api import Json
from tests.testbed.cluster import Cluster
from tests.testbed.prometheus import Prometheus, Series, backfill
from tests.testbed.prometheus_proxy import PrometheusProxy
from vpa.quantities import Quantity

pytestmark = [pytest.mark.cluster, pytest.mark.builds("helm", "prometheus")]

APPLY = ("apply", "--server-side", "--force-conflicts", "--warnings-as-errors", "-f", "-")
HISTORY = "aggregating-proxy.d8-monitoring.svc.cluster.local:443"
"""The platform's Prometheus, as Deckhouse's arguments name it."""
DAYS = 2
REPLICAS = 3


@pytest.fixture(scope="module")
def network() -> Iterator[ServiceNetwork]:
    """What kube-proxy and the DNS would be."""
    with ServiceNetwork() as running:
        yield running


@pytest.fixture(scope="module")
def server(network: ServiceNetwork) -> Iterator[Cluster]:
    """A cluster that has what the renderings name, and reaches Services through `network`."""
    with Cluster(apiserver_args=[network.egress()]) as running:
        running.kubectl("apply", "-f", "-", stdin=yaml.dump_all(sources.neighbours()))
        running.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        running.create_namespace("d8-monitoring")
        priority = {"metadata": {"name": "cluster-medium"}, "value": 9}
        running.api.apply({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **priority})
        yield running


@pytest.fixture
def shop(server: Cluster, request: pytest.FixtureRequest) -> Iterator[Shop]:
    """Two Deployments with less than they use, now or, where a Prometheus tells of that, in the past."""
    namespace = f"shop-{request.node.callspec.id}"
    server.create_namespace(namespace)
    made = Shop(server, namespace)
    past = request.node.callspec.id == "deckhouse"
    for name in ("web", "worker"):
        made.workload(name, replicas=REPLICAS)
        made.use(name, cpu=0.1 if past else 0.5, memory=100 if past else 400)
    yield made
    server.metrics.reset()
    server.api.delete("Namespace", namespace)


@contextlib.contextmanager
def applied(server: Cluster, text: str) -> Iterator[None]:
    """The rendering is there, and all that it brings is gone afterwards but the definitions."""
    server.kubectl(*APPLY, stdin=text, timeout=120)
    try:
        yield
    finally:
        brought = [each for each in rendering.objects(text) if each["kind"] != "CustomResourceDefinition"]
        server.kubectl(
            *("delete", "--ignore-not-found", "--wait=false", "-f", "-"), stdin=yaml.dump_all(brought)
        )
        server.kubectl("delete", "mutatingwebhookconfigurations", "--all")
        for lease in server.api.list("Lease", "kube-system"):
            if "vpa" in lease["metadata"]["name"]:
                server.api.delete("Lease", lease["metadata"]["name"], "kube-system")
        server.api.delete("Secret", "vpa-tls-certs", "kube-system")


def history(shop: Shop) -> Iterator[Series]:
    """Two days of half a core and 400 MiB, as the platform's Prometheus has them."""
    times = np.arange(time.time() - DAYS * 86400, time.time(), 300.0)
    names = [pod["metadata"]["name"] for pod in shop.api.list("Pod", shop.namespace)]
    metrics = {
        "container_cpu_usage_seconds_total": (times - times[0]) * 0.5,
        "container_memory_working_set_bytes": np.full(len(times), 400.0 * MIB),
    }
    for metric, values in metrics.items():
        for name in names:
            labels = {"job": "kubelet", "namespace": shop.namespace, "pod": name}
            yield Series(metric, labels | {"container": name.partition("-")[0]}, times, values)
    for name in names:
        labels = {"job": "kube-state-metrics", "namespace": shop.namespace, "pod": name}
        labels |= {"label_app": name.partition("-")[0]}
        yield Series("kube_pod_labels", labels, times, np.ones(len(times)))


@contextlib.contextmanager
def platform_prometheus(shop: Shop, network: ServiceNetwork, folder: Path, token: str) -> Iterator[None]:
    """It is behind TLS, and lets only the bearer of *token* in."""
    backfill(folder / "data", history(shop))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate = shop.cluster.authority.issue("aggregating-proxy")
    context.load_cert_chain(certificate.chain, certificate.key)
    with (
        Prometheus(folder) as prometheus,
        PrometheusProxy(prometheus.url, token=token, tls=context) as proxy,
    ):
        network.route(HISTORY, proxy.port)
        yield
        assert any(each.path == "/api/v1/query_range" for each in proxy.asked)


def pods(shop: Shop, app: str) -> list[Json]:
    return shop.api.list("Pod", shop.namespace, labelSelector=f"app={app}")


def uids(found: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in found}


def sized(shop: Shop, app: str) -> list[Json]:
    """The pods that run with the target, in the eyes of the kubelet too."""
    target = shop.targets(app)[app]
    return [
        pod
        for pod in pods(shop, app)
        if pod["status"].get("phase") == "Running"
        and pod["spec"]["containers"][0]["resources"]["requests"] == target
        and pod["status"]["containerStatuses"][0].get("resources", {}).get("requests") == target
    ]


@pytest.mark.parametrize("name", ["plain", pytest.param("chart", marks=pytest.mark.slow), "deckhouse"])
def test_usage_becomes_a_recommendation_and_pods_get_it(
    server: Cluster, network: ServiceNetwork, shop: Shop, name: str, tmp_path: Path
) -> None:
    text = rendering.chart() if name == "chart" else rendering.overlay(name)
    in_place, anew = ("web", "worker") if name == "deckhouse" else ("worker", "web")
    with contextlib.ExitStack() as stack:
        stack.enter_context(applied(server, text))
        # One mode is named, the other is what the arguments make the default.
        shop.vpa("web", updatePolicy={})
        mode = "Recreate" if name == "deckhouse" else "InPlaceOrRecreate"
        shop.vpa("worker", updatePolicy={"updateMode": mode})
        for vpa in ("web", "worker"):
            if name != "deckhouse":
                # A little usage of long ago: less than a day of it would not be trusted.
                shop.remember(vpa, vpa, days=(4, DAYS), buckets=(8, 8), weight=0.1)
        environment = {"HTTPS_PROXY": network.url, "NO_PROXY": "127.0.0.1"}
        made = {each: RenderedPod(server, text, each, **environment) for each in COMPONENTS}
        if name == "deckhouse":
            token = made["recommender"].account.token
            stack.enter_context(platform_prometheus(shop, network, tmp_path, token))
        service = server.api.get("Service", "vpa-webhook", "kube-system")["spec"]
        (port,) = service["ports"]
        network.route(f"{service['clusterIP']}:{port['port']}", made["admission-controller"].webhook_port)
        before = {app: uids(pods(shop, app)) for app in ("web", "worker")}
        for each in made.values():
            stack.enter_context(each)
        for each in made.values():
            each.wait_until_ready()
        processes = [each.process for each in made.values()]

        for app in ("web", "worker"):
            shop.wait("the usage to be seen", lambda app=app: shop.has_cpu(app, "587m"), *processes)  # type: ignore[misc]
            assert Quantity.parse(shop.targets(app)[app]["memory"]).value() > 400 * MIB
        # A pass of the updater comes once a minute, and changes one of three at a time.
        resized = shop.wait("a pod to be resized", lambda: sized(shop, in_place), *processes, seconds=120)
        assert uids(pods(shop, in_place)) == before[in_place], "the same pods"
        assert all("vpaInPlaceUpdated" in pod["metadata"]["annotations"] for pod in resized)
        created = shop.wait("a pod to be created anew", lambda: sized(shop, anew), *processes, seconds=120)
        assert not uids(created) & before[anew], "evicted, and sized by the webhook"
        assert all("vpaUpdates" in pod["metadata"]["annotations"] for pod in created)

        rules = [each for each in made["updater"].metrics().splitlines() if "rule_available{" in each]
        assert rules
        assert all(each.endswith((" 1", " 1.0")) for each in rules), "no permission is missing"
        assert {each.process.stop() for each in made.values()} == {0}
        for process in processes:
            refusals = [line for line in process.logs().splitlines() if "forbidden" in line.lower()]
            # What is left of the rendering before may still go away.
            assert all("it is being terminated" in line for line in refusals), refusals
