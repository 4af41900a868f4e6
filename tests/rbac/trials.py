"""One run of a service under given roles: what it does of all that it should, and what it says."""

from __future__ import annotations

import contextlib
import re
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tests.cluster.roles import Roles
from tests.rbac.audits import Audit, Request
from tests.testbed import ports
from tests.testbed.accounts import ServiceAccount
from tests.testbed.api import Api, ApiError, Json
from tests.testbed.certificates import ADDRESS
from tests.testbed.cluster import Cluster
from tests.testbed.processes import Process

POLL = 0.3
PATIENCE = 12.0
"""Seconds after which things happen though the service may not work."""
_LINE = re.compile(r"^[WEF]\d{4} \S+ +\d+ [^\]]*\] (.*)$")

_IDLE = re.compile(r" took |the pod no longer exists")
"""What has no meaning here: this machine is slow, and pods come back under their names."""
_OWN = re.compile(r"\b(https?://\S+|rbac-[\w-]+|system:serviceaccount:\S+)")

POOL = "rbac-proof.example.org/pool"
"""A label that each node has, with its own name."""

Check = Callable[[], object]


@dataclass
class Outcome:
    """How a run went."""

    failed: list[str]
    """What did not come about, as sentences."""
    said: dict[str, int]
    """Warnings and errors of the log, each with how often it was said."""
    ended: int | None
    """The exit status of a process that gave up."""
    seconds: float
    requests: set[Request] = field(default_factory=set)
    trace: str = ""
    """The first traceback of the log."""

    @property
    def refused(self) -> set[str]:
        return {f"{one.verb} {one.resource}" for one in self.requests if one.refused}


class Trial(ABC):
    """A namespace with all that a service must deal with, the service, and what must come about."""

    service: ClassVar[str]
    program: ClassVar[str]
    seconds: ClassVar[float]
    """How long everything may take."""

    def __init__(self, cluster: Cluster, audit: Audit, label: str) -> None:
        self.cluster = cluster
        self.api: Api = cluster.api
        self.audit = audit
        self.namespace = f"rbac-{label}"
        self.port = ports.free()
        self._limit = self.seconds
        self.process: Process
        self.account: ServiceAccount

    # What a trial is

    @abstractmethod
    def prepare(self) -> None:
        """What is there when the service starts."""

    @abstractmethod
    def arguments(self) -> list[str]:
        """The service's own flags."""

    @abstractmethod
    def happen(self) -> None:
        """What comes about while it runs."""

    @abstractmethod
    def checks(self) -> dict[str, Check]:
        """What the service must bring about: sentence → whether it has."""

    @abstractmethod
    def clean(self) -> None:
        """Take away what is not of the namespace."""

    # How it goes

    def run(self, roles: Roles, seconds: float | None = None) -> Outcome:
        """Let the service run under *roles* until all has come about, or the time is over."""
        self._limit = self.seconds if seconds is None else min(seconds, self.seconds)
        self.cluster.create_namespace(self.namespace)
        self.account = self.cluster.service_account(self.namespace, "service")
        roles.grant_to(self.account)
        self.prepare()
        self.process = self.cluster.spawn(
            f"{self.program}-{self.namespace}",
            [
                *(sys.executable, "-m", self.program),
                f"--kubeconfig={self.account.kubeconfig}",
                f"--address={ADDRESS}:{self.port}",
                f"--vpa-object-namespace={self.namespace}",
                "--v=2",
                *self.arguments(),
            ],
            NAMESPACE=self.namespace,
        )
        try:
            return self._watch()
        finally:
            self.process.kill()
            self.clean()
            name = f"{self.namespace}-service"
            for kind in ("ClusterRoleBinding", "ClusterRole"):
                self.api.delete(kind, name)
            self.api.delete("Namespace", self.namespace)

    def _watch(self) -> Outcome:
        started = time.monotonic()
        waiting = self.checks()
        happened = False
        while waiting and time.monotonic() - started < self._limit:
            if not self.process.running:
                break
            if not happened and (_holds(self.is_ready) or time.monotonic() - started > PATIENCE):
                self.happen()
                happened = True
            for sentence, check in list(waiting.items()):
                if _holds(check):
                    del waiting[sentence]
            time.sleep(POLL)
        said = list(self._said())
        if not self.process.running:
            said.insert(0, said[-1] if said else self.process.logs().splitlines()[-1])
        return Outcome(
            failed=list(waiting),
            said=dict(Counter(said)),
            ended=None if self.process.running else self.process.exit_code,
            seconds=time.monotonic() - started,
            requests=self.audit.of(self.account.user),
            trace="\n".join(_trace(self.process.logs().splitlines())),
        )

    def is_ready(self) -> bool:
        """Whether it works by now."""
        return False

    def _said(self) -> Iterator[str]:
        for line in self.process.logs().splitlines():
            found = _LINE.match(line)
            if found is not None and not _IDLE.search(found[1]):
                yield _OWN.sub("…", found[1])

    # What there is

    def figures(self, prefix: str = "") -> dict[str, float]:
        """The service's metrics: series → value."""
        url = f"http://{ADDRESS}:{self.port}/metrics"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.account.token}"})
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
            return {
                series: float(value)
                for line in lines
                if not line.startswith("#") and line.startswith(prefix)
                for series, _, value in [line.rpartition(" ")]
            }
        return {}

    def pods(self, app: str) -> list[Json]:
        return self.api.list("Pod", self.namespace, labelSelector=f"app={app}")

    def vpa(self, name: str) -> Json:
        return self.api.get("VerticalPodAutoscaler", name, self.namespace)

    def condition(self, vpa: str, kind: str) -> Json | None:
        conditions = self.vpa(vpa).get("status", {}).get("conditions", ())
        return next((one for one in conditions if one["type"] == kind), None)

    def events(self, reason: str) -> list[Json]:
        return [one for one in self.api.list("Event", self.namespace) if one["reason"] == reason]

    def wait_for_pods(self, apps: Sequence[str]) -> None:
        """Until the pods of these run."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = {
                one["metadata"].get("labels", {}).get("app"): one["status"].get("phase")
                for one in self.api.list("Pod", self.namespace)
            }
            if all(found.get(app) == "Running" for app in apps):
                return
            time.sleep(POLL)
        raise TimeoutError(f"no running pods of {apps}")


def cpu(pod: Json) -> str:
    """What the first container of a pod requests."""
    requests = pod["spec"]["containers"][0]["resources"].get("requests", {})
    return str(requests.get("cpu", ""))


def _trace(lines: Sequence[str]) -> Iterator[str]:
    begun = next((number for number, line in enumerate(lines) if line.startswith("Traceback")), None)
    if begun is not None:
        yield from (line for line in lines[begun : begun + 60] if not _LINE.match(line))


def _holds(check: Check) -> bool:
    try:
        return bool(check())
    except (ApiError, OSError, LookupError):
        return False
