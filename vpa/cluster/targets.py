"""What a VPA targets: is it there, is it the top-most controller, and which pods are its own.

The messages are those of upstream's ``ConfigUnsupported`` condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vpa import selectors
from vpa.cluster.connection import Connection
from vpa.cluster.discovery import Discovery, NoSuchKindError
from vpa.cluster.errors import ClusterError, Forbidden, NotFound
from vpa.cluster.owners import OwnerError, Owners, Topmost, message_of
from vpa.cluster.pacing import Clock, monotonic
from vpa.cluster.scales import Scales
from vpa.cluster.workloads import Copy, OwnerKey, Record, Workloads
from vpa.objects.autoscalers import TargetRef
from vpa.rules import Rules
from vpa.selectors import NOTHING, Selector


@dataclass(frozen=True, slots=True)
class Target:
    """What is known of a target.

    *key*: the controller whose pods these are; usually the targetRef itself (see *note*). *selector*
    matches nothing where *problem* (the condition's message) is not empty. *temporary*: the server could
    not be asked; what was known before is still the best guess. *note*: what was made of an unusual target,
    in one sentence.
    """

    key: OwnerKey | None
    selector: Selector = NOTHING
    problem: str = ""
    temporary: bool = False
    note: str = ""
    record: Record | None = None


class _UnreadableTargetError(ClusterError):
    """The selector cannot be had."""

    def __init__(self, message: str, *, temporary: bool = False) -> None:
        super().__init__(message)
        self.temporary = temporary


class Targets:
    """Resolves target references."""

    def __init__(
        self, workloads: Workloads, scales: Scales, owners: Owners, *, selectors_of_children: bool = True
    ) -> None:
        """*selectors_of_children*: a scalable object without a selector lends that of the one workload it
        owns.
        """
        self._workloads = workloads
        self._scales = scales
        self._owners = owners
        self._of_children = selectors_of_children

    async def resolve(self, namespace: str, ref: TargetRef | None) -> Target:
        """Everything about the target *ref* of a VPA in *namespace*. Never raises a ``ClusterError``."""
        if ref is None:
            reason = "targetRef not defined. If this is a v1beta1 object, switch to v1"
            return Target(None, problem=f"Cannot read targetRef. Reason: {reason}")
        key = OwnerKey(namespace, ref.kind, ref.name, ref.api_version)
        try:
            target = await self._select(key)
        except _UnreadableTargetError as error:
            return Target(key, problem=f"Cannot read targetRef. Reason: {error}", temporary=error.temporary)
        return await self._validated(key, target)

    async def selector(self, namespace: str, ref: TargetRef) -> Selector | None:
        """Only the selector, None if it cannot be had: whether the target is top-most is not asked."""
        try:
            key = OwnerKey(namespace, ref.kind, ref.name, ref.api_version)
            return (await self._select(key)).selector
        except _UnreadableTargetError:
            return None

    async def _validated(self, key: OwnerKey, target: Target) -> Target:
        text = f"{key.api_version}.{key.kind}/{key.name}"
        start = target.key or key
        try:
            top = await self._owners.topmost(start)
        except OwnerError as error:
            problem = (
                f"Error checking if target {text} is a topmost well-known or scalable controller: {error}"
            )
            return Target(key, problem=problem, temporary=error.temporary)
        if top.key is None:
            problem = (
                f"Unknown error during checking if target {text} is a topmost well-known or scalable "
                "controller"
            )
            return Target(key, problem=problem)
        if top.key != start:
            problem = (
                f"The target {text} has a parent controller but it should point to a topmost well-known or "
                "scalable controller"
            )
            return Target(key, problem=problem)
        note = target.note or _note(top)
        return Target(start, target.selector, note=note, record=target.record)

    async def _select(self, key: OwnerKey) -> Target:
        if key.api_version.count("/") > 1:
            raise _UnreadableTargetError(f"unexpected GroupVersion string: {key.api_version}")
        try:
            if self._workloads.resource(key) is None:
                return await self._select_by_scale(key)
            record = await self._workloads.find(key)
        except ClusterError as error:
            if isinstance(error, _UnreadableTargetError):
                raise
            raise _UnreadableTargetError(
                _unhandled(key, message_of(error)), temporary=_temporary(error)
            ) from error
        if record is None:
            raise _UnreadableTargetError(f"{key.kind} {key.namespace}/{key.name} does not exist")
        return Target(key, _of_record(record), record=record)

    async def _select_by_scale(self, key: OwnerKey) -> Target:
        scale = await self._scales.get(key.group, key.kind, key.namespace, key.name)
        if scale.status.selector:
            try:
                return Target(key, selectors.from_text(scale.status.selector))
            except selectors.SelectorError as error:
                raise _UnreadableTargetError(_unhandled(key, str(error))) from error
        empty = f"resource {key.namespace}/{key.name} has an empty selector for scale sub-resource"
        children = await self._workloads.controlled_by(key) if self._of_children else []
        if len(children) == 1:
            (child,) = children
            name = f"{child.key.kind} {child.key.namespace}/{child.key.name}"
            note = f"{empty}; the pods of its only workload, {name}, are taken"
            return Target(child.key, _of_record(child), note=note, record=child)
        raise _UnreadableTargetError(_unhandled(key, empty))


@dataclass(frozen=True, slots=True)
class Directory:
    """All that finds owners and targets, put together."""

    workloads: Workloads
    scales: Scales
    owners: Owners
    targets: Targets


def directory(
    connection: Connection,
    *,
    copies: Mapping[str, Copy] | None = None,
    ask: bool = True,
    rules: Rules,
    clock: Clock = monotonic,
) -> Directory:
    """*copies*: reflectors of workloads by kind (``workloads.reflector``); *ask*: what they lack is asked
    for.
    """
    workloads = Workloads(
        copies, connection=connection if ask else None, by_group=rules.kinds_by_group, clock=clock
    )
    scales = Scales(connection, Discovery(connection, clock=clock), clock=clock)
    owners = Owners(workloads, scales, parents_need_selectors=rules.parents_need_selectors)
    targets = Targets(workloads, scales, owners, selectors_of_children=rules.parents_need_selectors)
    return Directory(workloads, scales, owners, targets)


def _of_record(record: Record) -> Selector:
    try:
        return selectors.from_object(record.selector)
    except selectors.SelectorError as error:
        raise _UnreadableTargetError(str(error)) from error


def _temporary(error: ClusterError) -> bool:
    return not isinstance(error, NotFound | NoSuchKindError | Forbidden)


def _note(top: Topmost) -> str:
    if not top.passed_over:
        return ""
    names = ", ".join(f"{key.kind} {key.namespace}/{key.name}" for key in top.passed_over)
    return f"its owner {names} has an empty selector for scale sub-resource and is passed over"


def _unhandled(key: OwnerKey, why: str) -> str:
    return f"unhandled targetRef {key.api_version} / {key.kind} / {key.name}, last error {why}"
