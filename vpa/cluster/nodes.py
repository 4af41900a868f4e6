"""Nodes, as far as their labels go: for DaemonSets that a VPA splits by one."""

from __future__ import annotations

from typing import Any

from vpa.cluster.connection import Connection
from vpa.cluster.reflectors import Reflector
from vpa.cluster.resources import NODES
from vpa.objects.meta import PartialObject


def labels(connection: Connection) -> Reflector[Any, dict[str, str]]:
    """A copy of all nodes' labels, under ("", name)."""
    return Reflector(
        connection,
        NODES,
        kind=PartialObject,
        project=lambda node: node.metadata.labels or {},
        metadata_only=True,
    )
