"""python -m tests: all tests, the components of the test cluster being built meanwhile (`make test`).

First everything that needs no cluster, then the rest. The build's words appear when the first part is over.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.testbed import folders

WITH = "cluster or node or prometheus or builds"
NOW = f"({WITH}) and not slow and not (node and not brief)"
"""All of them but those that only `make test-cluster` and `make test-node` run."""
RETRIES = 2
"""So often tests with a cluster that failed are run once more."""
TESTS_FAILED = 1
"""Pytest's exit code; the others say that it could not run them."""


def main() -> int:
    """The first exit code that isn't 0."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "build.log"
        started = time.monotonic()
        with log.open("w") as output:
            builder = subprocess.Popen(
                [*tied(), *pytest_command(NOW), "--collect-only", "--build", "--no-summary"],
                stdout=subprocess.DEVNULL,
                stderr=output,
            )
        try:
            code, alone = pytest(f"not ({WITH})")
            if code:
                return code
            if follow(builder, log):
                return builder.returncode
            building = time.monotonic() - started
            code, together = pytest(NOW)
            for _ in range(RETRIES):
                if code == TESTS_FAILED:
                    print(
                        "again, only what failed: on a shared machine processes starve for seconds",
                        flush=True,
                    )
                    code, again = pytest(NOW, "--last-failed", "--last-failed-no-failures=none")
                    together += again
        finally:
            builder.terminate()
            builder.wait()
    print(
        f"tests without a cluster {minutes(alone)}, with a cluster {minutes(together)}; "
        f"components ready after {minutes(building)}"
    )
    return code


def pytest(markers: str, *options: str) -> tuple[int, float]:
    """Run the tests that a marker expression selects: exit code and seconds."""
    started = time.monotonic()
    done = subprocess.run([*pytest_command(markers), "--durations=5", *options], check=False)
    return done.returncode, time.monotonic() - started


def pytest_command(markers: str) -> list[str]:
    """Pytest for the tests that a marker expression selects."""
    return [sys.executable, "-m", "pytest", "-q", "-m", markers]


def tied() -> list[str]:
    """The start of a command that ends when this process does."""
    return [sys.executable, "-I", "-S", str(folders.HERE / "tied.py"), str(os.getpid())]


def follow(builder: subprocess.Popen[bytes], log: Path) -> int:
    """Print what the builder says until it ends; its exit code."""
    with log.open() as lines:
        while True:
            ended = builder.poll() is not None
            for line in lines:
                print(line, end="", flush=True)
            if ended:
                return builder.returncode
            time.sleep(0.5)


def minutes(seconds: float) -> str:
    """E.g. ``7:05`` of 425 seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


if __name__ == "__main__":
    sys.exit(main())
