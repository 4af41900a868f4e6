"""Real Prometheus for pytest: what it needs is built before the clock of the first test starts."""

from __future__ import annotations

import pytest

from tests.testbed import builds, components


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what tests with the marker `prometheus` need, visibly."""
    wanted = any(item.get_closest_marker("prometheus") for item in session.items)
    if wanted and not session.config.option.collectonly:
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            builds.ensure(*(components.COMPONENTS[name] for name in ("prometheus", "trickster")))
