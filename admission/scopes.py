"""Labels of nodes, for DaemonSets that a VPA splits by one: a new pod of theirs names its node already."""

from __future__ import annotations

import asyncio
import logging

from vpa.cluster import nodes, reads
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError
from vpa.cluster.resources import NODES
from vpa.objects.meta import PartialObject
from vpa.scopes import NodeLabels

log = logging.getLogger(__name__)


class NodesByName:
    """A copy of all nodes' labels; a node that is too new for it is asked for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.mirror = nodes.labels(connection)

    def known(self, node: str) -> NodeLabels | None:
        """The labels of *node* under its name, if the copy has it."""
        found = self.mirror.get(("", node))
        return None if found is None else {node: found}

    async def labels_of(self, node: str, *, patience: float) -> NodeLabels:
        """The same; nothing if they cannot be had within *patience* seconds."""
        known = self.known(node)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(patience):
                found = await reads.get(self._connection, NODES, node, kind=PartialObject, metadata_only=True)
        except (ClusterError, TimeoutError) as error:
            log.warning("The labels of node %s are not known: %s", node, str(error) or "no answer in time")
            return {}
        return {node: found.metadata.labels or {}}
