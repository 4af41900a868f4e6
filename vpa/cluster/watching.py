"""One watch: from a version of the store, what happens after it, line by line.

A watch ends in one of three ways: the iterator is exhausted (the server closed it; resume from the last
version), ``Gone`` (that version has expired; list afresh), or another ``ClusterError`` (wait, then resume).
Half a line before the end of the stream is dropped: the server sends it again to whoever resumes.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp.http_exceptions import LineTooLong

from vpa.cluster.codec import decode, decoder
from vpa.cluster.connection import Connection
from vpa.cluster.errors import Gone, StatusError, Unreadable, from_response
from vpa.cluster.reads import JSON, METADATA, Poison, poisoned, selection
from vpa.cluster.resources import Resource
from vpa.objects.meta import PartialObject

T = TypeVar("T")

INACTIVITY = 70.0
"""Seconds of silence after which a watch counts as dead: the server sends a bookmark each minute."""
SILENCE = 330.0
"""The same for kinds without bookmarks: longer than the server keeps a watch open."""
LONGEST_LINE = 16 * 2**20
"""Bytes of one event; etcd holds objects of 1.5 MiB by default."""
SERVER_TIMEOUT = (240, 300)
"""Seconds after which the server is asked to end a watch, so that watches spread over several servers
again.
"""

ADDED, MODIFIED, DELETED, BOOKMARK, ERROR = "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"


class Event(msgspec.Struct, Generic[T]):
    """ADDED, MODIFIED, DELETED: *object* is one of the kind, or a ``Poison``. BOOKMARK: only its version
    counts.
    """

    type: str
    object: T


class _Envelope(msgspec.Struct):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


async def watch(
    connection: Connection,
    resource: Resource,
    *,
    kind: type[T],
    version: str,
    namespace: str = "",
    label_selector: str = "",
    field_selector: str = "",
    metadata_only: bool = False,
    inactivity: float = INACTIVITY,
) -> AsyncGenerator[Event[Any], None]:
    """Events after *version*. The first thing yielded is a BOOKMARK of *version* itself: the server has
    accepted.
    """
    query = selection(label_selector, field_selector) | {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": random.randint(*SERVER_TIMEOUT),
    }
    path = resource.path(namespace)
    accept = METADATA if metadata_only else JSON
    typed = decoder(Event[kind])  # type: ignore[valid-type]
    patience = inactivity if resource.bookmarks else SILENCE
    async with connection.stream(path, query=query, accept=accept, inactivity=patience) as lines:
        yield Event(BOOKMARK, version)
        while True:
            try:
                line = await lines.readline(max_line_length=LONGEST_LINE)
            except LineTooLong as error:
                # Whoever resumes gets the same line again; a list has no such limit.
                raise Gone(
                    f"an event is longer than {LONGEST_LINE} bytes", method="GET", path=path
                ) from error
            if not line.endswith(b"\n"):
                return
            try:
                event = typed.decode(line)
            except msgspec.DecodeError as error:
                event = _classify(line, error, path)
            if event.type == ERROR:  # a kind so lenient that a Status fits it
                event = _classify(line, None, path)
            yield event if event.type != BOOKMARK else Event(BOOKMARK, _version(line))


def _version(line: bytes) -> str:
    return decode(line, Event[PartialObject]).object.metadata.resource_version


def _classify(line: bytes, problem: Exception | None, path: str) -> Event[Any]:
    """What a line is that is no event of our kind: an error (raised), a bookmark, or a poison object."""
    try:
        envelope = decode(line, _Envelope)
    except msgspec.DecodeError as error:
        text = line[:100].decode("utf-8", "replace")
        raise Unreadable(f"not a watch event: {text}", method="GET", path=path) from error
    if envelope.type == ERROR:
        raise _failure(bytes(envelope.object), path)
    if envelope.type == BOOKMARK:
        return Event(BOOKMARK, "")
    if envelope.type not in (ADDED, MODIFIED, DELETED) or problem is None:
        raise Unreadable(f'not a watch event: type "{envelope.type}"', method="GET", path=path)
    return Event(envelope.type, poisoned(envelope.object, problem))


def _failure(status: bytes, path: str) -> StatusError:
    failure = from_response(code=0, body=status, method="GET", path=path)
    if isinstance(failure, Gone) or failure.reason not in ("Expired", "Gone"):
        return failure
    return Gone(failure.message, method="GET", path=path, code=410, reason=failure.reason)


__all__ = ["ADDED", "BOOKMARK", "DELETED", "ERROR", "MODIFIED", "Event", "Poison", "watch"]
