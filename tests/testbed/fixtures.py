"""The pytest side of the testbed; `tests/conftest.py` makes it known."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from uuid import uuid4

import pytest

from tests.testbed import builds, components
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi

_BEGUN = pytest.StashKey[float]()
_CLUSTERS = {"cluster", "own_cluster"}
_NEEDS = {"cluster": components.CLUSTER, "prometheus": ("prometheus", "trickster")}
"""Which components the tests of a marker need, beside those that its marker `builds` names."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`python -m tests` builds ahead by it."""
    parser.addoption(
        "--build",
        action="store_true",
        help="build what the selected tests need; together with --collect-only",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses a cluster is marked as such, so that `-m "not cluster"` leaves it out."""
    for item in items:
        if _CLUSTERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing before the first test starts its clock, and visibly."""
    if session.config.option.collectonly and not session.config.option.build:
        return
    needed = {name: None for item in session.items for name in _components(item)}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        builds.ensure(*(components.COMPONENTS[name] for name in needed))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with the last words of the services that were started for the test."""
    report = yield
    begun = item.stash.setdefault(_BEGUN, call.start)
    if report.failed:
        for running in getattr(item, "funcargs", {}).values():
            if isinstance(running, Cluster):
                for process in running.processes():
                    if process.started_at >= begun and not process.name.startswith(("etcd", "kube-", "kwok")):
                        report.sections.append((f"log of {process.name}", process.tail(30)))
    return report


def _components(item: pytest.Item) -> Iterator[str]:
    for marker in item.iter_markers():
        yield from marker.args if marker.name == "builds" else _NEEDS.get(marker.name, ())


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster of this run. Don't stop its components, and keep to your `namespace` as far as you can."""
    with Cluster() as running:
        yield running


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A cluster for one module only, whose components may be stopped, killed and paused."""
    with Cluster() as running:
        yield running


@pytest.fixture
def metrics(cluster: Cluster) -> Iterator[MetricsApi]:
    """The Metrics API of `cluster`; usage and faults are forgotten after the test."""
    yield cluster.metrics
    cluster.metrics.reset()


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace of `cluster`, named after the test; its deletion is not waited for."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    name = f"{words}-{uuid4().hex[:6]}"
    cluster.create_namespace(name)
    yield name
    cluster.api.delete("Namespace", name)
