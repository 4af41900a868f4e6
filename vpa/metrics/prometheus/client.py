"""One async client: several addresses in order, retries, a bound on everything, and errors that explain."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType

import aiohttp

from vpa import times
from vpa.metrics.prometheus import queries
from vpa.metrics.prometheus.access import Access
from vpa.metrics.prometheus.breakers import Breaker
from vpa.metrics.prometheus.errors import (
    NoAddressError,
    PrometheusError,
    RefusedError,
    RejectedError,
    TimedOutError,
    TooMuchError,
    UnreachableError,
    shortened,
)
from vpa.metrics.prometheus.replies import WRONG_METHOD, Reply, judge

ATTEMPTS = 3
"""Requests to one address for one query."""

FIRST_DELAY = 0.5
"""Seconds before the second attempt; doubled for the third; both with jitter."""

LARGEST_ANSWER = 64 << 20
"""Bytes of one answer; more is refused, since it is decoded as a whole. Plans aim at a tenth of it."""

CONNECT_TIMEOUT = 30.0

TOO_SLOW = "it is asked for in smaller pieces, or raise --prometheus-query-timeout"
"""What may help against a query that takes too long, where it can be cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One request: the path below ``/api/v1``, its parameters, and how messages call it."""

    path: str
    params: Mapping[str, str]

    @classmethod
    def range(cls, text: str, *, start: int, end: int, step: int) -> Query:
        """The values of *text* at ``start, start + step, … end``, seconds since the epoch."""
        params = {"query": text, "start": str(start), "end": str(end), "step": str(step)}
        return cls(path="query_range", params=params)

    @classmethod
    def instant(cls, text: str, *, at: int) -> Query:
        """The values of *text* at one second."""
        return cls(path="query", params={"query": text, "time": str(at)})

    def __str__(self) -> str:
        text = shortened(self.params["query"])
        if "step" not in self.params:
            return f"{text!r} at {_utc(self.params['time'])}"
        step = queries.seconds(int(self.params["step"]))
        return f"{text!r} from {_utc(self.params['start'])} to {_utc(self.params['end'])}, step {step},"


def _utc(second: str) -> str:
    return times.text(int(second) * times.SECOND)


@dataclass(slots=True)
class Statistics:
    """What a client has done so far."""

    requests: int = 0
    bytes: int = 0
    retries: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Kind of error → how often."""
    trickster: Counter[str] = field(default_factory=Counter)
    """Status in Trickster's header → how often."""


class Client:
    """Queries to Prometheus; use it as an async context manager."""

    def __init__(
        self,
        access: Access,
        *,
        timeout: float = 300.0,
        concurrency: int = 4,
        largest_answer: int = LARGEST_ANSWER,
        too_slow: str = TOO_SLOW,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        note: Callable[[str, str, float], None] = lambda code, method, seconds: None,
    ) -> None:
        """*note* is told of each answered request: its status code, its method, and how long it took.
        *too_slow*: what a message says of a query that took longer than *timeout*."""
        self.access = access
        self.statistics = Statistics()
        self.breakers = {address: Breaker() for address in access.addresses}
        self._timeout = timeout
        self._largest = largest_answer
        self._too_slow = too_slow
        self._slots = asyncio.Semaphore(concurrency)
        self.turn = asyncio.Lock()
        """Held by whoever decodes, so that each round of the event loop has one step of such work only."""
        self._sleep = sleep
        self._clock = clock
        self._jitter = jitter
        self._note = note
        self._by_get: set[str] = set()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        secure = any(address.startswith("https:") for address in self.access.addresses)
        connector = aiohttp.TCPConnector(ssl=self.access.tls() if secure else True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            trust_env=True,  # proxies, as upstream
            headers={"Accept-Encoding": "identity", **self.access.headers},
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=CONNECT_TIMEOUT),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, query: Query, *, skip: Collection[str] = (), fresh: bool = False) -> Reply:
        """The answer of the first address that has one; addresses in *skip* are passed over.

        *fresh* tells caches to forget what they know of the query: a means of repair, not of reading.
        Raises a `PrometheusError`: that of the address where only one was tried.
        """
        async with self._slots:
            causes: list[PrometheusError] = []
            for address in self.access.addresses:
                if address in skip or not self.breakers[address].allows(self._clock()):
                    continue
                try:
                    return await self._ask_one(query, address, fresh=fresh)
                except (TooMuchError, RejectedError):
                    raise  # another address would say the same of this query
                except PrometheusError as error:
                    causes.append(error)
            if len(causes) == 1:
                raise causes[0]
            raise self._nobody(query, causes, skip)

    def _nobody(self, query: Query, causes: list[PrometheusError], skip: Collection[str]) -> NoAddressError:
        now = self._clock()
        tried = [address for address in self.access.addresses if address not in skip]
        if causes:
            reason = "no address answers: " + "; ".join(f"{one.address}: {one.reason}" for one in causes)
        else:
            rest = min((self.breakers[address].rest(now) for address in tried), default=0.0)
            last = next((self.breakers[a].last_error for a in tried if self.breakers[a].last_error), "")
            reason = f"left in peace after repeated failures; next try in {rest:.0f} s; last failure: {last}"
        return NoAddressError(query=str(query), address=", ".join(tried), reason=reason, causes=causes)

    async def _ask_one(self, query: Query, address: str, *, fresh: bool) -> Reply:
        """Up to `ATTEMPTS` requests to one address, kept in its circuit breaker."""
        breaker = self.breakers[address]
        breaker.begin()
        try:
            reply = await self._persist(query, address, fresh=fresh)
        except (TooMuchError, RejectedError) as error:
            breaker.succeed()
            self._count(error)
            raise
        except PrometheusError as error:
            breaker.fail(self._clock(), error.reason, jitter=self._jitter())
            self._count(error)
            raise
        except BaseException:
            breaker.give_up()
            raise
        breaker.succeed()
        return reply

    def _count(self, error: PrometheusError) -> None:
        self.statistics.errors[type(error).__name__] += 1

    async def _persist(self, query: Query, address: str, *, fresh: bool) -> Reply:
        delay = FIRST_DELAY
        attempt = 0
        while True:
            attempt += 1
            authorization = self.access.authorization(self._clock())
            try:
                return await self._send(query, address, authorization, fresh=fresh)
            except TimedOutError:
                raise  # the same question would take as long again
            except RefusedError:
                if attempt == ATTEMPTS or not self._rotated(authorization):
                    raise
            except UnreachableError as error:
                if attempt == ATTEMPTS or error.too_much:
                    raise
                await self._sleep(delay * (0.5 + self._jitter()))
                delay *= 2
            self.statistics.retries += 1

    def _rotated(self, refused: str) -> bool:
        """Whether there is another token by now than the *refused* one."""
        if self.access.token_file is not None:
            self.access.token_file.doubt()
        return self.access.authorization(self._clock()) != refused

    async def _send(self, query: Query, address: str, authorization: str, *, fresh: bool) -> Reply:
        """One request; asked anew with GET where POST is unknown."""
        sent = {"Authorization": authorization} if authorization else {}
        if fresh:
            sent["Cache-Control"] = "no-cache"
        status, reason, headers, body = await self._exchange(query, address, sent)
        if status in WRONG_METHOD and address not in self._by_get:
            self._by_get.add(address)
            status, reason, headers, body = await self._exchange(query, address, sent)
        async with self.turn:
            reply = judge(
                status=status, reason=reason, headers=headers, body=body, query=str(query), address=address
            )
            await asyncio.sleep(0)
        if reply.trickster is not None:
            self.statistics.trickster[reply.trickster.status] += 1
        return reply

    async def _exchange(
        self, query: Query, address: str, headers: Mapping[str, str]
    ) -> tuple[int, str, Mapping[str, str], bytearray]:
        if self._session is None:
            raise RuntimeError("the client is used outside of its context")
        url = f"{address}/api/v1/{query.path}"
        self.statistics.requests += 1
        by_get = address in self._by_get
        started = self._clock()
        try:
            async with self._session.request(
                "GET" if by_get else "POST",
                url,
                headers=headers,
                params=query.params if by_get else None,
                data=None if by_get else dict(query.params),
            ) as response:
                self._note(str(response.status), response.method.lower(), self._clock() - started)
                body = await self._read(response, query, address)
                return response.status, response.reason or "", response.headers, body
        except TimeoutError:
            raise TimedOutError(
                query=str(query),
                address=address,
                reason=f"no answer within {self._timeout:g} s; {self._too_slow}",
            ) from None
        except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError) as error:
            raise UnreachableError(
                query=str(query), address=address, reason=f"{_cause(error)}; it is tried again"
            ) from None

    async def _read(self, response: aiohttp.ClientResponse, query: Query, address: str) -> bytearray:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._largest:
                raise TooMuchError(
                    query=str(query),
                    address=address,
                    reason=f"the answer is larger than {self._largest >> 20} MiB; "
                    "it is asked for in smaller pieces",
                )
        self.statistics.bytes += len(body)
        return body


def _cause(error: BaseException) -> str:
    return str(error) or type(error).__name__
