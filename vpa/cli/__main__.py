"""``vpa …`` and ``python -m vpa.cli``: registers the commands and turns bad input into exit status 1."""

from __future__ import annotations

import sys

from vpa.cli import admit, history, plan, recommend
from vpa.cli.app import app
from vpa.cli.objects import InputError

recommend.register(app)
admit.register(app)
plan.register(app)
history.register(app)


def main() -> None:
    """Exit status 0 done, 1 bad input (one sentence on stderr), 2 usage."""
    try:
        app()
    except InputError as error:
        print(f"vpa: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
