"""A local copy of a collection, kept equal to the server's by a paged list and a watch.

The loop never gives up and never hammers: whatever happens, it waits (longer each time, with jitter) and
resumes from the last version that it knows; when the server no longer knows that version, it lists afresh,
at its own pace. What readers see is always a state that the server had: objects are replaced one by one as
news come, and an object is dropped only on the word of the server (a DELETED event, or its absence from a
complete list) or when its new state cannot be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from vpa.cluster import watching
from vpa.cluster.connection import Connection
from vpa.cluster.errors import CacheNotSyncedError, ClusterError, Gone, StatusError
from vpa.cluster.pacing import Backoff, Clock, monotonic
from vpa.cluster.reads import PAGE, Poison, pages, poisoned
from vpa.cluster.resources import Resource
from vpa.objects.meta import ObjectMeta

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""(namespace, name); the namespace is "" for cluster-wide objects."""


class Named(Protocol):
    """Anything with an object's metadata."""

    @property
    def metadata(self) -> ObjectMeta: ...


O = TypeVar("O", bound=Named)  # noqa: E741 - what is read
T = TypeVar("T")  # what is kept of it

Handler = Callable[[T | None, T | None], None]
"""Called with (old, new): (None, new) appeared, (old, new) changed, (old, None) is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Waiting times in seconds."""

    resume: tuple[float, float] = (0.5, 30.0)
    """First and longest wait before a watch is resumed."""
    relist: tuple[float, float] = (1.0, 60.0)
    """First and longest wait before a list is repeated: lists cost the server much more."""
    settled: float = 10.0
    """A watch that lived so long shows that resuming works; a list, after six times as long."""
    inactivity: float = watching.INACTIVITY
    """Silence after which a watch is taken for dead."""


@dataclass(slots=True)
class Counters:
    """What a reflector did since it was made."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    errors: int = 0
    poison: int = 0


class _Entry(msgspec.Struct, gc=False):
    record: Any
    uid: str
    version: str
    round: int


class Reflector(Mapping[Key, T], Generic[O, T]):
    """A read-only mapping from :data:`Key` to what *project* keeps of each object (None: not kept).

    *kind* is a struct with ``metadata`` that holds what *project* reads; without *project* the struct
    itself is kept. Run :meth:`run` as a task, or use :func:`running`. All of it belongs to one event loop.
    """

    def __init__(
        self,
        connection: Connection,
        resource: Resource,
        *,
        kind: type[O],
        project: Callable[[O], T | None],
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        page: int = PAGE,
        pace: Pace = Pace(),
        clock: Clock = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.resource = resource
        self.counters = Counters()
        self.last_error: ClusterError | None = None
        """Why the last list or watch ended, None while all is well. Forbidden and NotFound mean: not in
        this cluster.
        """
        self.poison: dict[Key, Poison] = {}
        """Objects that exist but cannot be read, and are therefore missing here."""
        self._connection = connection
        self._kind = kind
        self._project = project
        self._select: dict[str, Any] = {
            "namespace": namespace,
            "label_selector": label_selector,
            "field_selector": field_selector,
            "metadata_only": metadata_only,
        }
        self._page = page
        self._pace = pace
        self._clock = clock
        self._sleep = sleep
        self._entries: dict[Key, _Entry] = {}
        self._handlers: list[Handler[T]] = []
        self._round = 0
        self._version = ""
        self._synced = asyncio.Event()
        self._confirmed: float | None = None

    def __getitem__(self, key: Key) -> T:
        record: T = self._entries[key].record
        return record

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> ValuesView[T]:
        return _Records(self, self._entries)

    @property
    def synced(self) -> bool:
        """Has a whole list been read? It stays True: an old copy is served while the server is away."""
        return self._synced.is_set()

    @property
    def age(self) -> float:
        """Seconds since the server last confirmed this copy (list, event, bookmark); a live one stays below
        ~70.
        """
        return float("inf") if self._confirmed is None else self._clock() - self._confirmed

    async def wait_synced(self, timeout: float) -> None:  # noqa: ASYNC109 - its expiry is an error with a reason
        """Wait for the first whole list; ``CacheNotSyncedError`` says what stood in the way."""
        try:
            async with asyncio.timeout(timeout):
                await self._synced.wait()
        except TimeoutError:
            why = f": {self.last_error}" if self.last_error else ""
            raise CacheNotSyncedError(
                f"no list of {self.resource} within {timeout:g} s{why}"
            ) from self.last_error

    def subscribe(self, handler: Handler[T]) -> None:
        """Call *handler* with every change from now on, and at once with all that is here."""
        self._handlers.append(handler)
        for entry in list(self._entries.values()):
            self._call(handler, None, entry.record)

    async def run(self) -> None:
        """Follow the server until cancelled."""
        resume, relist = _backoff(self._pace.resume), _backoff(self._pace.relist)
        while True:
            started, events = self._clock(), self.counters.events
            try:
                if not self._version:
                    await self._list()
                    started = self._clock()
                await self._follow()
                self.last_error = None
            except ClusterError as error:
                self._failed(error)
            except Exception as error:
                logger.exception("%s: the copy is read afresh after an unexpected error", self.resource)
                self._version = ""
                self._failed(ClusterError(f"unexpected {type(error).__name__}: {error}"))
            lived = self._clock() - started
            if lived >= self._pace.settled:
                resume.reset()
            if lived >= 6 * self._pace.settled:
                relist.reset()
            delay = (resume if self._version else relist).delay()
            if self._version and self.last_error is None:
                if lived >= self._pace.settled:  # the ordinary end of a watch
                    delay = random.uniform(0.0, 0.1)
                elif self.counters.events > events:
                    delay = min(delay, 1.0)
            elif isinstance(self.last_error, StatusError) and self.last_error.retry_after is not None:
                delay = max(delay, self.last_error.retry_after * random.uniform(1.0, 1.2))
            await self._sleep(delay)

    def _failed(self, error: ClusterError) -> None:
        self.counters.errors += 1
        if isinstance(error, Gone):
            self._version = ""
        if type(error) is not type(self.last_error):  # once, not every minute of an outage
            logger.warning("%s: %s", self.resource, error)
        self.last_error = error

    async def _list(self) -> None:
        self.counters.lists += 1
        self._round += 1
        version = ""
        listing = pages(
            self._connection,
            self.resource,
            kind=self._kind,
            limit=self._page,
            retry=False,
            **self._select,
        )
        async with contextlib.aclosing(listing):
            async for page in listing:
                version = page.version
                for found in page.items:
                    self._store(found)
                for poison in page.poison:
                    self._quarantine(poison)
        for key in [key for key, entry in self._entries.items() if entry.round != self._round]:
            self._drop(key)
        self._version = version
        self._confirmed = self._clock()
        self.last_error = None
        self._synced.set()

    async def _follow(self) -> None:
        self.counters.watches += 1
        events = watching.watch(
            self._connection,
            self.resource,
            kind=self._kind,
            version=self._version,
            inactivity=self._pace.inactivity,
            **self._select,
        )
        async with contextlib.aclosing(events):
            async for event in events:
                self._confirmed = self._clock()
                self.last_error = None
                if event.type == watching.BOOKMARK:
                    self._advance(event.object)
                    continue
                self.counters.events += 1
                found = event.object
                if isinstance(found, Poison):
                    self._quarantine(found)
                    self._drop((found.namespace, found.name))
                    self._advance(found.version)
                    continue
                metadata = found.metadata
                if event.type == watching.DELETED:
                    key = (metadata.namespace, metadata.name)
                    self.poison.pop(key, None)
                    self._drop(key)
                else:
                    self._store(found)
                self._version = metadata.resource_version or self._version

    def _advance(self, version: str) -> None:
        if version.isdigit() and self._version.isdigit() and int(version) < int(self._version):
            raise Gone("the server's store went back in time (restored from a backup?)")
        self._version = version or self._version

    def _store(self, found: O) -> None:
        metadata = found.metadata
        key = (sys.intern(metadata.namespace), metadata.name)
        entry = self._entries.get(key)
        if entry is not None and entry.uid == metadata.uid and entry.version == metadata.resource_version:
            entry.round = self._round
            return
        try:
            record = self._project(found)
        except Exception as error:
            self._quarantine(Poison(*key, metadata.resource_version, f"{type(error).__name__}: {error}"))
            self._drop(key)
            return
        self.poison.pop(key, None)
        if record is None:
            self._drop(key)
            return
        if entry is not None and entry.uid != metadata.uid:  # deleted and made anew while we looked away
            self._drop(key)
            entry = None
        old = None
        if entry is None:
            self._entries[key] = _Entry(record, metadata.uid, metadata.resource_version, self._round)
        else:
            old = entry.record
            entry.record, entry.version, entry.round = record, metadata.resource_version, self._round
        self._tell(old, record)

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._tell(entry.record, None)

    def _quarantine(self, poison: Poison) -> None:
        key = (poison.namespace, poison.name)
        self.counters.poison += 1
        if self.poison.get(key) != poison:
            logger.warning("%s %s is left out, it cannot be read: %s", self.resource, poison, poison.problem)
        self.poison[key] = poison

    def _tell(self, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            self._call(handler, old, new)

    def _call(self, handler: Handler[T], old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except Exception:
            self.counters.errors += 1
            logger.exception("%s: a subscriber failed", self.resource)


class _Records(ValuesView[T]):
    """The records without a look-up for each."""

    def __init__(self, mapping: Mapping[Key, T], entries: dict[Key, _Entry]) -> None:
        super().__init__(mapping)
        self._records = entries

    def __iter__(self) -> Iterator[T]:
        return (entry.record for entry in self._records.values())


def _backoff(waits: tuple[float, float]) -> Backoff:
    return Backoff(base=waits[0], cap=waits[1])


def whole(found: O) -> O:
    """The projection that keeps the object as it was read."""
    return found


@contextlib.asynccontextmanager
async def running(*reflectors: Reflector[Any, Any], timeout: float | None = None) -> AsyncIterator[None]:  # noqa: ASYNC109
    """Run *reflectors* while the body runs; with *timeout*, wait for their first lists before it starts."""
    tasks = [
        asyncio.create_task(reflector.run(), name=f"reflector {reflector.resource}")
        for reflector in reflectors
    ]
    try:
        if timeout is not None:
            async with asyncio.TaskGroup() as waiting:
                for reflector in reflectors:
                    waiting.create_task(reflector.wait_synced(timeout))
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


__all__ = [
    "Counters",
    "Handler",
    "Key",
    "Named",
    "Pace",
    "Poison",
    "Reflector",
    "poisoned",
    "running",
    "whole",
]
