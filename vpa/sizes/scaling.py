"""Limits that follow requests: a container keeps the ratio between the two that its owner chose.

CPU is computed in whole millicores and memory in whole bytes, rounded down. Missing quantities are ``None``
and mean the same as zero.
"""

from __future__ import annotations

from typing import Final

from vpa.objects.meta import ResourceList
from vpa.quantities import BINARY_SI, DECIMAL_SI, MILLI, ZERO_CPU, ZERO_MEMORY, Quantity
from vpa.rules import Rules

CPU: Final = "cpu"
MEMORY: Final = "memory"
RESOURCES: Final = (CPU, MEMORY)

MOST: Final = 2**63 - 1
"""No quantity of a pod may be larger, in millicores or bytes."""

_NONE: Final = Quantity(0, "", exponent=0)
_ZEROS: Final = {CPU: ZERO_CPU, MEMORY: ZERO_MEMORY}
_EMPTY: Final[ResourceList] = {}


def unit(resource: str) -> int:
    """The power of ten in which a resource is counted: millicores for CPU, whole units for all else."""
    return MILLI if resource == CPU else 0


def amount(resource: str, quantity: Quantity, *, exact: bool = True) -> int:
    """Whole millicores or bytes, rounded up; with ``exact=False`` wrapped to 64 bits as upstream does."""
    scale = MILLI if resource == CPU else 0
    return quantity.scaled_value(scale) if exact else quantity.int64_value(scale)


def whole_units(resource: str, nanos: int) -> int:
    """Whole millicores or bytes of a number of nanos, rounded down."""
    return int(nanos // 10 ** (9 + unit(resource)))


def quantity_of(resource: str, number: int, format: str = "") -> Quantity:  # noqa: A002
    """The quantity of *number* millicores or bytes."""
    if resource == CPU:
        return Quantity.from_milli(number, format or DECIMAL_SI)
    return Quantity.from_int(number, format or BINARY_SI)


def euclid(dividend: int, divisor: int) -> tuple[int, int]:
    """Quotient and remainder, the remainder never negative; *divisor* is not 0."""
    quotient, remainder = divmod(dividend, abs(divisor))
    return (quotient if divisor > 0 else -quotient), remainder


def proportional(
    resource: str, scaled: Quantity, base: Quantity, result: Quantity, *, exact: bool, round_up: bool = False
) -> Quantity | None:
    """``scaled × result / base`` in *scaled*'s format, or ``None`` when it does not fit in 64 bits."""
    numerator = amount(resource, scaled, exact=exact) * amount(resource, result, exact=exact)
    divisor = amount(resource, base, exact=exact)
    if divisor == 0:
        return scaled
    quotient, remainder = euclid(numerator, divisor)
    if not -MOST - 1 <= quotient <= MOST:
        return None
    if remainder and round_up:
        quotient += 1
    if resource == CPU:
        return Quantity.from_milli(quotient, scaled.format)
    return Quantity.from_int(quotient, scaled.format)


def proportional_limit(
    resource: str,
    *,
    limit: Quantity | None,
    request: Quantity | None,
    recommended: Quantity | None,
    default: Quantity | None,
    rules: Rules,
) -> tuple[Quantity | None, str]:
    """(the limit for the *recommended* request or ``None`` for no limit, a note for the pod or ``""``).

    *default* is what a LimitRange sets where the container has no limit.
    """
    exact = rules.limits_fit_int64
    if (limit is None or _whole(limit, exact) == 0) and default is not None:
        limit = default
    if limit is None or _whole(limit, exact) == 0:
        return None, f"{resource}: limit NOT set since originalLimit is nil or 0"
    if recommended is None or _whole(recommended, exact) == 0:
        return None, f"{resource}: limit NOT set since recommendedRequest is nil or 0"
    if request is None or _whole(request, exact) == 0:
        return recommended, ""
    if request.int64_value(MILLI) == limit.int64_value(MILLI) if not exact else request == limit:
        return recommended, ""
    result = proportional(resource, limit, request, recommended, exact=exact)
    if result is not None:
        return result, ""
    note = f"{resource}: failed to keep limit to request ratio; capping limit to int64"
    if exact:
        return max(limit, recommended), note
    if resource == CPU:
        return Quantity.from_milli(MOST, limit.format), note
    return Quantity.from_int(MOST, limit.format), note


def _whole(quantity: Quantity, exact: bool) -> int:
    return quantity.nanos if exact else quantity.int64_value(0)


def proportional_limits(
    *,
    limits: ResourceList | None,
    requests: ResourceList | None,
    recommended: ResourceList | None,
    defaults: ResourceList | None,
    rules: Rules,
) -> tuple[ResourceList | None, list[str]]:
    """The limits of CPU and memory that go with *recommended*, and the notes; ``None`` if neither has one."""
    limits, requests, recommended = limits or _EMPTY, requests or _EMPTY, recommended or _EMPTY
    defaults = defaults or _EMPTY
    found: ResourceList = {}
    notes = []
    for resource in RESOURCES:
        value, note = proportional_limit(
            resource,
            limit=limits.get(resource),
            request=requests.get(resource),
            recommended=recommended.get(resource),
            default=defaults.get(resource),
            rules=rules,
        )
        if value is not None:
            found[resource] = value
        if note:
            notes.append(note)
    return (found, notes) if found else (None, [])


def boundary_request(
    resource: str,
    *,
    request: Quantity | None,
    limit: Quantity | None,
    boundary: Quantity | None,
    default: Quantity | None,
    rules: Rules,
) -> Quantity | None:
    """The request at which the limit that follows it reaches *boundary*; zero where nothing bounds it."""
    exact = rules.limits_fit_int64
    if (limit is None or _whole(limit, exact) == 0) and default is not None:
        limit = default
    if limit is None or _whole(limit, exact) == 0:
        return _NONE
    if request is None or _whole(request, exact) == 0 or boundary is None:
        return boundary
    result = proportional(resource, request, limit, boundary, exact=exact)
    return quantity_of(resource, MOST, request.format) if result is None else result


def listed(resources: ResourceList | None, resource: str) -> Quantity:
    """The quantity in a resource list; zero, in the resource's usual format, where it has none."""
    found = resources.get(resource) if resources else None
    return found if found is not None else _ZEROS.get(resource, _NONE)
