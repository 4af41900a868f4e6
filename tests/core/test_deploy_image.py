"""What the images leave out of the packages: nothing that a service or the command needs."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAN = ROOT / "deploy" / "lean.py"

PROGRAM = """
import asyncio, sys
import recommender.assembly, updater.assembly, admission.service, admission.certificates, vpa.cli.__main__
from vpa.cluster.connection import Connection

async def connect():
    async with await Connection.open(kubeconfig=sys.argv[1]) as connection:
        return type(connection).__name__

print(asyncio.run(connect()))
print(*sorted({sys.modules[name].__file__ for name in ("aiohttp", "kubernetes", "msgspec", "numpy")}))
"""

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: one
contexts: [{name: one, context: {cluster: one, user: one}}]
clusters: [{name: one, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: one, user: {token: secret}}]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked packages as pip installs them, by links to those that are installed here."""
    folder = tmp_path_factory.mktemp("site-packages")
    lock = (ROOT / "deploy" / "requirements.lock").read_text()
    for name in sorted(set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))):
        try:
            files = metadata.distribution(name).files or []
        except metadata.PackageNotFoundError:  # of another system, or another Python
            continue
        for file in files:
            source, target = Path(str(file.locate())), folder / file
            if ".." not in file.parts and source.exists() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)
    return folder


def test_the_services_and_the_command_work_with_what_is_left(site: Path, tmp_path: Path) -> None:
    lean: Callable[[Path], int] = runpy.run_path(str(LEAN))["lean"]
    before = sum(path.stat().st_size for path in site.rglob("*.py"))
    assert lean(site) > 0.5 * before, "most of the sources are models of the kubernetes client"
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    done = subprocess.run(
        [sys.executable, "-S", "-B", "-c", PROGRAM, tmp_path / "kubeconfig"],
        env={"PYTHONPATH": f"{site}:{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    opened, files = done.stdout.splitlines()
    assert opened == "Connection"
    assert all(file.startswith(str(site)) for file in files.split())


def test_the_image_is_made_lean_before_it_is_compiled() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert "COPY deploy/lean.py /build/" in dockerfile
    assert 0 < dockerfile.index("pip uninstall") < dockerfile.index("/build/lean.py /opt") < len(dockerfile)
    assert dockerfile.index("/build/lean.py /opt") < dockerfile.index("-m compileall")
    assert "!deploy/lean.py" in (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
