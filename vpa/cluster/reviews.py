"""Who may read what this process serves: the API server is asked, and its answer remembered for a minute."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from vpa.cluster.codec import encode
from vpa.cluster.connection import Connection
from vpa.cluster.errors import RequestError
from vpa.cluster.pacing import monotonic

T = TypeVar("T")

REMEMBERED_SECONDS = 60.0
REMEMBERED_CALLERS = 1000
AT_ONCE = 4
"""Reviews that wait for the API server at the same time; more callers queue, so that nobody can flood it."""
TIMEOUT = 10.0

log = logging.getLogger(__name__)


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


class Reviews:
    """Asks by TokenReview who a caller is, and by SubjectAccessReview whether he may get a path."""

    def __init__(self, connection: Connection, *, clock: Callable[[], float] = monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._failing = False
        self._known: OrderedDict[tuple[bytes, str], tuple[float, HTTPStatus]] = OrderedDict()

    async def __call__(self, token: str, path: str) -> HTTPStatus:
        """200 when the bearer of *token* may get *path*; 401, 403, or 503 when nobody can tell."""
        if not token:
            return HTTPStatus.UNAUTHORIZED
        key = (hashlib.sha256(token.encode()).digest(), path)
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            return known[1]
        try:
            async with self._slots:
                status = await self._ask(token, path)
        except RequestError as error:
            if not self._failing:  # said once, not with every scrape
                log.warning("Nobody is let in, since it cannot be asked who may get %s: %s", path, error)
            self._failing = True
            return HTTPStatus.SERVICE_UNAVAILABLE
        if self._failing:
            log.info("It can be asked again who may get %s", path)
            self._failing = False
        self._known[key] = (self._clock() + REMEMBERED_SECONDS, status)
        self._known.move_to_end(key)
        while len(self._known) > REMEMBERED_CALLERS:
            self._known.popitem(last=False)
        return status

    async def _ask(self, token: str, path: str) -> HTTPStatus:
        who = await self._create("authentication.k8s.io", "TokenReview", {"token": token}, kind=_TokenReview)
        if not who.status.authenticated:
            return HTTPStatus.UNAUTHORIZED
        user = who.status.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        what = await self._create("authorization.k8s.io", "SubjectAccessReview", spec, kind=_AccessReview)
        return HTTPStatus.OK if what.status.allowed else HTTPStatus.FORBIDDEN

    async def _create(self, group: str, title: str, spec: dict[str, Any], *, kind: type[T]) -> T:
        body = {"apiVersion": f"{group}/v1", "kind": title, "spec": spec}
        # Urgent, since a replica that does not lead is asked for its metrics too; `AT_ONCE` bounds them.
        path = f"/apis/{group}/v1/{title.lower()}s"
        answer = await self._connection.request("POST", path, body=encode(body), timeout=TIMEOUT, urgent=True)
        return msgspec.json.decode(answer, type=kind)
