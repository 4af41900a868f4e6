"""``make rbac-proof``: run each service without each of its permissions, and say what is lost.

All services run with all roles first; whatever must come about does then. A table of everything is printed,
and written into docs/rbac.md with ``--write``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.rbac import page, permissions, workloads
from tests.rbac.admitting import Admitting
from tests.rbac.audits import Audit
from tests.rbac.page import Finding
from tests.rbac.permissions import Permission
from tests.rbac.recommending import Recommending
from tests.rbac.trials import POOL, Outcome, Trial
from tests.rbac.updating import Updating
from tests.testbed.cluster import Cluster

TRIALS: dict[str, type[Trial]] = {one.service: one for one in (Recommending, Updating, Admitting)}
AT_ONCE = 4
TIMES, MORE = 2.0, 10.0
"""How much longer than with all permissions is waited for what does not come about: times, and seconds."""


def main() -> int:
    """Print the table; 1 if a permission turns out to be needless, or silence follows where a word is due."""
    parser = argparse.ArgumentParser(prog="rbac-proof", description=__doc__)
    parser.add_argument("--service", choices=TRIALS, action="append", help="only these (default: all)")
    parser.add_argument("--only", default="", help="only permissions whose text contains this")
    parser.add_argument("--write", action="store_true", help="write the table into docs/rbac.md")
    options = parser.parse_args()
    services = options.service or list(TRIALS)
    with tempfile.TemporaryDirectory() as folder:
        audit = Audit(Path(folder))
        with Cluster(apiserver_args=audit.arguments) as cluster, ThreadPoolExecutor(AT_ONCE) as pool:
            cluster.api.apply(workloads.WIDGETS)
            name = workloads.WIDGETS["metadata"]["name"]
            cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", f"crd/{name}")
            cluster.api.apply(_READER)
            cluster.api.apply(_READER_BINDING)
            for node in cluster.api.list("Node"):
                label = {POOL: node["metadata"]["name"]}
                cluster.api.patch("Node", label[POOL], body={"metadata": {"labels": label}})
            cluster.metrics.reset()
            proof = Proof(cluster, audit)
            whole = dict(zip(services, pool.map(proof.whole, services), strict=True))
            for service in services:
                print(page.described(service, whole[service]), flush=True)
            wanted = [
                one for service in services for one in permissions.of(service) if options.only in str(one)
            ]
            findings = list(_progress(pool.map(lambda one: proof.without(one, whole), wanted)))
    print(page.table(findings))
    problems = page.problems(findings, whole)
    print("\n".join(problems))
    if options.write:
        page.write(findings)
    return 1 if problems else 0


class Proof:
    """Runs trials in one cluster."""

    def __init__(self, cluster: Cluster, audit: Audit) -> None:
        self._cluster = cluster
        self._audit = audit

    def whole(self, service: str) -> Outcome:
        """With everything that the manifests grant."""
        return self._run(service, service, None, None)

    def without(self, removed: Permission, whole: dict[str, Outcome]) -> Finding:
        """Without one permission."""
        number = permissions.of(removed.service).index(removed)
        seconds = TIMES * whole[removed.service].seconds + MORE
        outcome = self._run(removed.service, f"{removed.service}-{number}", removed, seconds)
        return Finding(removed, outcome, whole[removed.service])

    def _run(self, service: str, label: str, removed: Permission | None, seconds: float | None) -> Outcome:
        trial = TRIALS[service](self._cluster, self._audit, label)
        try:
            return trial.run(permissions.without(service, removed), seconds)
        except Exception:
            print(f"{label} without {removed}:", file=sys.stderr)
            traceback.print_exc()
            raise


def _progress(findings: Iterator[Finding]) -> Iterator[Finding]:
    for finding in findings:
        print(f"{finding.permission.service} {finding.outcome.seconds:.0f} s {page.row(finding)}", flush=True)
        if finding.outcome.trace:
            print(finding.outcome.trace, flush=True)
        yield finding


# Who reads metrics in these trials: the services themselves, by their own tokens.
_READER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "rbac-proof-reads-metrics"},
    "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
}
_READER_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "rbac-proof-reads-metrics"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "rbac-proof-reads-metrics",
    },
    "subjects": [
        {"kind": "Group", "name": "system:serviceaccounts", "apiGroup": "rbac.authorization.k8s.io"}
    ],
}


if __name__ == "__main__":
    sys.exit(main())
