"""Kubeconfig files, with a client certificate or a token file."""

from __future__ import annotations

import json
from pathlib import Path

from tests.testbed.certificates import Certificate


def write(path: Path, *, server: str, ca: Path, user: Certificate | Path, namespace: str = "default") -> Path:
    """Write a kubeconfig for *server*; *user* is a client certificate or a file with a token."""
    if isinstance(user, Certificate):
        credentials = {"client-certificate": str(user.chain), "client-key": str(user.key)}
    else:
        credentials = {"tokenFile": str(user)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority": str(ca)}}],
        "users": [{"name": "testbed", "user": credentials}],
        "contexts": [
            {
                "name": "testbed",
                "context": {"cluster": "testbed", "user": "testbed", "namespace": namespace},
            }
        ],
        "current-context": "testbed",
    }
    path.write_text(json.dumps(config, indent=2))  # JSON is YAML
    return path
