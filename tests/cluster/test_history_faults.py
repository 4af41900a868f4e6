"""What goes wrong with Prometheus is noticed, said, survived and mended."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from tests.testbed import history_world as world
from tests.testbed.history_loads import Load, at_once, load
from tests.testbed.prometheus import Prometheus
from tests.testbed.prometheus_proxy import Answer, Asked, PrometheusProxy
from vpa.metrics.history.loading import HistoryError, Progress
from vpa.metrics.history.planning import Limits, Target
from vpa.metrics.prometheus import errors
from vpa.metrics.prometheus.access import Access, AccessError
from vpa.metrics.prometheus.client import Client, Query
from vpa.metrics.settings import History

pytestmark = pytest.mark.prometheus

API = [Target(namespace="other", kind="Deployment", name="api")]
SMALL = Limits(samples=600)
UP = Query.instant("vector(1)", at=1_790_000_000)


def client_of(*addresses: str, timeout: float = 20.0, **access: Any) -> Client:
    whole = Access(addresses=addresses, **access)
    return Client(whole, timeout=timeout, sleep=at_once, jitter=lambda: 0.5)


async def whole_load(prometheus: Prometheus, now: float) -> Load:
    async with client_of(prometheus.url) as client:
        return await load(client, now)


# Credentials


async def test_a_token_is_sent_and_read_anew_when_it_has_rotated(
    prometheus: Prometheus, history_now: float, tmp_path: Path
) -> None:
    """Field case 39."""
    file = tmp_path / "token"
    file.write_text("first\n")
    flags = History(prometheus_bearer_token_file=str(file))
    with PrometheusProxy(prometheus.url, token="first") as proxy:
        access = Access.from_flags(flags)

        def rotate(progress: Progress) -> None:
            if progress.done == 3:
                proxy.token = "second"
                file.write_text("second\n")

        async with client_of(proxy.url, token_file=access.token_file) as client:
            found = await load(client, history_now, limits=SMALL, watch=rotate)
    assert found.progress.problems == []
    assert found.all_points() == (await whole_load(prometheus, history_now)).all_points()
    assert {one.headers["Authorization"] for one in proxy.asked} == {"Bearer first", "Bearer second"}


async def test_a_wrong_token_is_said_with_query_and_address(prometheus: Prometheus) -> None:
    with PrometheusProxy(prometheus.url, token="right") as proxy:
        async with client_of(proxy.url, token="wrong") as client:
            with pytest.raises(errors.RefusedError) as caught:
                await client.ask(UP)
    assert str(caught.value) == (
        f"Prometheus query 'vector(1)' at 2026-09-21T14:13:20Z at {proxy.url}: "
        "401 Unauthorized: Unauthorized; check the token or password, and that its owner may query there"
    )


async def test_a_token_file_that_cannot_be_read_is_said_at_start(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"the bearer token file .*nowhere cannot be read: No such file"):
        Access.from_flags(History(prometheus_bearer_token_file=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("flags", "header"),
    [
        ({"username": "user", "password": "password"}, "Basic dXNlcjpwYXNzd29yZA=="),
        ({"username": "u", "password": "p", "prometheus_bearer_token": "t"}, "Bearer t"),
        ({"username": "u"}, None),
        ({}, None),
    ],
)
async def test_credentials_go_as_upstreams_flags_say(
    prometheus: Prometheus, flags: dict[str, Any], header: str | None
) -> None:
    with PrometheusProxy(prometheus.url) as proxy:
        access = Access.from_flags(History(prometheus_address=proxy.url, **flags))
        async with Client(access) as client:
            await client.ask(UP)
    assert proxy.asked[0].headers.get("Authorization") == header


async def test_further_headers_and_no_compression_are_asked_for(prometheus: Prometheus) -> None:
    with PrometheusProxy(prometheus.url) as proxy:
        async with client_of(proxy.url, headers={"X-Scope-OrgID": "team"}) as client:
            await client.ask(UP)
    asked = proxy.asked[0]
    assert asked.headers["X-Scope-OrgID"] == "team"
    assert asked.headers["Accept-Encoding"] == "identity"
    assert "Cache-Control" not in asked.headers
    assert (asked.method, asked.path) == ("POST", "/api/v1/query")


async def test_certificates_are_verified_by_the_given_authority_and_shown_when_asked(
    prometheus: Prometheus, tmp_path: Path
) -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED
    ours = authority.issue_cert("client.example")
    ca, certificate, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(str(ca))
    ours.cert_chain_pems[0].write_to_path(str(certificate))
    ours.private_key_pem.write_to_path(str(key))
    files: dict[str, Any] = {"client_cert_file": str(certificate), "client_key_file": str(key)}
    with PrometheusProxy(prometheus.url, tls=server) as proxy:
        async with client_of(proxy.url, ca_file=str(ca), **files) as client:
            assert (await client.ask(UP)).size > 0
        async with client_of(proxy.url, insecure=True, **files) as client:
            assert (await client.ask(UP)).size > 0
        async with client_of(proxy.url, **files) as client:
            with pytest.raises(errors.UnreachableError, match="certificate verify failed"):
                await client.ask(UP)
        async with client_of(proxy.url, ca_file=str(ca)) as client:
            with pytest.raises(errors.UnreachableError):
                await client.ask(UP)


async def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nonsense")
    with pytest.raises(AccessError, match=r"ca\.pem.*cannot be used"):
        async with client_of("https://127.0.0.1:1", ca_file=str(tmp_path / "ca.pem")):
            pass


# Servers that are away, slow, or of another opinion


async def test_a_prometheus_that_is_down_at_start_is_tried_again_until_it_answers(
    another_prometheus: Callable[..., Prometheus], prometheus: Prometheus, history_now: float
) -> None:
    down = another_prometheus()
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            await asyncio.to_thread(down.start)
            await asyncio.to_thread(down.wait_until_ready)
            for breaker in client.breakers.values():
                breaker.rests_until = 0.0

    async with client_of(down.url) as client:
        found = await load(client, history_now, sleep=wait)
    assert waits == [10.0, 20.0, 40.0, 80.0]
    assert found.progress.waiting == 0
    assert "Cannot connect to host" in found.progress.problems[0]
    assert "it is tried again" in found.progress.problems[0]
    assert found.all_points() == (await whole_load(prometheus, history_now)).all_points()


async def test_a_prometheus_that_is_killed_in_the_middle_costs_only_what_was_missing(
    another_prometheus: Callable[..., Prometheus], prometheus: Prometheus, history_now: float
) -> None:
    server = another_prometheus()
    server.start()
    await asyncio.to_thread(server.wait_until_ready)
    killed_at = 0

    def kill(progress: Progress) -> None:
        nonlocal killed_at
        if progress.done >= 5 and not killed_at:
            killed_at = progress.done
            server.kill()

    async def wait(seconds: float) -> None:
        if not server.running:
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(server.wait_until_ready)
        for breaker in client.breakers.values():
            breaker.rests_until = 0.0

    async with client_of(server.url) as client:
        found = await load(client, history_now, limits=SMALL, watch=kill, sleep=wait)
    assert killed_at
    assert found.progress.problems
    assert found.progress.done == found.progress.pieces
    assert found.all_points() == (await whole_load(prometheus, history_now)).all_points()


async def test_a_slow_answer_is_asked_for_in_smaller_pieces(
    prometheus: Prometheus, history_now: float
) -> None:
    def delay(asked: Asked) -> float:
        if asked.path != "/api/v1/query_range":
            return 0.0
        points = (int(asked.form["end"]) - int(asked.form["start"])) // 3600 + 1
        return 5.0 if points > 60 else 0.0

    with PrometheusProxy(prometheus.url, delay=delay) as proxy:
        async with client_of(proxy.url, timeout=1.5) as client:
            found = await load(client, history_now)
    assert client.statistics.errors["TimedOutError"] > 0
    assert found.progress.waiting == 0
    assert found.all_points() == (await whole_load(prometheus, history_now)).all_points()


async def test_an_answer_that_never_comes_says_how_long_was_waited(prometheus: Prometheus) -> None:
    with PrometheusProxy(prometheus.url, delay=lambda asked: 5.0) as proxy:
        async with client_of(proxy.url, timeout=0.3) as client:
            with pytest.raises(errors.TimedOutError) as caught:
                await client.ask(UP)
    assert "no answer within 0.3 s" in str(caught.value)
    assert "--prometheus-query-timeout" in str(caught.value)
    assert proxy.url in str(caught.value)


async def test_a_server_that_knows_no_post_is_asked_with_get(
    prometheus: Prometheus, history_now: float
) -> None:
    def no_post(asked: Asked) -> Answer | None:
        return (405, {}, b"") if asked.method == "POST" else None

    with PrometheusProxy(prometheus.url, before=no_post) as proxy:
        async with client_of(proxy.url) as client:
            found = await load(client, history_now, targets=API)
    assert found.loaded()["api"].points["cpu"] == 192
    methods = [one.method for one in proxy.asked]
    assert methods.count("POST") == 1, "it is remembered"


async def test_a_passing_error_is_tried_again_and_a_wrong_query_is_not(prometheus: Prometheus) -> None:
    answers: list[Answer] = [(502, {}, b"bad gateway"), (429, {}, b"slow down")]
    with PrometheusProxy(prometheus.url, before=lambda asked: answers.pop(0) if answers else None) as proxy:
        async with client_of(proxy.url) as client:
            await client.ask(UP)
            assert len(proxy.asked) == 3
            with pytest.raises(errors.RejectedError, match="parse error"):
                await client.ask(Query.instant("sum(", at=1))
            assert len(proxy.asked) == 4


async def test_the_next_address_answers_where_the_first_is_dead_and_the_dead_one_is_left_in_peace(
    prometheus: Prometheus, history_now: float
) -> None:
    with PrometheusProxy(prometheus.url, before=lambda asked: (503, {}, b"dead")) as dead:
        async with client_of(dead.url, prometheus.url) as client:
            found = await load(client, history_now, limits=SMALL)
    assert found.all_points() == (await whole_load(prometheus, history_now)).all_points()
    assert len(dead.asked) < 25, "the circuit breaker opened after a few queries of three attempts"
    assert client.breakers[dead.url].last_error.startswith("503")
    assert client.breakers[prometheus.url].failures == 0


async def test_when_no_address_answers_all_are_named() -> None:
    async with client_of("http://127.0.0.1:9", "http://127.0.0.1:10") as client:
        with pytest.raises(errors.NoAddressError) as caught:
            await client.ask(UP)
    assert "http://127.0.0.1:9: Cannot connect" in str(caught.value)
    assert "http://127.0.0.1:10: Cannot connect" in str(caught.value)


async def test_what_is_no_prometheus_is_named_as_such(prometheus: Prometheus) -> None:
    with PrometheusProxy(prometheus.url, before=lambda asked: (200, {}, b"<html>login</html>")) as proxy:
        async with client_of(proxy.url) as client:
            with pytest.raises(errors.GarbledError, match="is the address right"):
                await client.ask(UP)


async def test_an_answer_beyond_all_bounds_is_not_read_to_its_end(prometheus: Prometheus) -> None:
    with PrometheusProxy(prometheus.url, before=lambda asked: (200, {}, b"x" * (4 << 20))) as proxy:
        access = Access(addresses=(proxy.url,))
        async with Client(access, largest_answer=1 << 20) as client:
            with pytest.raises(errors.TooMuchError, match="larger than 1 MiB"):
                await client.ask(UP)


# Answers from which something is missing


def without_points(answer: Answer, warning: str = "") -> Answer:
    """The answer without its second half of series, and perhaps with a warning."""
    status, headers, body = answer
    content = msgspec.json.decode(body)
    result = content["data"]["result"]
    del result[len(result) // 2 :]
    if warning:
        content["warnings"] = [warning]
    return status, headers, msgspec.json.encode(content)


async def test_an_answer_with_a_warning_is_asked_for_at_the_next_address(
    prometheus: Prometheus, history_now: float
) -> None:
    def partly(asked: Asked, answer: Answer) -> Answer:
        return (
            without_points(answer, "No StoreAPIs matched") if asked.path.endswith("query_range") else answer
        )

    with PrometheusProxy(prometheus.url, after=partly) as proxy:
        async with client_of(proxy.url, prometheus.url) as client:
            found = await load(client, history_now)
    doubts = found.progress.doubts
    assert doubts.said["No StoreAPIs matched"] == doubts.answers == doubts.mended == 4
    assert found.all_points() == (await whole_load(prometheus, history_now)).all_points()


async def test_pods_that_must_be_there_and_are_not_are_asked_for_at_the_next_address(
    prometheus: Prometheus, history_now: float
) -> None:
    def partly(asked: Asked, answer: Answer) -> Answer:
        return without_points(answer) if asked.path.endswith("query_range") else answer

    with PrometheusProxy(prometheus.url, after=partly) as proxy:
        async with client_of(proxy.url, prometheus.url) as client:
            found = await load(client, history_now)
    assert found.progress.doubts.said["series of known pods are missing"] >= 2
    newest = found.batches[0]
    assert {one.pod for one in newest.containers} == {pod.name for pod in world.PODS if pod.live}


async def test_an_empty_answer_where_pods_run_is_not_believed_at_once(
    prometheus: Prometheus, history_now: float
) -> None:
    empty = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
    lies = 3

    def hidden(asked: Asked, answer: Answer) -> Answer:
        nonlocal lies
        if asked.path.endswith("query_range") and lies > 0:
            lies -= 1
            return 200, {}, empty
        return answer

    with PrometheusProxy(prometheus.url, after=hidden) as proxy:
        async with client_of(proxy.url) as client:
            found = await load(client, history_now)
    assert found.progress.doubts.said["the answer is empty"] >= 2
    assert found.progress.tries > 1
    newest = found.batches[0]
    assert len(newest.containers) >= 8


async def test_an_empty_answer_is_believed_in_the_end(prometheus: Prometheus, history_now: float) -> None:
    empty = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
    with PrometheusProxy(prometheus.url, after=lambda asked, answer: (200, {}, empty)) as proxy:
        async with client_of(proxy.url) as client:
            found = await load(client, history_now)
    assert found.progress.waiting == 0
    assert all(one.words() == "Prometheus has no history of its pods" for one in found.loaded().values())


async def test_owner_metrics_that_cannot_be_had_leave_labels_and_names(
    prometheus: Prometheus, history_now: float
) -> None:
    def no_owners(asked: Asked) -> Answer | None:
        query = asked.form["query"]
        return (403, {}, b"no") if "kube_" in query else None

    with PrometheusProxy(prometheus.url, before=no_owners) as proxy:
        async with client_of(proxy.url) as client:
            found = await load(client, history_now)
    assert sorted(found.loaded()["web"].pods.values()) == ["cluster", "cluster", "name", "name", "name"]
    assert any("403" in problem for problem in found.progress.problems)


async def test_under_upstream_the_first_error_voids_everything(
    prometheus: Prometheus, history_now: float
) -> None:
    def no_memory(asked: Asked) -> Answer | None:
        return (503, {}, b"no") if "memory" in asked.form["query"] else None

    flags = ("--compatibility=upstream", "--history-preset=cadvisor")
    with PrometheusProxy(prometheus.url, before=no_memory) as proxy:
        async with client_of(proxy.url) as client:
            with pytest.raises(
                HistoryError,
                match="cannot get usage history: cannot get timeseries for memory: Prometheus query",
            ):
                await load(client, history_now, *flags)


async def test_what_will_never_be_answered_is_given_up_and_counted(
    prometheus: Prometheus, history_now: float
) -> None:
    def no_memory(asked: Asked) -> Answer | None:
        refused = asked.path.endswith("query_range") and "memory" in asked.form["query"]
        return (422, {}, b'{"status":"error","errorType":"execution","error":"no"}') if refused else None

    with PrometheusProxy(prometheus.url, before=no_memory) as proxy:
        async with client_of(proxy.url) as client:
            found = await load(client, history_now)
    assert (found.progress.lost, found.progress.waiting) == (2, 0)
    assert found.loaded()["db"].points == {"cpu": 192, "memory": 0}
    assert "422" in found.progress.problems[0]


async def test_a_load_that_is_cancelled_leaves_nothing_behind(
    another_prometheus: Callable[..., Prometheus], history_now: float
) -> None:
    down = another_prometheus()
    before = asyncio.all_tasks()
    async with client_of(down.url) as client:
        running = asyncio.create_task(load(client, history_now, sleep=lambda _: asyncio.sleep(3600)))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert asyncio.all_tasks() == before
