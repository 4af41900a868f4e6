"""`vpa.pods.desired` under ``--cap-to-node``: webhook and updater give a pod no more than a node can hold."""

from __future__ import annotations

from vpa.fitting import Sizes
from vpa.footprints import footprint, resized
from vpa.limit_ranges import Ranges
from vpa.nodes_fit import Rooms
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod, Resources
from vpa.pods import Desired, desired
from vpa.rules import Rules


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
    if not cap_to:
        return result
    after = resized(pod, wanted_resources(pod, result.containers))
    need = footprint(after.spec)
    if cap_to.fits(after, need):
        return result
    largest = cap_to.largest(after, need)
    if largest is None:
        return result
    return desired(pod, vpa, ranges, room=largest[1], rules=rules, bounds=bounds)


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
