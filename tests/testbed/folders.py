"""Where the testbed keeps what it builds, and what it runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def cache() -> Path:
    """The user's cache folder of the testbed; made when missing."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(base).expanduser() / "vpa-testbed"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def runs() -> Path:
    """The folder with one sub-folder per running cluster; each user has his own."""
    folder = Path(tempfile.gettempdir()) / f"vpa-testbed-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
