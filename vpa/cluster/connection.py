"""The one way to the API server: every request of every service passes here.

What holds for each of them: a timeout; the client-side rate limit and a bound on concurrency; credentials
as fresh as they must be, and once more after a 401; the next endpoint when one does not answer; retries
with jitter where a repeat can do no harm; errors by meaning.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import yarl
from aiohttp.http import HttpProcessingError

from vpa.cluster import credentials, proxies
from vpa.cluster.endpoints import Endpoints
from vpa.cluster.errors import (
    ConfigurationError,
    RequestError,
    ServerError,
    StatusError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    from_response,
)
from vpa.cluster.pacing import Backoff, TokenBucket, monotonic

Query = Mapping[str, str | int]
T = TypeVar("T")

REQUEST_TIMEOUT = 30.0
"""Seconds that one request may take, its repeats included."""
OPEN_TIMEOUT = 30.0
"""Seconds until a watch must have answered with its headers."""
CONNECT_TIMEOUT = 10.0
FAILOVER_CONNECT_TIMEOUT = 1.0
"""Seconds to connect where another endpoint can be tried instead."""
LIST_BUFFER = 2**20
_TRANSPORT_ERRORS = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError)
_TLS_NEVER_GIVES_UP = sys.version_info < (3, 12, 8)
"""Before, a connection whose end the peer does not confirm stayed open; aiohttp then aborts it."""
_NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientProxyConnectionError,
)


class Connection:
    """An open connection to one cluster. Make it with :meth:`open`; it is an async context manager.

    *fence*: called right before each write is handed to the network; what it raises stops the write. Leader
    election puts its check here, so that a process that was paused for a minute does not finish its sentence.
    """

    def __init__(
        self,
        access: credentials.Credentials,
        *,
        servers: Sequence[str] = (),
        qps: float = 50.0,
        burst: float = 100.0,
        concurrency: int = 100,
        user_agent: str = "vpa",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._credentials = access
        self._endpoints = Endpoints(servers or [access.server])
        self._bucket = TokenBucket(qps=qps, burst=burst)
        self._slots = asyncio.Semaphore(concurrency)
        self._environ = environ
        self._proxy = proxies.checked(access.proxy) if access.proxy else None
        self._connect_timeout = FAILOVER_CONNECT_TIMEOUT if len(self._endpoints) > 1 else CONNECT_TIMEOUT
        self.fence: Callable[[], None] | None = None
        self.requests: Counter[tuple[str, int]] = Counter()
        """How many requests were sent, by method and HTTP status (0: no answer)."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, socket_factory=_socket, enable_cleanup_closed=_TLS_NEVER_GIVES_UP
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Identity: to gzip megabytes costs the API server more than to send them.
            headers={"User-Agent": user_agent, "Accept-Encoding": "identity"},
            read_bufsize=LIST_BUFFER,
            auto_decompress=True,
        )

    @classmethod
    async def open(
        cls,
        *,
        kubeconfig: str = "",
        context: str = "",
        servers: Sequence[str] = (),
        qps: float = 50.0,
        burst: float = 100.0,
        concurrency: int = 100,
        user_agent: str = "vpa",
        environ: Mapping[str, str] = os.environ,
    ) -> Connection:
        """Read the configuration and be ready; nothing is sent yet.

        *kubeconfig* "" means in-cluster. *servers*: URLs to use in this order instead of the configured one.
        *qps* ≤ 0: no client-side limit. Raises ``ConfigurationError``.
        """
        for server in servers:
            if not server.startswith(("https://", "http://")):
                raise ConfigurationError(f'API server "{server}" is no URL; write https://HOST:PORT')
        access = await credentials.load(kubeconfig=kubeconfig, context=context, environ=environ)
        return cls(
            access,
            servers=servers,
            qps=qps,
            burst=burst,
            concurrency=concurrency,
            user_agent=user_agent,
            environ=environ,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109 - it bounds the repeats too, which a caller cannot see
        retry: bool = True,
        urgent: bool = False,
    ) -> bytes:
        """Send one request and return the body of its 2xx answer; otherwise raise a ``RequestError``.

        Repeated (within *timeout*, unless *retry* is False): what the server cannot have seen, reads that
        failed on the way or with 5xx, and whatever the server asks to repeat with Retry-After.
        *urgent*: do not queue behind other requests and do not ask the fence (leader election itself).
        """
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        backoff = Backoff(base=0.2, cap=5.0)
        deadline: float | None = None
        failures = 0
        while True:
            if not urgent:
                await self._bucket.take()
            async with contextlib.nullcontext() if urgent else self._slots:
                if deadline is None:  # waiting for our own limits is not the server's fault
                    deadline = monotonic() + timeout
                try:
                    return await self._once(
                        method,
                        path + _query_text(query),
                        headers=headers,
                        body=body,
                        timeout=max(0.001, deadline - monotonic()),
                        fenced=method != "GET" and not urgent,
                    )
                except RequestError as error:
                    failures += 1
                    delay = self._delay_before_repeat(error, backoff, failures) if retry else None
                    if delay is None or monotonic() + delay >= deadline:
                        raise
            await asyncio.sleep(delay)

    def _delay_before_repeat(self, error: RequestError, backoff: Backoff, failures: int) -> float | None:
        """Seconds until *error*'s request may be repeated, None if it must not be."""
        if isinstance(error.__cause__, aiohttp.ClientConnectorCertificateError) and len(self._endpoints) == 1:
            return None  # it will not be trusted in a second either
        if isinstance(error, Unreachable):
            if error.sent and error.method != "GET":
                return None
            return 0.0 if failures < len(self._endpoints) else backoff.delay()
        if not isinstance(error, TooManyRequests | ServerError):
            return None
        if error.retry_after is not None:
            return error.retry_after * random.uniform(1.0, 1.1) + random.uniform(0.0, 0.1)
        if isinstance(error, TooManyRequests):
            return 1.0 + backoff.delay()
        return backoff.delay() if error.method == "GET" and failures < 4 else None

    async def _once(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,  # noqa: ASYNC109
        fenced: bool,
    ) -> bytes:
        """One try; after a 401 a second one with fresh credentials."""
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=self._connect_timeout)

        async def send(authorization: str) -> bytes:
            if fenced and self.fence is not None:
                self.fence()
            url = self._endpoints.pick()
            code = 0
            try:
                async with self._session.request(
                    method,
                    yarl.URL(url + path, encoded=True),
                    data=body,
                    timeout=limits,
                    **self._options(url, headers, authorization),
                ) as response:
                    answer = await response.read()
                    code = response.status
            except _TRANSPORT_ERRORS as error:
                self._endpoints.failed(url)
                raise _unreachable(error, method=method, url=url, path=path) from error
            finally:
                self.requests[method, code] += 1
            self._endpoints.worked(url)
            if code >= 300:
                wait = response.headers.get("Retry-After")
                raise from_response(code=code, body=answer, retry_after=wait, method=method, path=path)
            return answer

        return await self._authorized(send)

    async def _authorized(self, send: Callable[[str], Awaitable[T]]) -> T:
        authorization = await self._credentials.header()
        try:
            return await send(authorization)
        except Unauthorized:
            if not await self._credentials.replace(authorization):
                raise
            return await send(await self._credentials.header())

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Query, accept: str = "application/json", inactivity: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """An answer that goes on (a watch), to be read line by line.

        Raises ``Unreachable`` when it cannot be opened, breaks, or is silent for *inactivity* seconds; a
        ``StatusError`` when the server refuses. A clean end is an empty line at EOF.
        """
        await self._bucket.take()
        text = path + _query_text(query)
        async with contextlib.AsyncExitStack() as stack:

            async def send(authorization: str) -> tuple[str, aiohttp.ClientResponse]:
                url = self._endpoints.pick()
                response = await self._open(stack, url, text, accept, authorization, inactivity)
                if response.status >= 300:
                    raise await self._refusal(response, url, text)
                return url, response

            url, response = await self._authorized(send)
            try:
                yield response.content
            except _TRANSPORT_ERRORS as error:
                if isinstance(error, TimeoutError):
                    self._endpoints.failed(url)
                raise _unreachable(error, method="GET", url=url, path=path) from error
            finally:
                _abort(response)

    async def _open(
        self,
        stack: contextlib.AsyncExitStack,
        url: str,
        path: str,
        accept: str,
        authorization: str,
        inactivity: float,
    ) -> aiohttp.ClientResponse:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout, sock_read=inactivity)
        options = self._options(url, {"Accept": accept}, authorization)
        code = 0
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                opening = self._session.get(yarl.URL(url + path, encoded=True), timeout=limits, **options)
                response = await stack.enter_async_context(opening)
            code = response.status
        except _TRANSPORT_ERRORS as error:
            self._endpoints.failed(url)
            raise _unreachable(error, method="GET", url=url, path=path) from error
        finally:
            self.requests["WATCH", code] += 1
        self._endpoints.worked(url)
        return response

    async def _refusal(self, response: aiohttp.ClientResponse, url: str, path: str) -> StatusError:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                answer = await response.content.read(LIST_BUFFER)
        except _TRANSPORT_ERRORS as error:
            raise _unreachable(error, method="GET", url=url, path=path) from error
        return from_response(
            code=response.status,
            body=answer,
            retry_after=response.headers.get("Retry-After"),
            method="GET",
            path=path,
        )

    def _options(self, url: str, headers: Mapping[str, str], authorization: str) -> dict[str, Any]:
        """What every request to *url* carries: who we are, TLS, proxy."""
        options: dict[str, Any] = {
            "headers": {**headers, "Authorization": authorization} if authorization else headers,
            "allow_redirects": False,
            "proxy": self._proxy or proxies.from_environment(url, self._environ),
        }
        if url.startswith("https"):
            options["ssl"] = self._credentials.tls()
            options["server_hostname"] = self._credentials.server_name
        return options


def _query_text(query: Query | None) -> str:
    return "?" + urlencode(query) if query else ""


def _unreachable(error: BaseException, *, method: str, url: str, path: str) -> Unreachable:
    sent = not isinstance(error, _NEVER_SENT)
    return Unreachable(f"{url}: {_what_happened(error)}", method=method, path=path, sent=sent)


def _what_happened(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        problem = error.os_error
        return f"cannot connect: {os.strerror(problem.errno) if problem.errno else problem}"
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


def _abort(response: aiohttp.ClientResponse) -> None:
    """Drop a connection in the middle of its answer; an orderly end of TLS would wait for a peer that may
    be dead.
    """
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within half a minute that its peer is gone without a word."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
