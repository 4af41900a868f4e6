"""HTTP/1.1 as API servers speak it: between the bytes and the handler is only a parser.

A general server makes a task, a request, a response and timers of each call; they cost more than the handler.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple, cast

import httptools

from admission.handler import LARGEST, Begun, Call, Handler, Reply

LARGEST_HEAD: Final = 64 * 1024
"""Bytes of a request line with its headers."""
MOST_WAITING: Final = 16
"""Calls of one connection that may wait for the one before; then no more is read of it."""
PATIENCE: Final = 30.0
"""Seconds in which a call has to be here."""
KEPT_OPEN: Final = 3600.0
"""Seconds for which an idle connection is kept. API servers close theirs after 90: were we to do it first, a
call might be on its way already."""
DEAF: Final = 1.0
"""Seconds between a refusal and the end. Who is still sending would not see it if the end came at once."""

TEXT: Final = "text/plain"
CLOSE: Final = "Connection: close\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

Steps = Mapping[str, Callable[[float], None]]
"""Observers of the seconds that a step took."""


class _Complete(NamedTuple):
    """A call that is here as a whole. *keep*: the connection stays open after it."""

    call: Call
    keep: bool


class Connection(asyncio.Protocol):
    """One connection. Its calls are answered in their order."""

    def __init__(
        self, handler: Handler, steps: Steps, *, every: set[Connection], closing: Callable[[], bool]
    ) -> None:
        """It is in *every* while it is open. *closing*: is each answer the last one of its connection?"""
        self._handler = handler
        self._steps = steps
        self._every = every
        self._closing = closing
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Complete] = deque()
        self._asking: asyncio.Task[None] | None = None
        self._over = False
        self._active = time.monotonic()
        self._head = 0
        self.on_message_begin()
        self._incomplete = False

    def expire(self, now: float) -> None:
        """Close a connection that has been idle too long, and cut off one whose call does not come."""
        quiet = now - self._active
        if self._incomplete and quiet > PATIENCE:
            self.abort()
        elif self._asking is None and quiet > KEPT_OPEN:
            self._close()

    def abort(self) -> None:
        """End it, whatever is on its way."""
        if self._transport is not None:
            self._transport.abort()

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._every.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._every.discard(self)
        self._transport = None
        if self._asking is not None:
            self._asking.cancel()

    def pause_writing(self) -> None:
        """Who does not read answers gets no more calls through."""
        self._listen(False)

    def resume_writing(self) -> None:
        self._listen(True)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # the call has been answered; another protocol will not come
            self._close()
            return
        except httptools.HttpParserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"this is no call over HTTP/1.1: {error}")
            return
        self._head = self._head + len(data) if self._incomplete and self._in_head else 0
        if self._head > LARGEST_HEAD:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too large")

    # What the parser tells

    def on_message_begin(self) -> None:
        self._incomplete = self._in_head = True
        self._url = b""
        self._type = ""
        self._expects = False
        self._body: list[bytes] = []
        self._size = 0
        self._active = time.monotonic()

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return
        lower = name.lower()
        if lower == b"content-type":
            self._type = value.decode("latin-1")
        elif lower == b"content-length":
            self._size = int(value)
        elif lower == b"expect":
            self._expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._size > LARGEST:
            self._end_with(self._handler.too_large())
        elif self._expects and self._transport is not None:
            self._transport.write(CONTINUE)
        self._size = 0

    def on_body(self, part: bytes) -> None:
        self._body.append(part)
        self._size += len(part)
        if self._size > LARGEST and not self._over:
            self._body.clear()
            self._end_with(self._handler.too_large())

    def on_message_complete(self) -> None:
        self._incomplete = False
        if self._over:
            return
        call = Call(
            body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
            content_type=self._type,
            method=self._parser.get_method().decode("latin-1"),
            query=self._url.partition(b"?")[2].decode("latin-1"),
        )
        self._body = []
        self._waiting.append(_Complete(call, self._parser.should_keep_alive()))
        if self._asking is None:
            self._answer()
        elif len(self._waiting) >= MOST_WAITING:
            self._listen(False)

    # Answers

    def _answer(self) -> None:
        """Answer what is waiting, up to a call for which somebody has to be asked."""
        while self._waiting and not self._over:
            complete = self._waiting.popleft()
            started = time.perf_counter()
            begun = self._handler.begin(complete.call)
            if isinstance(begun, Begun):
                self._asking = asyncio.ensure_future(self._ask(begun, complete, started))
                return
            self._write(begun, complete, started)

    async def _ask(self, begun: Begun, complete: _Complete, started: float) -> None:
        reply = await self._handler.finish(begun)
        self._asking = None
        self._write(reply, complete, started)
        self._listen(True)
        self._answer()

    def _write(self, reply: Reply, complete: _Complete, started: float) -> None:
        if self._transport is None:
            return
        built = time.perf_counter()
        keep = complete.keep and not self._closing()
        self._transport.write(_bytes_of(reply, keep=keep, bodiless=complete.call.method == "HEAD"))
        if not keep:
            self._close()
        now = time.perf_counter()
        self._steps["write_response"](now - built)
        self._steps["total"](now - started)

    def _listen(self, on: bool) -> None:
        if self._transport is None:
            return
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._end_with(Reply(status, f"{text}\n".encode(), TEXT))

    def _end_with(self, reply: Reply) -> None:
        """Answer and hear no more."""
        if self._transport is None or self._over:
            return
        self._over = True
        self._waiting.clear()
        self._transport.write(_bytes_of(reply, keep=False))
        asyncio.get_running_loop().call_later(DEAF, self._close)

    def _close(self) -> None:
        self._over = True
        if self._transport is not None:
            self._transport.close()


def _bytes_of(reply: Reply, *, keep: bool, bodiless: bool = False) -> bytes:
    """*reply* as it goes over the wire."""
    status = HTTPStatus(reply.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(reply.body)}\r\nDate: {_date(int(time.time()))}\r\n{'' if keep else CLOSE}\r\n"
    )
    return head.encode("latin-1") + (b"" if bodiless else reply.body)


@lru_cache(maxsize=1)
def _date(now: int) -> str:
    return formatdate(now, usegmt=True)
