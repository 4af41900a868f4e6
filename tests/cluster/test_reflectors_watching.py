"""Copies of a real collection through a proxy that misbehaves: nothing lost, nothing invented."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.clients import QUICK, change, connect, listed, make, operator, until, versions
from tests.testbed.cluster import Cluster
from tests.testbed.faults import FaultProxy
from vpa.cluster import errors, watching
from vpa.cluster.connection import Connection
from vpa.cluster.reflectors import Pace, Reflector, running, whole
from vpa.cluster.resources import CONFIG_MAPS, EVENTS
from vpa.cluster.writes import delete
from vpa.objects.meta import PartialObject

CONFIG_MAP_LISTS = "*/configmaps"
GONE = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"}


@pytest.fixture
async def direct(cluster: Cluster) -> AsyncIterator[Connection]:
    """Straight to the server: what really happens."""
    async with await connect(cluster) as opened:
        yield opened


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[FaultProxy]:
    with cluster.fault_proxy() as started:
        yield started


@pytest.fixture
async def connection(cluster: Cluster, proxy: FaultProxy) -> AsyncIterator[Connection]:
    """Through the proxy: what the reflector sees."""
    async with await connect(cluster, proxy.url) as opened:
        yield opened


async def equal(copy: Reflector[Any, str], direct: Connection, namespace: str) -> None:
    """Wait until *copy* is what a fresh list says."""
    fresh = await listed(direct, namespace)
    await until(lambda: dict(copy.items()) == fresh, f"{dict(copy.items())} == {fresh}")


def lists(proxy: FaultProxy) -> int:
    return proxy.count(path=CONFIG_MAP_LISTS, method="GET", watch=False)


def watches(proxy: FaultProxy) -> int:
    return proxy.count(path=CONFIG_MAP_LISTS, watch=True)


async def test_what_is_there_and_what_comes_later_is_told_in_order(
    connection: Connection, direct: Connection, namespace: str
) -> None:
    await make(direct, namespace, "a")
    copy = versions(connection, namespace)
    told: list[tuple[bool, bool]] = []
    copy.subscribe(lambda old, new: told.append((old is not None, new is not None)))
    async with running(copy, timeout=10):
        assert copy.synced
        assert list(copy) == [(namespace, "a")]
        await change(direct, namespace, "a", x="1")
        await until(lambda: len(told) == 2, "the change")
        await delete(direct, CONFIG_MAPS, "a", namespace=namespace)
        await until(lambda: len(told) == 3, "the deletion")
    assert told == [(False, True), (True, True), (True, False)]
    assert len(copy) == 0


async def test_a_late_subscriber_is_told_what_is_there(connection: Connection, namespace: str) -> None:
    await make(connection, namespace, "a")
    copy = versions(connection, namespace)
    async with running(copy, timeout=10):
        told: list[str | None] = []
        copy.subscribe(lambda old, new: told.append(new))
        assert told == [copy[namespace, "a"]]


async def test_a_failing_subscriber_stops_neither_the_copy_nor_the_others(
    connection: Connection, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    copy = versions(connection, namespace)
    told: list[str | None] = []

    def fail(old: str | None, new: str | None) -> None:
        raise RuntimeError("a bug")

    copy.subscribe(fail)
    copy.subscribe(lambda old, new: told.append(new))
    async with running(copy, timeout=10):
        await make(connection, namespace, "a")
        await until(lambda: told, "the other subscriber")
    assert "a subscriber failed" in caplog.text


async def test_410_as_an_error_event_leads_to_one_fresh_list(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    line = json.dumps({"type": "ERROR", "object": GONE}) + "\n"
    proxy.answer(200, body=line, watch=True, count=1)
    copy = versions(connection, namespace)
    async with running(copy, timeout=10):
        await until(lambda: lists(proxy) == 2, "a fresh list")
        await make(direct, namespace, "a")
        await equal(copy, direct, namespace)
    assert lists(proxy) == 2


async def test_410_as_an_answer_leads_to_one_fresh_list(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    proxy.answer(410, watch=True, count=1)
    copy = versions(connection, namespace)
    async with running(copy, timeout=10):
        await until(lambda: lists(proxy) == 2, "a fresh list")
        await make(direct, namespace, "a")
        await equal(copy, direct, namespace)


async def test_410_after_every_event_does_not_make_lists_as_quick_as_events(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    line = json.dumps({"type": "ERROR", "object": GONE}) + "\n"
    proxy.answer(200, body=line, watch=True)
    copy = versions(connection, namespace)
    async with running(copy, timeout=10):
        await asyncio.sleep(3.0)
    assert 3 <= lists(proxy) <= 9  # waits of 0.1–0.2, 0.2–0.4, 0.4–0.8, then 0.5–1 s


@pytest.mark.parametrize(
    ("code", "body"), [(500, None), (502, "<html>\n<body>\nBad gateway\n</html>\n"), (403, None), (429, None)]
)
async def test_a_refused_watch_is_tried_again_ever_more_slowly_from_the_same_version(
    connection: Connection,
    direct: Connection,
    proxy: FaultProxy,
    namespace: str,
    code: int,
    body: str | None,
) -> None:
    copy = versions(connection, namespace)
    proxy.answer(code, body=body, watch=True)
    async with running(copy, timeout=10):
        await asyncio.sleep(1.5)
        assert isinstance(copy.last_error, errors.StatusError)
        assert copy.last_error.code == code
        assert 3 <= watches(proxy) <= 12
        assert copy.synced
        await make(direct, namespace, "a")
        proxy.heal()
        await equal(copy, direct, namespace)
        assert copy.last_error is None
    assert lists(proxy) == 1
    assert len({seen.query["resourceVersion"] for seen in proxy.requests if seen.watch}) == 1


async def test_retry_after_is_obeyed(connection: Connection, proxy: FaultProxy, namespace: str) -> None:
    copy = versions(connection, namespace)
    proxy.answer(429, retry_after=1, watch=True, count=2)
    async with running(copy, timeout=10):
        await until(lambda: watches(proxy) == 3, "the third try")
    times = [seen.at for seen in proxy.requests if seen.watch]
    assert all(later - earlier >= 1.0 for earlier, later in itertools.pairwise(times))


async def test_a_watch_that_is_closed_at_once_is_not_reopened_at_once(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    copy = versions(connection, namespace)
    proxy.answer(200, body="", watch=True)
    async with running(copy, timeout=10):
        await asyncio.sleep(2.0)
        assert 4 <= watches(proxy) <= 14
        proxy.heal()
        await make(direct, namespace, "a")
        await equal(copy, direct, namespace)
    assert lists(proxy) == 1


async def test_a_connection_cut_in_the_middle_of_a_line_is_resumed_from_the_last_event(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    copy = versions(connection, namespace)
    proxy.cut(watch=True, after_lines=1, count=2)
    async with running(copy, timeout=10):
        for number in range(6):
            await make(direct, namespace, f"c{number}")
        await equal(copy, direct, namespace)
    assert lists(proxy) == 1
    assert watches(proxy) == 3
    assert copy.counters.poison == 0


async def test_a_clean_end_in_the_middle_of_a_line_is_resumed_and_the_half_line_dropped(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    copy = versions(connection, namespace)
    proxy.cut(watch=True, after_lines=1, clean=True, count=2)
    async with running(copy, timeout=10):
        for number in range(6):
            await make(direct, namespace, f"c{number}")
        await equal(copy, direct, namespace)
    assert lists(proxy) == 1
    assert copy.counters.poison == 0


async def test_a_silent_connection_is_given_up_and_resumed(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    copy = versions(connection, namespace, pace=replace(QUICK, inactivity=0.5))
    proxy.stall(watch=True, count=1)
    async with running(copy, timeout=10):
        await until(lambda: watches(proxy) == 1, "the watch")
        await make(direct, namespace, "a")
        started = time.monotonic()
        await equal(copy, direct, namespace)
        assert time.monotonic() - started < 3.0
    assert lists(proxy) == 1


async def test_a_kind_without_bookmarks_may_be_silent_for_longer(
    direct: Connection, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing happens in a quiet cluster, and that is no trouble to tell of each minute."""
    pace = replace(QUICK, inactivity=0.1)
    copy = Reflector(direct, EVENTS, kind=PartialObject, project=whole, namespace=namespace, pace=pace)
    async with running(copy, timeout=10):
        await asyncio.sleep(0.6)
    assert (copy.counters.watches, copy.counters.errors) == (1, 0)
    assert not caplog.records


async def test_the_age_grows_while_nothing_is_heard_and_falls_back_with_news(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    copy = versions(connection, namespace)
    assert copy.age == float("inf")
    async with running(copy, timeout=10):
        await asyncio.sleep(0.6)
        assert 0.5 < copy.age < 3.0
        await make(direct, namespace, "a")
        await equal(copy, direct, namespace)
        assert copy.age < 0.5


async def test_bookmarks_move_the_version_on(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    made = await make(direct, namespace, "a")
    mark = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "999999999"}}
    proxy.answer(200, body=json.dumps({"type": "BOOKMARK", "object": mark}) + "\n", watch=True, count=1)
    copy = versions(connection, namespace)
    async with running(copy, timeout=10):
        await until(lambda: watches(proxy) >= 2, "the second watch")
        assert dict(copy.items()) == {(namespace, "a"): made.metadata.resource_version}
    asked = [seen.query["resourceVersion"] for seen in proxy.requests if seen.watch]
    assert asked[1] == "999999999"


async def test_a_store_that_went_back_in_time_is_listed_afresh(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    mark = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
    proxy.answer(200, body=json.dumps({"type": "BOOKMARK", "object": mark}) + "\n", watch=True, count=1)
    copy = versions(connection, namespace)
    async with running(copy, timeout=10):
        await until(lambda: lists(proxy) == 2, "a fresh list")
        await make(direct, namespace, "a")
        await equal(copy, direct, namespace)


async def test_the_server_s_own_end_of_a_watch_is_resumed_without_a_list(
    connection: Connection,
    direct: Connection,
    proxy: FaultProxy,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "SERVER_TIMEOUT", (1, 1))
    copy = versions(connection, namespace, pace=replace(QUICK, settled=0.5))
    async with running(copy, timeout=10):
        made = await make(direct, namespace, "a")
        await until(lambda: watches(proxy) == 3, "the third watch")
        await make(direct, namespace, "b")
        await equal(copy, direct, namespace)
    assert lists(proxy) == 1
    asked = [int(seen.query["resourceVersion"]) for seen in proxy.requests if seen.watch]
    assert asked[0] < int(made.metadata.resource_version) <= asked[1]


async def test_an_expired_page_starts_the_list_again(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    for number in range(5):
        await make(direct, namespace, f"c{number}")
    proxy.answer(410, path=CONFIG_MAP_LISTS, query={"continue": "?*"}, count=1)
    copy = versions(connection, namespace, page=2)
    async with running(copy, timeout=10):
        await equal(copy, direct, namespace)
    assert copy.counters.lists == 2


async def test_objects_that_were_deleted_while_we_looked_away_are_dropped_by_the_next_list(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    for name in ("gone", "kept", "renewed"):
        await make(direct, namespace, name)
    copy = versions(connection, namespace)
    told: list[tuple[bool, bool]] = []
    async with running(copy, timeout=10):
        copy.subscribe(lambda old, new: told.append((old is not None, new is not None)))
        told.clear()
        proxy.answer(410, watch=True)
        proxy.break_connections()
        await until(lambda: copy.last_error is not None, "the lost watch")
        for name in ("gone", "renewed"):
            await delete(direct, CONFIG_MAPS, name, namespace=namespace)
        await make(direct, namespace, "renewed")
        await make(direct, namespace, "new")
        proxy.heal()
        await equal(copy, direct, namespace)
    # gone: deleted; renewed: another object of its name, so deleted and added; new: added; kept: not a word
    assert sorted(told) == [(False, True), (False, True), (True, False), (True, False)]


async def test_a_list_that_fails_leaves_the_old_copy_in_use(
    connection: Connection, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    await make(direct, namespace, "a")
    copy = versions(connection, namespace)
    async with running(copy, timeout=10):
        proxy.answer(500)
        proxy.answer(410, watch=True)
        proxy.break_connections()
        await until(lambda: isinstance(copy.last_error, errors.ServerError), "the outage")
        assert list(copy) == [(namespace, "a")]
        assert copy.synced


async def test_a_copy_that_cannot_be_had_says_why(cluster: Cluster, namespace: str) -> None:
    account = await asyncio.to_thread(cluster.service_account, namespace, "nobody")
    async with await Connection.open(kubeconfig=str(account.kubeconfig)) as connection:
        copy = versions(connection, namespace)
        async with running(copy):
            with pytest.raises(
                errors.CacheNotSyncedError, match=r"no list of configmaps within 0\.5 s: .*cannot list"
            ):
                await copy.wait_synced(0.5)
        assert isinstance(copy.last_error, errors.Forbidden)
        assert not copy.synced


async def test_a_token_rotated_in_the_middle_of_a_watch_is_used_for_the_next_one(
    cluster: Cluster, direct: Connection, proxy: FaultProxy, namespace: str
) -> None:
    account = await asyncio.to_thread(operator, cluster)
    async with await Connection.open(kubeconfig=str(account.kubeconfig_to(proxy.url)), qps=0) as connection:
        copy = versions(connection, namespace)
        async with running(copy, timeout=10):
            await asyncio.to_thread(account.rotate)
            proxy.answer(401, watch=True, count=1)  # the old token has expired
            proxy.break_connections()
            await make(direct, namespace, "a")
            await equal(copy, direct, namespace)
        assert lists(proxy) == 1
        assert [seen.status for seen in proxy.requests if seen.watch][-2:] == [401, 200]


async def test_stopping_leaves_nothing_behind(
    connection: Connection, proxy: FaultProxy, namespace: str
) -> None:
    before = asyncio.all_tasks()
    copies = [versions(connection, namespace) for _ in range(3)]
    started = time.monotonic()
    async with running(*copies, timeout=10):
        proxy.stall()
    assert time.monotonic() - started < 2.0
    assert asyncio.all_tasks() == before


def fault_refuse(proxy: FaultProxy) -> None:
    proxy.refuse()


def fault_drop(proxy: FaultProxy) -> None:
    proxy.drop()


def fault_stall(proxy: FaultProxy) -> None:
    proxy.stall()


def fault_cut(proxy: FaultProxy) -> None:
    proxy.cut()


def fault_close(proxy: FaultProxy) -> None:
    proxy.answer(200, body="", watch=True)


def fault_500(proxy: FaultProxy) -> None:
    proxy.answer(500)


def fault_410(proxy: FaultProxy) -> None:
    proxy.answer(410)


async def test_no_failure_makes_us_hammer_the_server(
    cluster: Cluster, direct: Connection, namespace: str
) -> None:
    """With the real waiting times: at most a handful of requests in the first three seconds of an outage."""
    await make(direct, namespace, "a")

    async def suffer(fault: Callable[[FaultProxy], None]) -> int:
        with cluster.fault_proxy() as proxy:
            async with await connect(cluster, proxy.url) as connection:
                copy = versions(connection, namespace, pace=Pace())
                async with running(copy, timeout=10):
                    before = sum(connection.requests.values())
                    fault(proxy)
                    proxy.break_connections()
                    await asyncio.sleep(3.0)
                    assert list(copy) == [(namespace, "a")]
                    return sum(connection.requests.values()) - before

    faults = (fault_refuse, fault_drop, fault_stall, fault_cut, fault_close, fault_500, fault_410)
    sent = await asyncio.gather(*map(suffer, faults))
    print("requests in 3 s:", dict(zip((fault.__name__ for fault in faults), sent, strict=True)))
    assert max(sent) <= 6
