"""A real Prometheus in a cluster's network, which scrapes the kubelets' cAdvisor."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING

from tests.testbed import builds, ports
from tests.testbed.certificates import ADDRESS
from tests.testbed.processes import attempts
from tests.testbed.realnodes import network
from tests.testbed.realnodes.nodes import RealNodes

if TYPE_CHECKING:
    from tests.testbed.cluster import Cluster

KUBELET_PORT = 10250


class Scraper:
    """A Prometheus that scrapes every *interval* seconds; it ends with the cluster."""

    def __init__(self, cluster: Cluster, nodes: RealNodes, *, interval: int = 5) -> None:
        port = ports.free()
        self.url = f"http://{ADDRESS}:{port}"
        self.inner_url = f"http://{network.ADDRESS}:{port}"
        """As pods reach it."""
        certificate = cluster.authority.issue("prometheus", group="system:masters")
        config = {
            "global": {"scrape_interval": f"{interval}s"},
            "scrape_configs": [
                {
                    "job_name": "kubelet",
                    "scheme": "https",
                    "metrics_path": "/metrics/cadvisor",
                    "tls_config": {
                        "ca_file": str(cluster.ca),
                        "cert_file": str(certificate.chain),
                        "key_file": str(certificate.key),
                    },
                    "static_configs": [
                        {
                            "targets": [f"{node.address}:{KUBELET_PORT}"],
                            "labels": {"node": node.name},
                        }
                        for node in nodes.nodes
                    ],
                }
            ],
        }
        file = cluster.folder / "prometheus.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        process = cluster.add(
            "prometheus",
            [
                builds.binary("prometheus"),
                f"--config.file={file}",
                f"--storage.tsdb.path={cluster.folder / 'prometheus'}",
                f"--web.listen-address=0.0.0.0:{port}",
            ],
        ).start()
        cluster.publish(port)
        for _ in attempts(60, "Prometheus to be ready", process, pause=0.2):
            if cluster.network.listens(port):
                return

    def value(self, query: str) -> float | None:
        """The only value of an instant query; None when there is none."""
        path = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(path, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
        return float(found[0]["value"][1]) if found else None
