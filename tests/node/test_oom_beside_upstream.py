"""The same OOM kills with upstream's components and with ours: one node, the same manifests and flags."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.node.figures import Figures
from tests.node.oom import Rescue, rescue
from tests.node.plain import Plain, upstream_archive, upstream_image
from tests.node.workloads import Namespace
from tests.testbed.cluster import Cluster
from tests.testbed.realnodes import metrics_server, project_image
from tests.testbed.realnodes.boxes import Size
from tests.testbed.realnodes.nodes import RealNodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.builds("upstream-vpa")]

IMAGES = {"ours": project_image.name, "upstream": upstream_image}
SHORT = {"recommender": ["--recommender-interval=10s"], "updater": ["--updater-interval=5s"]}
SECONDS = 480.0
"""So long each may take."""


@pytest.fixture(scope="module")
def node() -> RealNodes:
    """The one that both are on, one after the other."""
    return RealNodes([Size()], archives=[project_image.archive(), upstream_archive()])


@pytest.fixture(scope="module")
def alone(node: RealNodes) -> Iterator[Cluster]:
    """A cluster without any of our components."""
    with Cluster(nodes=[node]) as cluster:
        metrics_server.wait(cluster)
        yield cluster


@pytest.mark.parametrize("arguments", [{}, SHORT], ids=["as shipped", "short intervals"])
def test_ours_end_oom_kills_in_no_more_kills_and_sooner_than_upstreams(
    alone: Cluster, node: RealNodes, figures: Figures, arguments: dict[str, list[str]]
) -> None:
    found: dict[str, Rescue] = {}
    for whose, image in IMAGES.items():
        installed = Plain(alone, image=image, arguments=arguments)
        installed.install()
        namespace = Namespace(f"{whose}-{uuid4().hex[:6]}", alone, node)
        found[whose] = rescue(namespace, "needy", seconds=SECONDS)
        figures(whose, found[whose])
        namespace.remove()
        installed.remove()
    assert found["ours"].kills <= found["upstream"].kills
    assert found["ours"].seconds < found["upstream"].seconds
