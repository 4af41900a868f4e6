"""``python -m tests.demo``."""

from __future__ import annotations

from tests.demo import offline


def main() -> None:
    offline.show(offline.REPOSITORY / ".demo")


if __name__ == "__main__":
    main()
