"""Shared by all tests."""

from __future__ import annotations

import pytest

from tests.core import vectors

pytest_plugins = ["tests.testbed.fixtures", "tests.testbed.prometheus_fixtures"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many golden vectors were really checked."""
    for family, count in sorted(vectors.ran.items()):
        terminalreporter.write_line(f"vectors {family}: {count} cases")
