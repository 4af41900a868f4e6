"""Containers that need more memory than they may have: from OOM kill to running, without anybody's help."""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.node.figures import Figures
from tests.node.workloads import MI, Namespace, container, is_ready, pod_spec, restarts, statuses
from tests.testbed.api import Json
from tests.testbed.processes import attempts
from vpa.quantities import Quantity

pytestmark = pytest.mark.usefixtures("chart")


@pytest.mark.brief
def test_a_container_that_needs_300mi_with_a_limit_of_100mi_reaches_a_running_state(
    namespace: Namespace, figures: Figures
) -> None:
    app = container(mib=300, requests={"cpu": "50m", "memory": "100Mi"}, limits={"memory": "100Mi"})
    namespace.vpa("needy", recommender=None)
    start = time.monotonic()
    namespace.deployment("needy", pod_spec(app, node="node-1"), wait=False)
    seen: dict[str, int] = {}
    for _ in attempts(400, "the pod to be ready with what it needs", pause=0.2):
        for pod in namespace.pods("needy"):
            seen[pod["metadata"]["uid"]] = max(seen.get(pod["metadata"]["uid"], 0), restarts(pod))
        if any(has_what_it_needs(namespace, pod) for pod in namespace.pods("needy")):
            break
    kills = sum(seen.values())
    figures("kills", kills)
    figures("pods", len(seen))
    figures("seconds", round(time.monotonic() - start))
    (pod,) = namespace.pods("needy")
    limit = statuses(pod)[0]["resources"]["limits"]["memory"]
    assert Quantity.parse(limit).value() > 300 * MI
    assert 1 <= kills <= 10


def has_what_it_needs(namespace: Namespace, pod: Json) -> bool:
    with contextlib.suppress(LookupError, OSError):  # its container is just being replaced
        return is_ready(pod) and namespace.cgroup(pod).memory > 300 * MI
    return False
