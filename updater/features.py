"""What this cluster can do: is there ``pods/resize``, and may it lower a memory limit without a restart?"""

from __future__ import annotations

import logging
import re

import msgspec

from vpa.cluster.connection import Connection
from vpa.cluster.errors import ClusterError
from vpa.cluster.pacing import Clock, monotonic
from vpa.cluster.reads import read
from vpa.cluster.resources import PODS

log = logging.getLogger(__name__)

FRESH = 3600.0
"""Seconds after which the server is asked again: it may have been upgraded."""
FRESH_ABSENCE = 300.0
TIMEOUT = 10.0
LOWERS_MEMORY_LIMITS = (1, 34)
"""The first version that lowers a memory limit without restarting the container."""


class _Resource(msgspec.Struct):
    name: str = ""


class _Resources(msgspec.Struct):
    resources: list[_Resource] | None = None


class _Version(msgspec.Struct):
    major: str = ""
    minor: str = ""


class Features:
    """Asked of the server when it matters and remembered; what it does not tell is taken to be there."""

    def __init__(self, connection: Connection, *, clock: Clock = monotonic) -> None:
        self.can_resize = True
        self.can_lower_memory_limits = True
        self._connection = connection
        self._clock = clock
        self._until = float("-inf")

    async def refresh(self) -> None:
        """Ask again if the last answer is too old."""
        if self._clock() < self._until:
            return
        try:
            found, version = await self._resizes(), await self._version()
        except ClusterError as error:
            log.warning("What the cluster can do is not known: %s", error)
            return
        self.can_lower_memory_limits = version is None or version >= LOWERS_MEMORY_LIMITS
        if found:
            self._until = self._clock() + FRESH
            if not self.can_resize:
                log.info("The cluster can resize pods in place now")
            self.can_resize = True
        else:
            self.no_resize()

    def no_resize(self) -> None:
        """The server has no ``pods/resize``: say so once, and ask again later."""
        self._until = self._clock() + FRESH_ABSENCE
        if self.can_resize:
            log.warning(
                "This cluster cannot resize pods in place (Kubernetes before 1.33): mode InPlaceOrRecreate "
                "evicts, mode InPlace does nothing"
            )
        self.can_resize = False

    async def _resizes(self) -> bool:
        path = f"/api/{PODS.version}"
        body = await self._connection.request("GET", path, timeout=TIMEOUT)
        listed = read(body, _Resources, method="GET", path=path).resources or ()
        return any(one.name == "pods/resize" for one in listed)

    async def _version(self) -> tuple[int, int] | None:
        """Major and minor; None if the server does not say. Vendors write minors such as ``33+``."""
        body = await self._connection.request("GET", "/version", timeout=TIMEOUT)
        found = read(body, _Version, method="GET", path="/version")
        numbers = [re.match(r"\d+", text) for text in (found.major, found.minor)]
        if numbers[0] is None or numbers[1] is None:
            return None
        return int(numbers[0].group()), int(numbers[1].group())
