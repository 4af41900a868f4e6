"""Real Prometheus for pytest: what it needs is built before the clock of the first test starts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.testbed import builds, components, history_world
from tests.testbed.prometheus import Prometheus, backfill


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what tests with the marker `prometheus` need, visibly."""
    wanted = any(item.get_closest_marker("prometheus") for item in session.items)
    if wanted and not session.config.option.collectonly:
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            builds.ensure(*(components.COMPONENTS[name] for name in ("prometheus", "trickster")))


@pytest.fixture(scope="session")
def history_now() -> float:
    """The present of the stored week: the time of its last scrape, seconds since the epoch.

    No scrape lies on a full minute: Prometheus 2 counts a sample at the beginning of a window, 3 does not.
    """
    return (time.time() // history_world.SCRAPE - 1) * history_world.SCRAPE + 7


@pytest.fixture(scope="session")
def history_blocks(history_now: float, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the blocks of `history_world`; copy it to change it."""
    folder = tmp_path_factory.mktemp("history") / "data"
    backfill(folder, history_world.series(history_now))
    return folder


@pytest.fixture(scope="session")
def prometheus(history_blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that knows `history_world`. Don't stop it."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copytree(history_blocks, folder / "data")
    with Prometheus(folder) as running:
        yield running


@pytest.fixture
def another_prometheus(history_blocks: Path, tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """Makes a Prometheus with the same past that is not started, to be started, killed and paused."""
    made: list[Prometheus] = []

    def make(*arguments: str) -> Prometheus:
        folder = tmp_path / f"prometheus-{len(made)}"
        shutil.copytree(history_blocks, folder / "data")
        made.append(Prometheus(folder, arguments=arguments))
        return made[-1]

    yield make
    for one in made:
        one.kill()
