"""``--cap-to-node``: how large the nodes are, as of some seconds ago at most."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from vpa.cluster.connection import Connection
from vpa.cluster.errors import Forbidden, NotFound
from vpa.cluster.reflectors import Reflector, whole
from vpa.cluster.resources import NODES, PODS
from vpa.objects.nodes import Node
from vpa.objects.pods import Pod
from vpa.sizes.nodes_fit import Rooms
from vpa.updates.budgets import group_of

log = logging.getLogger(__name__)

SETTLE: Final = 2.0
"""Seconds in which changes are gathered: a large cluster has many, and what a node can hold seldom moves."""


class Nodes:
    """The nodes, and the DaemonSet and static pods that they hold."""

    def __init__(self, connection: Connection) -> None:
        self.rooms: Rooms | None = None
        """What can be held; None while that is not known."""
        self.nodes = Reflector[Node, Node](connection, NODES, kind=Node, project=whole)
        self.pods = Reflector[Pod, Pod](
            connection,
            PODS,
            kind=Pod,
            project=_stays,
            field_selector="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
        )
        self.ready = asyncio.Event()
        """Set when that is as well known as it ever will be."""
        self._dirty = asyncio.Event()
        self.nodes.subscribe(self._changed)
        self.pods.subscribe(self._changed)

    def _changed(self, old: Any, new: Any) -> None:
        if old is None or new is None or _size(old) != _size(new):
            self._dirty.set()

    async def run(self) -> None:
        """Take in what changes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run(), name="reflector nodes")
            group.create_task(self.pods.run(), name="reflector pods")
            while True:
                if _denied(self.nodes) and not self.ready.is_set():
                    log.warning("--cap-to-node has no effect: %s", self.nodes.last_error)
                    self.ready.set()
                if not (self.nodes.synced and (self.pods.synced or _denied(self.pods))):
                    await asyncio.sleep(0.1)
                    continue
                if self.rooms is None and not self.pods.synced:
                    log.warning("What DaemonSets take of nodes is not known: %s", self.pods.last_error)
                self._dirty.clear()
                self.rooms = Rooms(self.nodes.values(), self.pods.values())
                self.ready.set()
                await self._dirty.wait()
                await asyncio.sleep(SETTLE)


def _denied(mirror: Reflector[Any, Any]) -> bool:
    return not mirror.synced and isinstance(mirror.last_error, Forbidden | NotFound)


def _stays(pod: Pod) -> Pod | None:
    """Only pods that leave with their node count."""
    return pod if group_of(pod).kind in ("DaemonSet", "Node") else None


def _size(found: Node | Pod) -> Any:
    """What of a node or pod can change the room on it."""
    if isinstance(found, Node):
        return found.metadata.labels, found.spec, found.status.allocatable
    return found.spec
