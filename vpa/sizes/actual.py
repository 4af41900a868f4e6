"""What the containers of a pod have now: the kubelet's word if there is one, otherwise the spec's."""

from __future__ import annotations

from typing import NamedTuple

from vpa.objects.meta import ResourceList
from vpa.objects.pods import Pod


class Actual(NamedTuple):
    """Requests and limits of one container; ``None`` is a map that is not there, ``{}`` an empty one."""

    requests: ResourceList | None
    limits: ResourceList | None


NOTHING = Actual(None, None)


def actual_resources(pod: Pod) -> dict[str, Actual]:
    """Container name → its resources; of several containers with one name the first counts."""
    found: dict[str, Actual] = {}
    for status in pod.status.container_statuses or ():
        if status.resources is not None and status.name not in found:
            found[status.name] = Actual(status.resources.requests, status.resources.limits)
    for container in pod.spec.containers or ():
        if container.name not in found:
            resources = container.resources
            found[container.name] = (
                NOTHING if resources is None else Actual(resources.requests, resources.limits)
            )
    return found
