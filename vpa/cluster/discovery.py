"""Which resource a kind is: asked of the server, group by group, and remembered for five minutes."""

from __future__ import annotations

import asyncio

import msgspec

from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError, NotFound
from vpa.cluster.pacing import Clock, monotonic
from vpa.cluster.reads import read
from vpa.cluster.resources import Resource

FRESH = 300.0
"""Seconds for which an answer is used."""
FRESH_ERROR = 10.0
"""Seconds for which a failure is."""


class NoSuchKindError(ClusterError):
    """The server knows no such kind in that group."""


class _GroupVersion(msgspec.Struct):
    version: str = ""


class _Group(msgspec.Struct, rename="camel"):
    versions: list[_GroupVersion] | None = None
    preferred_version: _GroupVersion = msgspec.field(default_factory=_GroupVersion)


class _APIResource(msgspec.Struct):
    name: str = ""
    kind: str = ""
    namespaced: bool = False


class _APIResourceList(msgspec.Struct):
    resources: list[_APIResource] | None = None


class _Known:
    """What a group serves: kind → resource, and the resources that have a ``scale``."""

    def __init__(self) -> None:
        self.kinds: dict[str, Resource] = {}
        self.scalable: set[Resource] = set()
        self.error: ClusterError | None = None


class Discovery:
    """Kind and group → resource, of the version that the server prefers among those that have the kind."""

    def __init__(self, connection: Connection, *, clock: Clock = monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._groups: dict[str, tuple[float, _Known]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def resource(self, group: str, kind: str) -> Resource:
        """The resource of *kind*; ``NoSuchKindError``, or why the server could not be asked."""
        found = (await self._group(group)).kinds.get(kind)
        if found is None:
            raise NoSuchKindError(f'no matches for kind "{kind}" in group "{group}"')
        return found

    async def has_scale(self, resource: Resource) -> bool:
        """Does *resource* have the ``scale`` subresource?"""
        return resource in (await self._group(resource.group)).scalable

    async def _group(self, group: str) -> _Known:
        async with self._locks.setdefault(group, asyncio.Lock()):
            until, known = self._groups.get(group, (float("-inf"), _Known()))
            if self._clock() >= until:
                try:
                    known = await self._ask(group)
                except ClusterError as error:
                    known = _Known()
                    known.error = error
                self._groups[group] = self._clock() + (FRESH_ERROR if known.error else FRESH), known
        if known.error is not None:
            raise known.error.with_traceback(None)  # or each time would add to it
        return known

    async def _ask(self, group: str) -> _Known:
        known = _Known()
        try:
            versions = await self._versions(group)
        except NotFound:  # no such group: its definitions are not installed
            return known
        for version in versions:
            path = f"/apis/{group}/{version}" if group else f"/api/{version}"
            body = await self._connection.request("GET", path)
            listed = read(body, _APIResourceList, method="GET", path=path).resources or []
            scaled = {item.name.removesuffix("/scale") for item in listed if item.name.endswith("/scale")}
            for item in listed:
                if "/" in item.name or item.kind in known.kinds:
                    continue
                resource = Resource(group, version, item.name, item.kind, item.namespaced)
                known.kinds[item.kind] = resource
                if item.name in scaled:
                    known.scalable.add(resource)
        return known

    async def _versions(self, group: str) -> list[str]:
        if not group:
            return ["v1"]
        path = f"/apis/{group}"
        found = read(await self._connection.request("GET", path), _Group, method="GET", path=path)
        others = [item.version for item in found.versions or ()]
        preferred = found.preferred_version.version
        return [preferred, *(version for version in others if version != preferred)] if preferred else others
