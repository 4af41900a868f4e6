"""The API server's own record of who asked for what, and what it answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts"]
  - level: None
"""


class Request(NamedTuple):
    """One request of a service account."""

    group: str
    resource: str
    """With its subresource: ``pods/resize``."""
    name: str
    verb: str
    refused: bool


class Audit:
    """The audit log of a cluster that was started with `arguments`."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "audit.log"
        policy = folder / "policy.yaml"
        policy.write_text(POLICY)
        self.arguments = [f"--audit-policy-file={policy}", f"--audit-log-path={self._log}"]

    def of(self, user: str) -> set[Request]:
        """All different requests of a user."""
        return set(self._read(user))

    def _read(self, user: str) -> Iterator[Request]:
        with self._log.open(encoding="utf-8") as lines:
            for line in lines:
                if user not in line:
                    continue
                event = json.loads(line)
                about = event.get("objectRef")
                if event["user"]["username"] != user or about is None:
                    continue
                resource = about.get("resource", "")
                if about.get("subresource"):
                    resource += "/" + about["subresource"]
                refused = event.get("responseStatus", {}).get("code") == 403
                yield Request(
                    about.get("apiGroup", ""), resource, about.get("name", ""), event["verb"], refused
                )
