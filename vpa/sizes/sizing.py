"""`vpa.pods.desired` under ``--cap-to-node``: webhook and updater give a pod no more than a node can hold."""

from __future__ import annotations

from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod, Resources
from vpa.pods import Desired, Room, desired
from vpa.rules import Rules
from vpa.sizes.fitting import Sizes
from vpa.sizes.footprints import footprint, resized
from vpa.sizes.limit_ranges import Ranges
from vpa.sizes.nodes_fit import Rooms


def sized(
    pod: Pod,
    vpa: VerticalPodAutoscaler,
    ranges: Ranges,
    *,
    rules: Rules,
    cap_to: Rooms | None = None,
    bounds: bool = True,
) -> Desired:
    """What *pod* should look like; with *cap_to* no larger than the roomiest node that it may run on."""
    result = desired(pod, vpa, ranges, rules=rules, bounds=bounds)
    room = scarce_room(pod, result.containers, cap_to)
    return result if room is None else desired(pod, vpa, ranges, room=room, rules=rules, bounds=bounds)


def scarce_room(pod: Pod, sizes: list[Sizes], cap_to: Rooms | None) -> Room | None:
    """The roomiest of the nodes, if not even that can hold the pod with the *sizes*."""
    if not cap_to:
        return None
    after = resized(pod, wanted_resources(pod, sizes))
    need = footprint(after.spec)
    if cap_to.fits(after, need):
        return None
    largest = cap_to.largest(after, need)
    return None if largest is None else largest[1]


def wanted_resources(pod: Pod, sizes: list[Sizes]) -> dict[str, Resources]:
    """Container → all its resources once it has the *sizes*, for the containers that get any."""
    by_name = {one.name: one for one in sizes if one.requests or one.limits}
    wanted: dict[str, Resources] = {}
    for container in pod.spec.containers or ():
        one = by_name.get(container.name)
        if one is not None:
            has = container.resources or Resources()
            wanted[container.name] = Resources(
                requests={**(has.requests or {}), **one.requests},
                limits={**(has.limits or {}), **one.limits},
                claims=has.claims,
            )
    return wanted
