"""``python -m admission``: the admission controller as a process."""

from __future__ import annotations

import sys

from admission.service import serve
from admission.settings import Settings
from vpa.telemetry import programs


def main() -> None:
    """Read the arguments and run until a signal comes."""
    settings = programs.settings_from(sys.argv[1:], program="admission-controller", bundle=Settings)
    programs.run(lambda stop: serve(settings, stop))


if __name__ == "__main__":
    main()
