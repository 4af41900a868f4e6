"""A container that may have too little memory: what becomes of it without anybody's help."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from tests.node.workloads import MI, Namespace, container, is_ready, pod_spec, statuses
from tests.testbed.api import Json
from tests.testbed.processes import attempts

NEEDS, HAS = 300, 100
"""MiB."""


@dataclass(frozen=True, kw_only=True)
class Rescue:
    """How long a container that needed more than it had took to run."""

    kills: int
    """By the kernel, over all pods."""
    pods: int
    seconds: float
    """From its creation until it was ready with all that it needs; infinite: not in the time given."""

    def __str__(self) -> str:
        return f"{self.kills} OOM kills, {self.pods} pods, {self.seconds:.0f} s"


def rescue(namespace: Namespace, name: str, *, node: str = "node-1", seconds: float = 400) -> Rescue:
    """Create a Deployment with a VPA that needs 300Mi with a limit of 100Mi, and wait until it runs."""
    needy = container(mib=NEEDS, requests={"cpu": "50m", "memory": f"{HAS}Mi"}, limits={"memory": f"{HAS}Mi"})
    namespace.vpa(name, recommender=None)
    start = time.monotonic()
    namespace.deployment(name, pod_spec(needy, node=node), wait=False)
    pods: set[str] = set()
    killed: set[str] = set()
    taken = float("inf")
    with contextlib.suppress(TimeoutError):
        for _ in attempts(seconds, "the pod to be ready with what it needs", pause=0.2):
            found = namespace.pods(name)
            pods |= {pod["metadata"]["uid"] for pod in found}
            killed |= {end for pod in found for end in oom_kills(pod)}
            if any(has_what_it_needs(namespace, pod) for pod in found):
                taken = time.monotonic() - start
                break
    return Rescue(kills=len(killed), pods=len(pods), seconds=taken)


def oom_kills(pod: Json) -> set[str]:
    """The ids of its containers that are known to have been OOM-killed."""
    ends = [
        state.get("terminated", {})
        for status in statuses(pod)
        for state in (status.get("state", {}), status.get("lastState", {}))
    ]
    return {end["containerID"] for end in ends if end.get("reason") == "OOMKilled"}


def has_what_it_needs(namespace: Namespace, pod: Json) -> bool:
    """Whether the pod is ready and holds its memory, by the kernel's count."""
    with contextlib.suppress(LookupError, OSError):  # its container is just being replaced
        return is_ready(pod) and namespace.cgroup(pod).memory > NEEDS * MI
    return False
