"""``python -m tests.demo.node``: two real nodes, our chart as it is shipped, workloads that really work."""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console

from tests.node import usage
from tests.node.installation import SYSTEM, Chart
from tests.node.workloads import MI, Namespace, container, is_ready, pod_spec, restarts, statuses
from tests.testbed import builds, components
from tests.testbed.api import Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from tests.testbed.realnodes import metrics_server, project_image, requirements
from tests.testbed.realnodes.boxes import Size
from tests.testbed.realnodes.nodes import RealNodes
from tests.testbed.realnodes.scraping import Scraper
from vpa.quantities import Quantity

console = Console(highlight=False, soft_wrap=True)
SECONDS = 240.0


def main() -> int:
    """Show everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the cluster until Ctrl-C")
    options = parser.parse_args()
    reason = requirements.obstacle()
    if reason is not None:
        print(f"{reason}. `make demo` shows the services on nodes that are played.", file=sys.stderr)
        return 1
    names = (*components.CLUSTER, *components.REAL_NODES, "prometheus", "helm")
    builds.ensure(*(components.COMPONENTS[name] for name in names))
    started = time.monotonic()
    nodes = RealNodes([Size(), Size(cpu=1000, memory=2048)], archives=[project_image.archive()])
    with Cluster(nodes=[nodes]) as cluster:
        metrics_server.wait(cluster)
        prometheus = Scraper(cluster, nodes, interval=2)
        Chart(cluster).install()
        heading(f"Two real nodes and our chart, after {time.monotonic() - started:.0f} s")
        console.print(cluster.kubectl("get", "nodes", "-o", "wide"))
        console.print(cluster.kubectl("get", "pods", "-n", SYSTEM, "-o", "wide"))
        namespace = Namespace("demo", cluster, nodes)
        show_resize(namespace, prometheus)
        show_oom(namespace)
        show_eviction(namespace)
        if options.keep:
            heading("The cluster stays until Ctrl-C")
            console.print(f"export KUBECONFIG={cluster.kubeconfig}")
            while True:
                time.sleep(60)
    return 0


def show_resize(namespace: Namespace, prometheus: Scraper) -> None:
    """A recommendation from real use, and its effect in the cgroups."""
    heading("Real use: 300 millicores and 120 MiB, requests of 50m and 64Mi (limits 500m and 192Mi)")
    app = container(
        milli=300,
        mib=120,
        requests={"cpu": "50m", "memory": "64Mi"},
        limits={"cpu": "500m", "memory": "192Mi"},
    )
    namespace.deployment("shop", pod_spec(app), replicas=2)
    before = namespace.pods("shop")
    for pod in before:
        tell_cgroup(namespace, pod)
    for _ in attempts(SECONDS, "metrics-server to see all of it", pause=1):
        if all(usage.from_metrics_server(namespace, pod)["app"].cpu > 0.28 for pod in before):
            break
    time.sleep(15)  # until the recommender has a second sample, and Prometheus a whole window
    namespace.vpa("shop", recommender=None, minimum=2)
    for _ in attempts(SECONDS, "both pods to be resized", pause=0.5):
        after = namespace.pods("shop")
        if all(pod["metadata"]["generation"] > 1 and _in_force(pod) for pod in after):
            break
    console.print("resized in place, restarts 0:" if not any(map(restarts, after)) else "restarted:")
    for pod in after:
        tell_cgroup(namespace, pod)
        seen = usage.from_metrics_server(namespace, pod)["app"]
        labels = f'namespace="demo",pod="{pod["metadata"]["name"]}",container="app"'
        rate = prometheus.value(f"rate(container_cpu_usage_seconds_total{{{labels}}}[30s])") or 0.0
        console.print(
            f"    metrics-server: {seen.cpu:.3f} cores   Prometheus, from cAdvisor: {rate:.3f} cores"
        )
    console.print(namespace.cluster.kubectl("describe", "vpa", "shop", "-n", namespace.name))


def show_oom(namespace: Namespace) -> None:
    """A memory hog, killed and helped."""
    heading("A container that needs 300Mi and may have 100Mi")
    app = container(mib=300, requests={"cpu": "20m", "memory": "100Mi"}, limits={"memory": "100Mi"})
    namespace.vpa("hog", recommender=None)
    start = time.monotonic()
    namespace.deployment("hog", pod_spec(app), wait=False)
    told = ""
    for _ in attempts(SECONDS, "it to have what it needs", pause=0.3):
        found = namespace.pods("hog")
        for pod in found:
            for status in statuses(pod):
                limit = status.get("resources", {}).get("limits", {}).get("memory", "100Mi")
                ended = status.get("lastState", {}).get("terminated", {}).get("reason", "")
                line = f"limit {limit}, restarts {status['restartCount']} {ended}"
                if line != told:
                    console.print(f"  {time.monotonic() - start:5.1f} s  {line}")
                    told = line
        if any(is_ready(pod) and Quantity.parse(_limit(pod)).value() > 300 * MI for pod in found):
            break
    console.print(f"running by itself after {time.monotonic() - start:.0f} s")


def show_eviction(namespace: Namespace) -> None:
    """Where a resize is impossible."""
    heading("A pod without any requests: a resize may not change its QoS class, so it is evicted")
    namespace.deployment("plain", pod_spec(container(milli=50, mib=30)), replicas=2)
    first = {pod["metadata"]["uid"] for pod in namespace.pods("plain")}
    namespace.vpa("plain", minimum=2)
    namespace.recommend("plain", {"app": {"cpu": "60m", "memory": "64Mi"}})
    for _ in attempts(SECONDS, "both pods to be replaced", pause=0.5):
        found = namespace.pods("plain")
        if (
            len(found) == 2
            and not first & {pod["metadata"]["uid"] for pod in found}
            and all(map(is_ready, found))
        ):
            break
    console.print(
        namespace.cluster.kubectl(
            "get", "events", "-n", namespace.name, "--field-selector=reason=EvictedByVPA"
        )
    )
    for pod in found:
        resources = pod["spec"]["containers"][0]["resources"]
        console.print(f"  {pod['metadata']['name']}: {resources}, {pod['status']['qosClass']}")


def heading(text: str) -> None:
    """A line that stands out."""
    console.print(f"\n[bold]{text}[/bold]")


def tell_cgroup(namespace: Namespace, pod: Json) -> None:
    """What the kernel holds for a pod's container."""
    values = namespace.cgroup(pod)
    limit = "none" if values.memory_limit is None else f"{values.memory_limit // MI} MiB"
    console.print(
        f"  {pod['metadata']['name']} on {pod['spec']['nodeName']}: cgroup weight {values.cpu_weight}, "
        f"CPU limit {values.cpu_limit}m, memory limit {limit}, in use {values.memory // MI} MiB"
    )


def _in_force(pod: Json) -> bool:
    wanted = pod["spec"]["containers"][0]["resources"]
    return bool(statuses(pod)[0].get("resources") == wanted)


def _limit(pod: Json) -> str:
    return str(statuses(pod)[0].get("resources", {}).get("limits", {}).get("memory", "0"))


if __name__ == "__main__":
    sys.exit(main())
