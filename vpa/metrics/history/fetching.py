"""One piece of a plan → points, whole if it can be had: an answer with something missing is mended."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vpa.metrics.history.planning import Piece, smaller
from vpa.metrics.history.tables import Part, lay
from vpa.metrics.prometheus import decoding
from vpa.metrics.prometheus.client import Client, Query
from vpa.metrics.prometheus.decoding import Matrix
from vpa.metrics.prometheus.errors import GarbledError, PrometheusError
from vpa.metrics.prometheus.names import Names
from vpa.metrics.prometheus.replies import Reply
from vpa.rules import Rules

Expected = Callable[[Piece], int]
"""How many pods must be in the answer to a piece, as far as the cluster knows."""


@dataclass(slots=True)
class Doubts:
    """What was missing from answers."""

    answers: int = 0
    """Answers from which something was missing."""
    mended: int = 0
    """Those of them that were then had whole, or from which more was had."""
    said: dict[str, int] = field(default_factory=dict)
    """What was wrong, in words → how often."""

    def note(self, texts: tuple[str, ...]) -> None:
        """One answer was incomplete for these reasons."""
        self.answers += 1
        for text in texts:
            self.said[text] = self.said.get(text, 0) + 1


@dataclass(frozen=True, slots=True)
class _Outcome:
    part: Part
    reply: Reply
    doubts: tuple[str, ...]


@dataclass(slots=True)
class Fetcher:
    """Sends pieces; learns on the way how much one answer may hold."""

    client: Client
    names: Names
    rules: Rules
    expected: Expected = lambda piece: 0
    doubts: Doubts = field(default_factory=Doubts)
    budget: int = 1 << 40
    """Bytes of an answer that this server is known to refuse; pieces that promise more are cut first."""

    async def fetch(self, piece: Piece) -> list[Part]:
        """The points of *piece*, in parts; a `PrometheusError` when they cannot be had."""
        if piece.expected_bytes >= self.budget and (parts := smaller(piece)):
            return await self._each(parts)
        try:
            outcome = await self._ask(piece)
        except PrometheusError as error:
            parts = smaller(piece) if error.too_much else ()
            if not parts:
                raise
            self._learn(piece)
            return await self._each(parts)
        if not outcome.doubts:
            return [outcome.part]
        self.doubts.note(outcome.doubts)
        return await self._mend(piece, outcome)

    async def _each(self, pieces: tuple[Piece, ...]) -> list[Part]:
        return [part for piece in pieces for part in await self.fetch(piece)]

    def _learn(self, piece: Piece) -> None:
        self.budget = min(self.budget, max(piece.expected_bytes, 1))

    async def _ask(self, piece: Piece, *, skip: tuple[str, ...] = (), fresh: bool = False) -> _Outcome:
        text = piece.text(self.names, peaks=self.rules.history_memory_peaks)
        grid = piece.grid
        query = Query.range(text, start=grid.start, end=grid.end, step=grid.step)
        reply = await self.client.ask(query, skip=skip, fresh=fresh)
        async with self.client.turn:
            matrix = await decoded(reply, query)
            part = lay(matrix, grid=grid, resource=piece.resource, names=self.names, rules=self.rules)
            await asyncio.sleep(0)
        return _Outcome(part, reply, reply.doubts + self._lacks(piece, part))

    def _lacks(self, piece: Piece, part: Part) -> tuple[str, ...]:
        """What the answer itself shows to be missing."""
        lacks = []
        pods = len({(namespace, pod) for namespace, pod, _ in part.keys})
        if pods < self.expected(piece):
            lacks.append("series of known pods are missing" if pods else "the answer is empty")
        if part.holes():
            lacks.append("at some times no container has a point")
        return tuple(lacks)

    async def _mend(self, piece: Piece, first: _Outcome) -> list[Part]:
        """Another address, smaller pieces, a cache that forgets: the best of what these bring."""
        best = first
        if len(self.client.access.addresses) > 1:
            best = await self._better(best, piece, skip=(first.reply.address,))
        trickster = first.reply.trickster
        if best.doubts and trickster is not None:
            if trickster.partial and (parts := smaller(piece)):
                self._learn(piece)
                try:
                    mended = await self._each(parts)
                except PrometheusError:
                    return [best.part]
                if sum(len(part.values) for part in mended) > len(best.part.values):
                    self.doubts.mended += 1
                    return mended
            else:
                best = await self._better(best, piece, fresh=True)
        if best is not first:
            self.doubts.mended += 1
        return [best.part]

    async def _better(
        self, before: _Outcome, piece: Piece, *, skip: tuple[str, ...] = (), fresh: bool = False
    ) -> _Outcome:
        """Ask once more in another way; *before* unless that brings more."""
        try:
            after = await self._ask(piece, skip=skip, fresh=fresh)
        except PrometheusError:
            return before
        return after if len(after.part.values) > len(before.part.values) else before


async def decoded(reply: Reply, query: Query) -> Matrix:
    """The samples of *reply*; lets others run after every few milliseconds of work."""
    parts: list[Matrix] = []
    try:
        for piece in reply.answer.pieces():
            parts.append(piece)
            await asyncio.sleep(0)
    except decoding.DecodeError as error:
        raise GarbledError(query=str(query), address=reply.address, reason=str(error)) from None
    return Matrix.joined(parts)


def pods_expected(known: Mapping[tuple[str, str], float]) -> Expected:
    """Pods that must be in an answer: those of its namespaces that ran before all its times.

    *known*: (namespace, pod) → start in seconds since the epoch, of pods that are running now.
    """
    starts: dict[str, list[float]] = {}
    for (namespace, _), start in known.items():
        starts.setdefault(namespace, []).append(start)
    for some in starts.values():
        some.sort()

    def expected(piece: Piece) -> int:
        if piece.shard.prefixes or piece.shard.excluded or piece.shard.tail:
            return 0
        before = piece.grid.start - piece.grid.step
        return sum(bisect_right(starts.get(name, ()), before) for name in piece.shard.namespaces)

    return expected
