"""History through a real Trickster: the cache is hit, and what it leaves out is noticed and had."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.history_loads import Load, at_once, load
from tests.testbed.prometheus import Prometheus, Trickster
from vpa.metrics.history.fetching import Fetcher
from vpa.metrics.history.grids import DAY, Grid, history_grid
from vpa.metrics.history.loading import Progress
from vpa.metrics.history.planning import CPU, Limits, Piece
from vpa.metrics.prometheus.access import Access
from vpa.metrics.prometheus.client import Client
from vpa.metrics.prometheus.names import Names
from vpa.metrics.prometheus.queries import Shard
from vpa.rules import preset

pytestmark = pytest.mark.prometheus

HOUR = 3600


FIRST = pytest.param(1, id="1.1.5", marks=[pytest.mark.builds("trickster-1"), pytest.mark.slow])
SECOND = pytest.param(2, id="2")


@pytest.fixture(params=[FIRST, SECOND])
def trickster(prometheus: Prometheus, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Trickster]:
    version: int = request.param
    with Trickster(tmp_path / "trickster", origin=prometheus.url, version=version) as running:
        yield running


async def warm(trickster: Trickster, client: Client, now: float, grid: Grid | None = None) -> Load:
    """Load as often as it takes until everything is in the cache.

    1.1.5 forgets the newer times of a query when older ones are asked for after them, as a load does.
    """
    found = await load(client, now, grid=grid)
    if trickster.name == "trickster-1":
        assert (await load(client, now, grid=grid)).all_points() == found.all_points()
    return found


def client_of(*addresses: str) -> Client:
    return Client(Access(addresses=addresses), timeout=20.0, sleep=at_once, jitter=lambda: 0.5)


async def test_the_second_load_is_all_hits(trickster: Trickster, history_now: float) -> None:
    async with client_of(trickster.url) as client:
        first = await warm(trickster, client, history_now)
        before = trickster.requests()
        async with client_of(trickster.url) as another:
            second = await load(another, history_now)
            after = trickster.requests()
    assert {status: after[status] - before.get(status, 0) for status in after} == {
        **dict.fromkeys(before, 0),
        "hit": second.progress.pieces,
    }
    assert second.all_points() == first.all_points()
    assert first.progress.doubts.answers == 0


async def test_each_later_cycle_fetches_one_step(trickster: Trickster, history_now: float) -> None:
    grid = history_grid(now=history_now - 3 * HOUR, length=7 * DAY, step=HOUR)
    async with client_of(trickster.url) as client:
        await warm(trickster, client, history_now, grid)
        for hours in (1, 2, 3):
            before = trickster.requests()
            later = Grid(grid.start, grid.end + hours * HOUR, HOUR)
            await load(client, history_now, grid=later)
            after = trickster.requests()
            newest = {status: after[status] - before.get(status, 0) for status in after}
            assert newest["phit"] == 2, "one for CPU, one for memory"
            assert newest.get("kmiss", 0) == newest.get("rmiss", 0) == 0


async def test_fast_forwards_point_is_no_point_of_the_grid(
    prometheus: Prometheus, tmp_path: Path, history_now: float
) -> None:
    with Trickster(
        tmp_path / "trickster", origin=prometheus.url, backend={"fast_forward_disable": False}
    ) as trickster:
        async with client_of(trickster.url) as client, client_of(prometheus.url) as direct:
            through = await load(client, history_now)
            assert through.all_points() == (await load(direct, history_now)).all_points()


@pytest.mark.parametrize("with_direct_address", [False, True])
async def test_an_object_size_that_is_too_small_is_noticed_and_smaller_pieces_are_had(
    prometheus: Prometheus, tmp_path: Path, history_now: float, with_direct_address: bool
) -> None:
    with Trickster(
        tmp_path / "trickster", origin=prometheus.url, backend={"max_object_size_bytes": 4096}
    ) as trickster:
        addresses = (trickster.url, prometheus.url) if with_direct_address else (trickster.url,)
        async with client_of(*addresses) as client, client_of(prometheus.url) as direct:
            found = await load(client, history_now)
            whole = await load(direct, history_now)
    assert found.all_points() == whole.all_points()
    assert found.progress.waiting == 0
    assert client.statistics.errors["UnreachableError"] >= 2


async def test_a_range_that_fails_within_a_good_answer_is_had_again(
    prometheus: Prometheus, tmp_path: Path, history_now: float
) -> None:
    """Trickster says 200 and leaves ranges out when any but the first of its fetches is too big."""
    backend = {"max_object_size_bytes": 800, "shard_step": "24h"}
    midnight = int(history_now // DAY - 2) * DAY
    piece = Piece(
        resource=CPU,
        shard=Shard(namespaces=("shop",)),
        grid=Grid(midnight - HOUR, midnight + 22 * HOUR, HOUR),
        series=8,
    )
    with Trickster(tmp_path / "trickster", origin=prometheus.url, backend=backend) as trickster:
        async with client_of(trickster.url) as client, client_of(prometheus.url) as direct:
            fetchers = [Fetcher(one, Names(), preset("safe")) for one in (client, direct)]
            mended, whole = [await fetcher.fetch(piece) for fetcher in fetchers]
    assert sum(len(part.values) for part in mended) == sum(len(part.values) for part in whole)
    doubts = fetchers[0].doubts
    assert doubts.answers == doubts.mended == 1
    assert list(doubts.said) == ["Trickster: status=kmiss, 1 ranges failed"]


async def test_a_connection_that_trickster_breaks_each_time_is_answered_with_smaller_pieces(
    prometheus: Prometheus, tmp_path: Path, history_now: float
) -> None:
    """That is what Trickster does when the first of several fetches is too big."""
    backend = {"max_object_size_bytes": 1500, "shard_max_size_time": "24h"}
    midnight = (history_now // DAY - 2) * DAY
    grid = Grid(int(midnight) - HOUR, int(midnight) + 26 * HOUR, HOUR)
    with Trickster(tmp_path / "trickster", origin=prometheus.url, backend=backend) as trickster:
        async with client_of(trickster.url) as client, client_of(prometheus.url) as direct:

            async def wait(_: float) -> None:
                for breaker in client.breakers.values():
                    breaker.rests_until = 0.0

            found = await load(client, history_now, grid=grid, sleep=wait)
            whole = await load(direct, history_now, grid=grid)
    assert found.all_points() == whole.all_points()
    assert any("Server disconnected" in problem for problem in found.progress.problems)


async def test_a_trickster_that_is_restarted_in_the_middle_costs_nothing(
    trickster: Trickster, prometheus: Prometheus, history_now: float
) -> None:
    restarted = False

    async def wait(_: float) -> None:
        if not trickster.running:
            await asyncio.to_thread(trickster.start)
            await asyncio.to_thread(trickster.wait_until_ready)
        for breaker in client.breakers.values():
            breaker.rests_until = 0.0

    def kill(progress: Progress) -> None:
        nonlocal restarted
        if progress.done >= 5 and not restarted:
            restarted = True
            trickster.kill()

    async with client_of(trickster.url) as client, client_of(prometheus.url) as direct:
        found = await load(client, history_now, limits=Limits(samples=600), watch=kill, sleep=wait)
        whole = await load(direct, history_now)
    assert restarted
    assert found.progress.problems
    assert found.all_points() == whole.all_points()


async def test_a_prometheus_that_is_gone_behind_trickster_is_noticed(
    tmp_path: Path, history_now: float
) -> None:
    """Nobody listens at the origin; the message says what Trickster says."""
    tries = 0

    async def wait(_: float) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise asyncio.CancelledError

    with Trickster(tmp_path / "trickster", origin="http://127.0.0.1:9") as trickster:
        async with client_of(trickster.url) as client:
            problems: list[str] = []

            def keep(progress: Progress) -> None:
                problems[:] = progress.problems

            with pytest.raises(asyncio.CancelledError):
                await load(client, history_now, sleep=wait, watch=keep)
    assert "50" in problems[0]
    assert trickster.url in problems[0]
