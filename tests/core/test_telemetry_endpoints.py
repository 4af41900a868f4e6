"""The HTTP endpoints, asked over a real socket."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from http import HTTPStatus

import aiohttp
import pytest
from prometheus_client.registry import CollectorRegistry

from vpa.durations import Duration
from vpa.telemetry import endpoints
from vpa.telemetry.endpoints import AddressError
from vpa.telemetry.health import Health
from vpa.telemetry.metrics import Counter


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(Duration.of(seconds=5), clock=clock)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_metrics_are_served_as_text_and_compressed_for_those_who_ask(
    session: aiohttp.ClientSession, health: Health
) -> None:
    registry = CollectorRegistry()
    Counter("c", "C.", registry=registry).inc(2)
    async with endpoints.serving(address="127.0.0.1:0", registry=registry, health=health) as port:
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert answer.headers["Content-Encoding"] in ("gzip", "deflate")
            assert await answer.text() == "# HELP c C.\n# TYPE c counter\nc 2\n"
        async with session.get(
            f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "identity"}
        ) as answer:
            assert "Content-Encoding" not in answer.headers


async def test_health_answers_ok_or_says_how_long_the_loop_has_been_silent(
    session: aiohttp.ClientSession, health: Health, clock: Clock
) -> None:
    async with endpoints.serving(address="127.0.0.1:0", registry=CollectorRegistry(), health=health) as port:
        url = f"http://127.0.0.1:{port}/health-check"
        async with session.get(url) as answer:
            assert (answer.status, await answer.text()) == (200, "OK")
        health.start()
        clock.now = 7.0
        async with session.get(url) as answer:
            assert (answer.status, await answer.text()) == (500, "Error: last activity more than 7s ago")


async def test_profiling_is_served_only_when_asked_for(
    session: aiohttp.ClientSession, health: Health
) -> None:
    registry = CollectorRegistry()
    async with (
        endpoints.serving(address="127.0.0.1:0", registry=registry, health=health) as port,
        session.get(f"http://127.0.0.1:{port}/debug/pprof/") as answer,
    ):
        assert answer.status == 404


async def test_a_profile_shows_where_the_loop_spends_its_time(
    session: aiohttp.ClientSession, health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy() -> None:
        while True:
            sum(range(1000))
            await asyncio.sleep(0)

    monkeypatch.setattr(sys, "argv", ["recommender", "--password=hunter2", "--v=4"])
    working = asyncio.create_task(busy(), name="busy work")
    async with endpoints.serving(
        address="127.0.0.1:0", registry=CollectorRegistry(), health=health, profile=True
    ) as port:
        url = f"http://127.0.0.1:{port}/debug/pprof/"
        async with session.get(url) as answer:
            assert "profile?seconds=N" in await answer.text()
        async with session.get(url + "profile?seconds=0.3") as answer:
            stacks = (await answer.text()).splitlines()
        async with session.get(url + "profile?seconds=x") as answer:
            assert answer.status == 400
        async with session.get(url + "tasks") as answer:
            assert "busy work" in await answer.text()
        async with session.get(url + "cmdline") as answer:
            assert await answer.text() == "recommender\0--password=***\0--v=4"
    working.cancel()
    assert any("busy" in stack for stack in stacks)
    assert all(stack.rpartition(" ")[2].isdecimal() for stack in stacks)


async def test_an_address_in_use_is_said_in_one_sentence(health: Health) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressError, match=f"cannot listen on {address}: "):
            async with endpoints.serving(address=address, registry=CollectorRegistry(), health=health):
                pass


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        (":8942", None, 8942),
        ("127.0.0.1:8942", "127.0.0.1", 8942),
        ("[::1]:1", "::1", 1),
        ("localhost:0", "localhost", 0),
    ],
)
def test_addresses_are_written_as_in_go(address: str, host: str | None, port: int) -> None:
    assert endpoints.parse_address(address) == (host, port)


@pytest.mark.parametrize("address", ["", "8942", "host", "host:", ":http", "::1:80", ":70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(AddressError, match="must be host:port or :port"):
        endpoints.parse_address(address)


def test_secrets_among_the_arguments_are_not_shown() -> None:
    assert endpoints.without_secrets(
        ["--username=u", "--password", "p", "--prometheus-bearer-token=t", "--prometheus-headers=a=b", "-v=4"]
    ) == [
        "--username=u",
        "--password",
        "***",
        "--prometheus-bearer-token=***",
        "--prometheus-headers=***",
        "-v=4",
    ]


async def test_with_a_guard_only_the_health_check_is_open_to_everybody(
    session: aiohttp.ClientSession, health: Health
) -> None:
    asked: list[tuple[str, str]] = []

    async def guard(token: str, path: str) -> HTTPStatus:
        asked.append((token, path))
        return HTTPStatus.OK if token == "good" else HTTPStatus.FORBIDDEN

    serving = endpoints.serving(
        address="127.0.0.1:0", registry=CollectorRegistry(), health=health, profile=True, guard=guard
    )
    async with serving as port:
        base = f"http://127.0.0.1:{port}"
        statuses = {}
        for path in ("/health-check", "/metrics", "/debug/pprof/", "/nowhere"):
            for authorization in ("", "Bearer good", "bearer good", "Basic good", "Bearer bad"):
                headers = {"Authorization": authorization} if authorization else {}
                async with session.get(base + path, headers=headers) as answer:
                    statuses[path, authorization] = answer.status
        assert {status for (path, _), status in statuses.items() if path == "/health-check"} == {200}
        for path in ("/metrics", "/debug/pprof/"):
            assert [statuses[path, each] for each in ("Bearer good", "bearer good")] == [200, 200]
            assert [statuses[path, each] for each in ("", "Basic good", "Bearer bad")] == [403, 403, 403]
        assert statuses["/nowhere", ""] == 403, "a stranger does not learn what is served"
    assert {path for _, path in asked} == {"/metrics", "/debug/pprof/", "/nowhere"}
