"""What the containers of a pod have now: the kubelet's word if there is one, otherwise the spec's."""

from __future__ import annotations

from typing import NamedTuple

from vpa.objects.meta import ResourceList
from vpa.objects.pods import Pod, Resources


class Actual(NamedTuple):
    """Requests and limits of one container; ``None`` is a map that is not there, ``{}`` an empty one."""

    requests: ResourceList | None
    limits: ResourceList | None


NOTHING = Actual(None, None)


def actual_resources(pod: Pod) -> dict[str, Actual]:
    """Container name → its resources; of several containers, or statuses, with one name the first counts."""
    told: dict[str, Resources | None] = {}
    for status in pod.status.container_statuses or ():
        told.setdefault(status.name, status.resources)
    found = {name: Actual(has.requests, has.limits) for name, has in told.items() if has is not None}
    for container in pod.spec.containers or ():
        if container.name not in found:
            resources = container.resources
            found[container.name] = (
                NOTHING if resources is None else Actual(resources.requests, resources.limits)
            )
    return found
