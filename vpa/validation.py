"""Is a VPA object sound? Upstream's checks in upstream's order, and what is filled in where it is silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from vpa import field_errors as errors
from vpa.field_errors import FieldError
from vpa.gates import FeatureGates
from vpa.modes import AUTO, IN_PLACE, MODES, RECREATE
from vpa.objects import meta
from vpa.objects.autoscalers import (
    ContainerPolicy,
    ResourcePolicy,
    Spec,
    StartupBoost,
    UpdatePolicy,
    VerticalPodAutoscaler,
)
from vpa.policies import OFF, REQUESTS_AND_LIMITS, whole
from vpa.quantities import Quantity, QuantityError
from vpa.rules import Rules
from vpa.sizes.scaling import CPU, MEMORY, RESOURCES

SCALING_MODES: Final = ("Auto", OFF)
NAMED_MODES: Final = tuple(mode for mode in MODES if mode != AUTO)

_AT_LEAST_1: Final = "must be greater than or equal to 1"
_PER_VPA: Final = "not supported when feature flag PerVPAConfig is disabled"
_INT32: Final = range(-(2**31), 2**31)
_WHOLE: Final = {CPU: "must be a whole number of milli CPUs", MEMORY: "must be a whole number of bytes"}


@dataclass(slots=True)
class Verdict:
    """What the webhook answers about a VPA: denied with errors, or allowed with a patch; warnings always."""

    errors: list[FieldError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    patch: list[dict[str, Any]] = field(default_factory=list)

    @property
    def allowed(self) -> bool:
        return not self.errors


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What is allowed: by a feature gate, by our rules, or because the old object had it already."""

    rules: Rules
    startup_boost: bool
    per_vpa: bool
    in_place: bool
    old_resources: frozenset[str]
    old_duplicates: frozenset[str]


def review(
    data: Any,
    old_data: Any = None,
    *,
    rules: Rules,
    gates: FeatureGates,
    default_mode: str = RECREATE,
) -> Verdict:
    """Judge a VPA as it came from JSON; *old_data* is what an update replaces."""
    try:
        vpa = parsed(data)
        old = parsed(old_data) if old_data is not None else VerticalPodAutoscaler()
    except (msgspec.ValidationError, QuantityError) as error:
        return Verdict(errors=[errors.internal(".", _upstream_text(error))])
    verdict = Verdict()
    _check_spec(vpa.spec, _allowed(old.spec, rules, gates), verdict)
    if verdict.allowed and vpa.spec.update_policy is None:
        value = {"updateMode": default_mode}
        verdict.patch.append({"op": "add", "path": "/spec/updatePolicy", "value": value})
    return verdict


def parsed(data: Any) -> VerticalPodAutoscaler:
    """The VPA in *data*; explicit nulls are as good as nothing."""
    try:
        vpa = meta.convert(data, VerticalPodAutoscaler)
    except msgspec.ValidationError:
        vpa = meta.convert(_without_nulls(data), VerticalPodAutoscaler)
    for name, number in _int32_fields(vpa.spec):
        if number is not None and number not in _INT32:
            raise msgspec.ValidationError(f"{name}: {number} does not fit in 32 bits")
    return vpa


def _int32_fields(spec: Spec) -> Iterator[tuple[str, int | None]]:
    if spec.update_policy is not None:
        yield "minReplicas", spec.update_policy.min_replicas
        yield "evictAfterOOMSeconds", spec.update_policy.evict_after_oom_seconds
    boosts = [spec.startup_boost]
    for policy in _policies(spec.resource_policy):
        yield "memoryAggregationIntervalSeconds", policy.memory_aggregation_interval_seconds
        boosts.append(policy.startup_boost)
    for boost in boosts:
        if boost is not None and boost.cpu is not None:
            yield "factor", boost.cpu.factor
            yield "durationSeconds", boost.cpu.duration_seconds


def _without_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    return [_without_nulls(value) for value in data] if isinstance(data, list) else data


def _upstream_text(error: Exception) -> str:
    """Upstream's words about a quantity, otherwise our own about the field."""
    cause = error.__cause__ if isinstance(error.__cause__, QuantityError) else error
    return cause.upstream if isinstance(cause, QuantityError) else str(error)


def _policies(resource_policy: ResourcePolicy | None) -> list[ContainerPolicy]:
    return (resource_policy.container_policies if resource_policy is not None else None) or []


def _duplicates(policies: list[ContainerPolicy]) -> frozenset[str]:
    names = [policy.container_name for policy in policies]
    return frozenset(name for name in names if names.count(name) > 1)


def _allowed(old: Spec, rules: Rules, gates: FeatureGates) -> _Allowed:
    policies = _policies(old.resource_policy)
    update = old.update_policy
    return _Allowed(
        rules=rules,
        startup_boost=gates.cpu_startup_boost
        or (old.startup_boost is not None and old.startup_boost.cpu is not None)
        or any(policy.startup_boost is not None for policy in policies),
        per_vpa=gates.per_vpa_config
        or (update is not None and update.evict_after_oom_seconds is not None)
        or any(_has_per_vpa_config(policy) for policy in policies),
        in_place=gates.in_place or (update is not None and update.update_mode == IN_PLACE),
        old_resources=frozenset(name for policy in policies for name in policy.controlled_resources or ()),
        old_duplicates=_duplicates(policies),
    )


def _has_per_vpa_config(policy: ContainerPolicy) -> bool:
    settings = (
        policy.oom_bump_up_ratio,
        policy.oom_min_bump_up,
        policy.memory_aggregation_interval_count,
        policy.memory_aggregation_interval_seconds,
    )
    return any(setting is not None for setting in settings)


def _check_spec(spec: Spec, allowed: _Allowed, verdict: Verdict) -> None:
    if spec.update_policy is not None:
        _check_update_policy(spec.update_policy, allowed, verdict)
    policies = _policies(spec.resource_policy)
    for index, policy in enumerate(policies):
        path = f"spec.resourcePolicy.containerPolicies[{index}]"
        _check_container_policy(policy, path, allowed, verdict)
        if allowed.rules.one_policy_per_container:
            _check_duplicate(policy, policies[:index], path, allowed, verdict)
    if spec.startup_boost is not None:
        _check_boost(spec.startup_boost, "spec.startupBoost", allowed, verdict)
    if spec.recommenders and len(spec.recommenders) > 1:
        verdict.errors.append(errors.too_many("spec.recommenders", len(spec.recommenders), 1))


def _check_update_policy(policy: UpdatePolicy, allowed: _Allowed, verdict: Verdict) -> None:
    path = "spec.updatePolicy"
    mode = policy.update_mode
    if mode is None:
        verdict.errors.append(
            errors.required(f"{path}.updateMode", "updateMode is required if UpdatePolicy is used")
        )
    elif mode not in MODES:
        verdict.errors.append(errors.not_supported(f"{path}.updateMode", mode, NAMED_MODES))
    elif mode == AUTO:
        verdict.warnings.append(
            f'{path}: "Auto" mode is deprecated and will be removed in a future API version. '
            f"Use explicit update modes like: [{' '.join(NAMED_MODES)}]. "
            "See https://github.com/kubernetes/autoscaler/issues/8424 for more details."
        )
    elif mode == IN_PLACE and not allowed.in_place:
        verdict.errors.append(
            errors.forbidden(
                f"{path}.updateMode",
                "in order to use UpdateMode InPlace, "
                "you must enable feature gate InPlace in the admission-controller args",
            )
        )
    if policy.min_replicas is not None and policy.min_replicas <= 0:
        detail = "minReplicas has to be positive"
        verdict.errors.append(errors.invalid(f"{path}.minReplicas", policy.min_replicas, detail))
    _check_per_vpa(
        f"{path}.evictAfterOOMSeconds",
        policy.evict_after_oom_seconds,
        allowed,
        verdict,
        _below_1,
        _AT_LEAST_1,
    )


def _below_1(value: int | float) -> bool:
    return value < 1


def _check_per_vpa(
    path: str,
    value: int | float | None,
    allowed: _Allowed,
    verdict: Verdict,
    is_wrong: Callable[[int | float], bool],
    detail: str,
) -> None:
    """A setting of the gate PerVPAConfig."""
    if value is None:
        return
    if not allowed.per_vpa:
        verdict.errors.append(errors.forbidden(path, _PER_VPA))
    elif is_wrong(value):
        verdict.errors.append(errors.invalid(path, value, detail))


def _check_container_policy(policy: ContainerPolicy, path: str, allowed: _Allowed, verdict: Verdict) -> None:
    found = verdict.errors
    if not policy.container_name:
        found.append(errors.required(f"{path}.containerName"))
    if policy.mode is not None and policy.mode not in SCALING_MODES:
        found.append(errors.not_supported(f"{path}.mode", policy.mode, SCALING_MODES))
    _check_bounds(policy, path, allowed, verdict)
    if policy.mode == OFF and policy.controlled_values == REQUESTS_AND_LIMITS:
        detail = "controlledValues shouldn't be specified if container scaling mode is off"
        found.append(errors.forbidden(f"{path}.controlledValues", detail))
    _check_controlled_resources(policy, path, allowed, verdict)
    ratio = policy.oom_bump_up_ratio
    _check_per_vpa(
        f"{path}.oomBumpUpRatio",
        None if ratio is None else ratio.milli() / 1000.0,
        allowed,
        verdict,
        lambda value: value < 1.0,
        "must be greater than or equal to 1.0",
    )
    bump = policy.oom_min_bump_up
    _check_per_vpa(
        f"{path}.oomMinBumpUp",
        None if bump is None else bump.value(),
        allowed,
        verdict,
        lambda value: value < 0,
        "must be greater than or equal to 0",
    )
    for name, number in (
        ("memoryAggregationIntervalSeconds", policy.memory_aggregation_interval_seconds),
        ("memoryAggregationIntervalCount", policy.memory_aggregation_interval_count),
    ):
        _check_per_vpa(f"{path}.{name}", number, allowed, verdict, _below_1, _AT_LEAST_1)
    if policy.startup_boost is not None:
        _check_boost(policy.startup_boost, f"{path}.startupBoost", allowed, verdict)


def _check_bounds(policy: ContainerPolicy, path: str, allowed: _Allowed, verdict: Verdict) -> None:
    least, most = policy.min_allowed or {}, policy.max_allowed or {}
    for resource, low in sorted(least.items()):
        _check_resolution(f"{path}.minAllowed[{resource}]", resource, low, allowed, verdict)
        high = most.get(resource)
        if high is not None and high < low:
            detail = f'max resource for {resource} is lower than min of "{low}"'
            verdict.errors.append(errors.invalid(f"{path}.maxAllowed[{resource}]", str(high), detail))
    for resource, high in sorted(most.items()):
        _check_resolution(f"{path}.maxAllowed[{resource}]", resource, high, allowed, verdict)


def _check_resolution(path: str, resource: str, value: Quantity, allowed: _Allowed, verdict: Verdict) -> None:
    """Pods count CPU in millicores and memory in bytes."""
    rounded = whole(resource, value) if resource in RESOURCES else value
    if rounded == value:
        return
    if allowed.rules.whole_bounds:
        verdict.warnings.append(f'{path}: "{value}" {_WHOLE[resource]}; it is rounded up to "{rounded}"')
    else:
        verdict.errors.append(errors.invalid(path, str(value), _WHOLE[resource]))


def _check_controlled_resources(
    policy: ContainerPolicy, path: str, allowed: _Allowed, verdict: Verdict
) -> None:
    for index, resource in enumerate(policy.controlled_resources or ()):
        if resource in RESOURCES:
            continue
        where = f"{path}.controlledResources[{index}]"
        if resource in allowed.old_resources:
            verdict.warnings.append(
                f"{where}: unsupported value {errors.quoted(resource)} is allowed only because it is present "
                'in the existing VPA object; supported values: "cpu", "memory"'
            )
        else:
            verdict.errors.append(errors.not_supported(where, resource, RESOURCES))


def _check_duplicate(
    policy: ContainerPolicy,
    earlier: list[ContainerPolicy],
    path: str,
    allowed: _Allowed,
    verdict: Verdict,
) -> None:
    """Of several policies for one container only one would have an effect."""
    name = policy.container_name
    if not name or all(other.container_name != name for other in earlier):
        return
    error = errors.duplicate(
        f"{path}.containerName", name, "a container has one policy; put all of its settings into that one"
    )
    if name in allowed.old_duplicates:
        verdict.warnings.append(f"{error}; allowed only because the existing VPA object has it too")
    else:
        verdict.errors.append(error)


def _check_boost(boost: StartupBoost, path: str, allowed: _Allowed, verdict: Verdict) -> None:
    found = verdict.errors
    if not allowed.startup_boost:
        detail = (
            "in order to use startupBoost, "
            "you must enable feature gate CPUStartupBoost in the admission-controller args"
        )
        found.append(errors.forbidden(path, detail))
        return
    cpu = boost.cpu
    if cpu is None:
        return
    if not cpu.type:
        found.append(errors.required(f"{path}.cpu.type", "must be either Factor or Quantity"))
    elif cpu.type == "Factor":
        if cpu.factor is None:
            found.append(errors.required(f"{path}.cpu.factor", "required when type is Factor"))
        elif cpu.factor < 1:
            found.append(errors.invalid(f"{path}.cpu.factor", cpu.factor, "must be >= 1 for type Factor"))
    elif cpu.type == "Quantity":
        if cpu.quantity is None:
            found.append(errors.required(f"{path}.cpu.quantity", "required when type is Quantity"))
        else:
            _check_resolution(f"{path}.cpu.quantity", CPU, cpu.quantity, allowed, verdict)
    else:
        found.append(errors.not_supported(f"{path}.cpu.type", cpu.type, ("Factor", "Quantity")))
