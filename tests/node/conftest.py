"""Fixtures with real nodes; a machine that can't have any leaves these tests out and says why."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.node.figures import Figures, measured
from tests.node.installation import Chart
from tests.node.workloads import Namespace
from tests.testbed import components
from tests.testbed.cluster import Cluster
from tests.testbed.realnodes import metrics_server, project_image, requirements
from tests.testbed.realnodes.boxes import Size
from tests.testbed.realnodes.nodes import RealNodes

HERE = Path(__file__).parent
SECONDS = 900

LARGE = Size()
SMALL = Size(cpu=500 * (os.cpu_count() or 1), memory=2048)
"""The second node: half the machine's CPU and 2 GiB."""

ONE_NODE = bool(os.environ.get("VPA_TESTBED_ONE_NODE"))
"""Slow machines can do with the large one, and one pod of each of our services: most tests need no more."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and leave them out on a machine that can't have real nodes."""
    ours = [item for item in items if HERE in item.path.parents]
    reason = requirements.obstacle() if ours else None
    for item in ours:
        item.add_marker(pytest.mark.node)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        else:
            item.add_marker(pytest.mark.builds(*components.CLUSTER, *components.REAL_NODES, "helm"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the images before the first test starts its clock, and visibly."""
    wanted = [item for item in session.items if HERE in item.path.parents]
    if session.config.option.collectonly or not wanted or requirements.obstacle() is not None:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        project_image.archive()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was measured."""
    for line in measured():
        terminalreporter.write_line(line)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Takes figures by name, which are shown at the end of the run."""
    return Figures(request.node.name)


@pytest.fixture(scope="session")
def nodes() -> RealNodes:
    """Two nodes, a large and a small one, with this project's images."""
    return RealNodes([LARGE] if ONE_NODE else [LARGE, SMALL], archives=[project_image.archive()])


@pytest.fixture(scope="session")
def real(nodes: RealNodes) -> Iterator[Cluster]:
    """The cluster of `nodes`, with metrics-server."""
    with Cluster(nodes=[nodes]) as cluster:
        metrics_server.wait(cluster)
        yield cluster


@pytest.fixture(scope="session")
def chart(real: Cluster) -> Chart:
    """Our chart as it is shipped, with shorter intervals; running."""
    single = {
        "recommender": {"replicas": 1},
        "updater": {"replicas": 1},
        "admissionController": {"replicas": 1},
    }
    installed = Chart(real, values=single if ONE_NODE else None)
    installed.install()
    return installed


@pytest.fixture
def namespace(real: Cluster, nodes: RealNodes, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A fresh namespace, named after the test; its deletion is not waited for."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).removeprefix("test-").strip("-")
    own = Namespace(f"{words[:40].strip('-')}-{uuid4().hex[:6]}", real, nodes)
    yield own
    own.remove()
