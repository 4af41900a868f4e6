"""Figures that tests measure, shown at the end of the run."""

from __future__ import annotations

_MEASURED: dict[str, dict[str, object]] = {}


class Figures:
    """Those of one test: called with the name of a figure and its value."""

    def __init__(self, test: str) -> None:
        self._of_test = _MEASURED.setdefault(test, {})

    def __call__(self, name: str, value: object) -> None:
        self._of_test[name] = value


def measured() -> list[str]:
    """A line for each test that measured something."""
    return [
        f"measured by {test}: {', '.join(f'{name} {value}' for name, value in found.items())}"
        for test, found in _MEASURED.items()
        if found
    ]
