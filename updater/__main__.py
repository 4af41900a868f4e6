"""``python -m updater``: the updater as a process."""

from __future__ import annotations

import sys

from updater.assembly import serve
from updater.settings import Settings
from vpa.telemetry import programs


def main() -> None:
    """Read the arguments and run until a signal comes."""
    settings = programs.settings_from(sys.argv[1:], program="updater", bundle=Settings)
    programs.run(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
