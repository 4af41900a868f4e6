"""The top-most controller of a pod or of a VPA's target."""

from __future__ import annotations

from typing import NamedTuple

from vpa.cluster.discovery import NoSuchKindError
from vpa.cluster.errors import ClusterError, NotFound
from vpa.cluster.scales import Scales
from vpa.cluster.workloads import OwnerKey, Workloads, controller_of
from vpa.objects.meta import ObjectMeta
from vpa.objects.workloads import Scale

NODE = "Node"


class OwnerError(ClusterError):
    """The chain of owners cannot be followed to its end. *temporary*: it may well be, the next time."""

    def __init__(self, message: str, *, temporary: bool = False) -> None:
        super().__init__(message)
        self.temporary = temporary


class NodeOwnerError(OwnerError):
    """The chain ends at a Node: a static pod, which nobody can recreate."""


class Topmost(NamedTuple):
    """The result of a search: the controller, and the scalable ones above it that were passed over because
    their ``scale`` has no selector, so that no VPA could select pods by them.
    """

    key: OwnerKey | None
    passed_over: tuple[OwnerKey, ...] = ()


class Owners:
    """Follows controllers upwards; well-known kinds through *workloads*, all others through *scales*."""

    def __init__(self, workloads: Workloads, scales: Scales, *, parents_need_selectors: bool = True) -> None:
        """*parents_need_selectors*: a controller whose ``scale`` has no selector is no top-most one."""
        self._workloads = workloads
        self._scales = scales
        self._need_selectors = parents_need_selectors

    async def of_pod(self, metadata: ObjectMeta) -> OwnerKey | None:
        """The top-most controller of a pod, None without one; ``OwnerError`` if it cannot be told."""
        controller = controller_of(metadata)
        if controller is None:
            return None
        try:
            return (await self.topmost(controller)).key
        except NodeOwnerError:
            return None

    async def topmost(self, key: OwnerKey) -> Topmost:
        """The highest well-known or scalable controller from *key* upwards, *key* included."""
        passed_over: list[OwnerKey] = []
        top = key if await self._counts(key, passed_over) else None
        visited: set[OwnerKey] = set()
        while True:
            if key in visited:
                raise OwnerError("cycle detected in ownership chain")
            visited.add(key)
            parent = await self._parent(key)
            if parent is None:
                return Topmost(top, tuple(passed_over))
            if await self._counts(parent, passed_over):
                top = parent
            key = parent

    async def _counts(self, key: OwnerKey, passed_over: list[OwnerKey]) -> bool:
        """Is *key* a controller that a VPA may target?"""
        if key.kind == NODE:
            return False
        if self._workloads.resource(key) is not None:
            return True
        try:
            scale = await self._scale(key)
        except ClusterError:  # the search goes on: what is above may be fine
            return False
        if self._need_selectors and not scale.status.selector:
            passed_over.append(key)
            return False
        return True

    async def _parent(self, key: OwnerKey) -> OwnerKey | None:
        if key.kind == NODE:
            raise NodeOwnerError(_unhandled(key, "node is not a valid owner"))
        try:
            if self._workloads.resource(key) is not None:
                found = await self._workloads.find(key)
                if found is None:
                    raise OwnerError(f"{key.kind} {key.namespace}/{key.name} does not exist")
                return found.owner
            scale = await self._scale(key)
        except NotFound:
            return None
        except OwnerError:
            raise
        except ClusterError as error:
            temporary = not isinstance(error, NoSuchKindError)
            raise OwnerError(_unhandled(key, message_of(error)), temporary=temporary) from error
        parent = controller_of(scale.metadata)
        return parent._replace(namespace=key.namespace) if parent else None

    async def _scale(self, key: OwnerKey) -> Scale:
        return await self._scales.get(key.group, key.kind, key.namespace, key.name)


def message_of(error: ClusterError) -> str:
    """What the server said, without our request's path."""
    return getattr(error, "message", None) or str(error)


def _unhandled(key: OwnerKey, why: str) -> str:
    return f"unhandled targetRef {key.api_version} / {key.kind} / {key.name}, last error {why}"
