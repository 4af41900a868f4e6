"""Take out of a folder of installed packages what our services never use: ``python lean.py SITE-PACKAGES``.

Run by deploy/Dockerfile when the images are built. Most of it are the kubernetes client's models, one module
for each kind of object, for those who call its generated methods. Ours speak to the API server themselves and
need of that package only what reads a kubeconfig, which works without them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

UNUSED = re.compile(
    # Tests, commands, what was compiled elsewhere, the list of files for an uninstallation.
    r"(^|/)(__pycache__|tests?)/|^bin/|\.dist-info/RECORD$"
    # For those who compile against a package, or check types.
    r"|^numpy/(f2py|testing|_core/(include|lib|_simd))\b|\.(pyi|pxd|pyx|c|h|a)$"
    # Models and generated methods of the kubernetes client.
    r"|^kubernetes/(aio/)?client/(api|models)/(?!__init__)"
    # All languages that pygments can colour but the ones of tracebacks.
    r"|^pygments/lexers/(?!__init__|_mapping|python|special)"
)
"""Matches the path of a needless file, relative to the folder and with slashes."""


def lean(site: Path) -> int:
    """Delete needless files below *site*, and folders that are empty then; the bytes that were saved."""
    saved = 0
    for path in sorted(site.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif UNUSED.search(path.relative_to(site).as_posix()):
            saved += path.stat().st_size
            path.unlink()
    return saved


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        sys.stdout.write(f"{folder}: {lean(Path(folder)) / 1e6:.0f} MB less\n")
