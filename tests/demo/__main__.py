"""``python -m tests.demo [--keep] [--offline]``."""

from __future__ import annotations

import argparse

from tests.demo import live, offline


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Recommendations offline, then the services on a real cluster."
    )
    parser.add_argument("--keep", action="store_true", help="keep the cluster until Ctrl-C")
    parser.add_argument("--offline", action="store_true", help="the first screen only; needs no cluster")
    options = parser.parse_args()
    if options.offline:
        offline.show(offline.REPOSITORY / ".demo")
        return
    with (
        live.build() as building
    ):  # a bare machine builds the cluster's components while the first screen shows
        offline.show(offline.REPOSITORY / ".demo")
        live.follow(building)
    live.show(keep=options.keep)


if __name__ == "__main__":
    main()
