"""Namespaces that got their first VPA after the owners of all ReplicaSets and Jobs had been listed.

Nothing was kept of what is in them. It is read again, by one list for a kind and a namespace, when the first
pod asks; one request for each ReplicaSet could be hundreds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from admission.lineage import PAGE, Lineage, Owned
from vpa.cluster import reads
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError
from vpa.cluster.resources import WELL_KNOWN

log = logging.getLogger(__name__)


class Latecomers:
    """What of which namespaces has still to be read."""

    def __init__(self, connection: Connection, lineage: Lineage) -> None:
        self._connection = connection
        self._lineage = lineage
        self._unread: set[tuple[str, str]] = set()
        self._reading: dict[tuple[str, str], asyncio.Task[None]] = {}

    def add(self, namespace: str, kinds: Iterable[str]) -> None:
        """*namespace* matters from now on; its objects of *kinds* have been passed by."""
        self._unread.update((namespace, kind) for kind in kinds)

    def has(self, namespace: str, kind: str) -> bool:
        """Have objects of *kind* in *namespace* been passed by?"""
        return (namespace, kind) in self._unread

    async def read(self, namespace: str, kind: str) -> None:
        """Read them if they have been. All who ask share one list, which goes on if they give up waiting."""
        key = (namespace, kind)
        if key not in self._unread:
            return
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._read(key), name=f"owners in {namespace}")
            task.add_done_callback(lambda _: self._reading.pop(key, None))
        await asyncio.shield(task)

    async def _read(self, key: tuple[str, str]) -> None:
        namespace, kind = key
        try:
            pages = reads.pages(
                self._connection,
                WELL_KNOWN[kind],
                kind=Owned,
                namespace=namespace,
                metadata_only=True,
                limit=PAGE,
            )
            async for page in pages:
                for found in page.items:
                    self._lineage.take(found)
        except ClusterError as error:
            log.warning("Owners in namespace %s are asked for one by one: %s", namespace, error)
            return
        self._unread.discard(key)
