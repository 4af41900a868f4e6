"""Files of other projects that ours are held against: from pinned Go modules, downloaded, not built."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import tempfile
from pathlib import Path

from tests.testbed import components, toolchain

PINNED = {
    "github.com/prometheus-operator/prometheus-operator": (
        "v0.83.0",
        "h1:qAKbm+45fqNGcn9sGTa1Ae2TM3KZuYA/uyoD2QKi9+o=",
    ),
    "github.com/cert-manager/cert-manager": ("v1.21.2", "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68="),
}
UPSTREAM = "k8s.io/autoscaler/vertical-pod-autoscaler"


def operator_crds() -> list[Path]:
    """The definitions of the Prometheus operator's objects that our manifests contain."""
    folder = _module("github.com/prometheus-operator/prometheus-operator") / "example/prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{plural}.yaml" for plural in ("podmonitors", "prometheusrules")]


def cert_manager_crds() -> list[Path]:
    """The definitions of cert-manager's objects that our chart contains."""
    folder = _module("github.com/cert-manager/cert-manager") / "deploy/crds"
    return [folder / f"cert-manager.io_{plural}.yaml" for plural in ("certificates", "issuers")]


def upstream(*path: str) -> Path:
    """A file of upstream's Vertical Pod Autoscaler, of the version that the tests build."""
    return _module(UPSTREAM).joinpath(*path)


@functools.cache
def _module(name: str) -> Path:
    version, checksum = PINNED.get(name) or _pinned_by_the_testbed(name)
    go = toolchain.find((1, 26, 0))
    with tempfile.TemporaryDirectory() as nowhere:
        answer = subprocess.run(
            [go.command, "mod", "download", "-json", f"{name}@{version}"],
            cwd=nowhere,
            env=toolchain.environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    module = json.loads(answer.stdout)
    if module["Sum"] != checksum:
        raise ValueError(f"{name}@{version} has the checksum {module['Sum']}, not {checksum}")
    return Path(module["Dir"])


def _pinned_by_the_testbed(name: str) -> tuple[str, str]:
    sums = (components.COMPONENTS["upstream-vpa"].module / "go.sum").read_text()
    found = re.search(rf"^{re.escape(name)} (v\S+) (h1:\S+)$", sums, re.MULTILINE)
    if found is None:
        raise ValueError(f"{name} is not in the testbed's go.sum")
    return found[1], found[2]
