"""Shared by all tests."""

from __future__ import annotations

import os

import hypothesis
import pytest

from tests.core import vectors

pytest_plugins = ["tests.testbed.fixtures", "tests.testbed.prometheus_fixtures"]


# The same examples in every run: a red test is never the luck of the draw. "search" looks for new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("search", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many golden vectors were really checked."""
    for family, count in sorted(vectors.ran.items()):
        terminalreporter.write_line(f"vectors {family}: {count} cases")
