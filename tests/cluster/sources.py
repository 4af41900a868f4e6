"""What ours is held against: files of the upstream module that the testbed builds, and neighbours' kinds."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.testbed import components, toolchain

UPSTREAM = "k8s.io/autoscaler/vertical-pod-autoscaler"

NEIGHBOURS = (
    ("monitoring.coreos.com", "PodMonitor"),
    ("monitoring.coreos.com", "PrometheusRule"),
    ("cert-manager.io", "Certificate"),
    ("cert-manager.io", "Issuer"),
)
"""Kinds of other operators that our manifests and chart contain."""


def neighbours() -> list[dict[str, Any]]:
    """Definitions under which the API server takes those kinds; of their fields it knows nothing."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind.lower()}s.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": f"{kind.lower()}s"},
                "versions": [version],
            },
        }
        for group, kind in NEIGHBOURS
    ]


def upstream(*path: str) -> Path:
    """A file of upstream's Vertical Pod Autoscaler, of the version that the tests build."""
    return _module(UPSTREAM).joinpath(*path)


@functools.cache
def _module(name: str) -> Path:
    version, checksum = _pinned_by_the_testbed(name)
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
