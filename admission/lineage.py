"""Who owns the controllers in between, ReplicaSets and Jobs, of which a cluster has tens of thousands."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import islice
from typing import Any, Final

from vpa.cluster.connection import Connection
from vpa.cluster.reflectors import Reflector
from vpa.cluster.resources import Resource
from vpa.cluster.workloads import OwnerKey, controller_of
from vpa.objects.meta import Obj, OwnerReference

REMEMBERED: Final = 250_000
"""Owners that are remembered at most, some 30 MiB; what is not is asked for."""
INTERNED: Final = 50_000
PAGE: Final = 2000
"""Objects per request of a list; metadata alone is small."""


class Unknown(Enum):
    """Nothing has been heard of the controller yet."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN


class Metadata(Obj, frozen=True):
    """As much of an object's metadata as is looked at."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_references: list[OwnerReference] | None = None


class Owned(Obj, frozen=True):
    metadata: Metadata = Metadata()


class Lineage:
    """uid → the controller's own controller (None: it has none), fed by metadata-only watches.

    A uid never means another object, so nothing that is remembered can become wrong by a deletion, and the
    oldest may be forgotten at any time. One entry takes some 110 bytes.
    """

    def __init__(self, wanted: Callable[[str], bool], *, remembered: int = REMEMBERED) -> None:
        """*wanted*: is anything to be kept of a namespace?"""
        self._wanted = wanted
        self._remembered = remembered
        self._owners: dict[int | str, OwnerKey | None] = {}
        self._keys: dict[OwnerKey, OwnerKey] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def owner(self, uid: str) -> OwnerKey | Unknown | None:
        """The owner of the controller *uid*: its key, None for none, or `UNKNOWN`."""
        return self._owners.get(_compact(uid), UNKNOWN)

    def put(self, uid: str, owner: OwnerKey | None) -> None:
        """Remember the owner of a controller."""
        key = _compact(uid)
        self._owners.pop(key, None)  # to be among the youngest again
        self._owners[key] = None if owner is None else self._interned(owner)
        if len(self._owners) > self._remembered:
            for old in list(islice(self._owners, len(self._owners) // 10)):
                del self._owners[old]

    def take(self, found: Any) -> None:
        """Remember the owner of an `Owned`, if its namespace matters."""
        metadata = found.metadata
        if self._wanted(metadata.namespace):
            self.put(metadata.uid, controller_of(metadata))

    def _interned(self, owner: OwnerKey) -> OwnerKey:
        """One key for all ReplicaSets of a Deployment."""
        found = self._keys.get(owner)
        if found is None:
            if len(self._keys) >= INTERNED:
                self._keys.clear()
            found = self._keys[owner] = owner
        return found

    def reflector(
        self, connection: Connection, resource: Resource, *, namespace: str = ""
    ) -> Reflector[Any, Any]:
        """A watch of one kind that feeds us and keeps nothing itself."""
        kind: Any = Owned
        return Reflector(
            connection,
            resource,
            kind=kind,
            project=self.take,
            namespace=namespace,
            metadata_only=True,
            page=PAGE,
        )


def _compact(uid: str) -> int | str:
    """A UUID as a number takes half the room of its text."""
    try:
        return int(uid.replace("-", ""), 16)
    except ValueError:
        return uid
