"""More CPU while a container starts: which boost applies, and how much CPU it gives."""

from __future__ import annotations

import json
from typing import Final

from vpa.objects.autoscalers import CPUStartupBoost, StartupBoost, VerticalPodAutoscaler
from vpa.objects.meta import ResourceList
from vpa.objects.pods import Container
from vpa.policies import REQUESTS_ONLY, container_policy, controlled_values
from vpa.quantities import MILLI, Quantity
from vpa.rules import Rules
from vpa.sizes.capping import CappingError
from vpa.sizes.fitting import Sizes
from vpa.sizes.scaling import CPU, MOST, RESOURCES, proportional_limits

ANNOTATION_PREFIX: Final = "vpaCpuStartupBoost/"
"""Followed by a container's name; the value is what the container had before, see `original_resources`."""

FACTOR: Final = "Factor"
QUANTITY: Final = "Quantity"

_MILLI: Final = Quantity.from_milli(1)
_NOTHING: Final[ResourceList] = {}


class BoostError(CappingError):
    """A boost that cannot be computed; upstream then leaves the whole pod as it is."""


def boost_of(vpa: VerticalPodAutoscaler, container: str) -> StartupBoost | None:
    """The boost of a container: its policy's, else the VPA's."""
    policy = container_policy(vpa.spec.resource_policy, container)
    if policy is not None and policy.startup_boost is not None:
        return policy.startup_boost
    return vpa.spec.startup_boost


def original_resources(container: Container) -> str:
    """CPU and memory as the pod's owner wrote them, as JSON for the pod's annotation."""
    requests, limits = _written(container)

    def shown(values: ResourceList) -> dict[str, str]:
        return {name: str(values[name]) for name in RESOURCES if name in values}

    return json.dumps({"requests": shown(requests), "limits": shown(limits)}, separators=(",", ":"))


def apply_boost(
    container: Container,
    vpa: VerticalPodAutoscaler,
    sizes: Sizes,
    *,
    rules: Rules,
    most: Quantity | None = None,
) -> bool:
    """Raise the CPU of *sizes* by the container's boost, if it has one; was there one?

    *most* is ``--max-allowed-cpu-boost``, zero for none. A boost that makes no sense is a `BoostError`, or
    with `boosts_do_no_harm` no boost.
    """
    boost = boost_of(vpa, container.name)
    if boost is None:
        return False
    requests, limits = _written(container)
    base = sizes.requests.get(CPU)
    if base is None or base.is_zero:
        base = requests.get(CPU, Quantity(0))
    if rules.boosts_do_no_harm and (base.is_zero or not _makes_sense(boost.cpu)):
        return False
    if boost.cpu is None:
        raise BoostError("startupBoost.cpu is missing")
    exact = rules.limits_fit_int64
    number = _boosted_milli(boost.cpu, base.milli() if exact else base.int64_value(MILLI))
    if abs(number) > MOST:
        number = MOST if exact else -MOST - 1
    boosted = Quantity.from_milli(number)
    if most is not None and not most.is_zero and boosted > most:
        boosted = max(most, base) if rules.boosts_do_no_harm else most
    sizes.requests[CPU] = boosted
    if controlled_values(vpa.spec.resource_policy, container.name) == REQUESTS_ONLY:
        limit = limits.get(CPU)
        if limit is not None and boosted.milli() > limit.milli():
            sizes.requests[CPU] = limit - _MILLI if limit > _MILLI else limit
        return True
    found, _ = proportional_limits(
        limits=limits, requests=requests, recommended={CPU: boosted}, defaults=None, rules=rules
    )
    if found is not None and CPU in found:
        sizes.limits[CPU] = found[CPU]
    return True


def _written(container: Container) -> tuple[ResourceList, ResourceList]:
    resources = container.resources
    if resources is None:
        return _NOTHING, _NOTHING
    return resources.requests or _NOTHING, resources.limits or _NOTHING


def _makes_sense(boost: CPUStartupBoost | None) -> bool:
    """Is there a known type with its figure?"""
    if boost is None:
        return False
    if boost.type == FACTOR:
        return boost.factor is not None and boost.factor >= 1
    return boost.type == QUANTITY and boost.quantity is not None


def _boosted_milli(boost: CPUStartupBoost, base: int) -> int:
    """Millicores: the base times a factor, or plus a quantity. No type means a factor."""
    if boost.type in (FACTOR, ""):
        if boost.factor is None:
            raise BoostError("startupBoost.CPU.Factor is required when Type is Factor or not specified")
        if boost.factor < 1:
            raise BoostError("boost factor must be >= 1")
        return int(float(base) * float(boost.factor))
    if boost.type == QUANTITY:
        if boost.quantity is None:
            raise BoostError("startupBoost.CPU.Quantity is required when Type is Quantity")
        return base + boost.quantity.milli()
    raise BoostError(f"unsupported startup boost type: {boost.type}")
