"""Metrics behind authentication: the API server says who may read them."""

from __future__ import annotations

import asyncio
import sys
import urllib.error
import urllib.request
from http import HTTPStatus

import aiohttp
import pytest
from prometheus_client.registry import CollectorRegistry

from tests.testbed import ports
from tests.testbed.accounts import ServiceAccount
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from vpa.cluster.connection import Connection
from vpa.cluster.reviews import Reviews
from vpa.durations import Duration
from vpa.telemetry import endpoints
from vpa.telemetry.health import Health

REVIEWS = [
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
]


@pytest.fixture
def service(cluster: Cluster, namespace: str) -> ServiceAccount:
    """One of our services, with the permissions that the flag needs and no others."""
    account = cluster.service_account(namespace, "service")
    account.grant(REVIEWS)
    return account


@pytest.fixture
def scraper(cluster: Cluster, namespace: str) -> ServiceAccount:
    """Somebody who may read metrics."""
    account = cluster.service_account(namespace, "scraper")
    account.grant([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])
    return account


async def test_only_a_caller_that_may_get_the_path_reads_metrics(
    cluster: Cluster, namespace: str, service: ServiceAccount, scraper: ServiceAccount
) -> None:
    stranger = cluster.service_account(namespace, "stranger")
    async with (
        await Connection.open(kubeconfig=str(service.kubeconfig)) as connection,
        endpoints.serving(
            address="127.0.0.1:0",
            registry=CollectorRegistry(),
            health=Health(Duration.of(minutes=1)),
            guard=Reviews(connection),
        ) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def status(path: str, token: str | None) -> int:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            async with session.get(path, headers=headers) as answer:
                return answer.status

        assert await status("/metrics", scraper.token) == 200
        assert await status("/metrics", stranger.token) == 403
        assert await status("/metrics", "made.up.token") == 401
        assert await status("/metrics", None) == 401
        assert await status("/health-check", None) == 200


async def test_an_answer_is_remembered_for_a_minute(service: ServiceAccount, scraper: ServiceAccount) -> None:
    now = [0.0]
    async with await Connection.open(kubeconfig=str(service.kubeconfig)) as connection:
        reviews = Reviews(connection, clock=lambda: now[0])
        for _ in range(3):
            assert await reviews(scraper.token, "/metrics") is HTTPStatus.OK
        assert connection.requests["POST", 201] == 2
        now[0] = 61.0
        assert await reviews(scraper.token, "/metrics") is HTTPStatus.OK
        assert connection.requests["POST", 201] == 4


async def test_without_the_permission_to_ask_nobody_is_let_in_and_that_is_said_once(
    cluster: Cluster, namespace: str, scraper: ServiceAccount, caplog: pytest.LogCaptureFixture
) -> None:
    bare = cluster.service_account(namespace, "bare")
    async with await Connection.open(kubeconfig=str(bare.kubeconfig)) as connection:
        reviews = Reviews(connection)
        answers = await asyncio.gather(*(reviews(scraper.token, f"/{n}") for n in range(8)))
        assert set(answers) == {HTTPStatus.SERVICE_UNAVAILABLE}
    said = [record.message for record in caplog.records if record.name == "vpa.cluster.reviews"]
    assert len(said) == 1
    assert "tokenreviews" in said[0]


@pytest.mark.parametrize("program", ["recommender", "updater", "admission"])
def test_each_service_asks_who_reads_its_metrics(
    cluster: Cluster, namespace: str, service: ServiceAccount, scraper: ServiceAccount, program: str
) -> None:
    port = ports.free()
    command = [sys.executable, "-m", program, f"--kubeconfig={service.kubeconfig}"]
    command += [f"--address=127.0.0.1:{port}", "--authenticate-metrics"]
    command += ["--generate-certificates", f"--port={ports.free()}"] if program == "admission" else []
    url = f"http://127.0.0.1:{port}/metrics"
    with cluster.spawn(f"guarded-{program}", command) as process:
        for _ in attempts(30, "the endpoint", process):
            if answer_of(url) == HTTPStatus.UNAUTHORIZED:
                break
        assert answer_of(url, scraper.token) == HTTPStatus.OK


def answer_of(url: str, token: str = "") -> int:
    """The status of an answer, 0 where nobody answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0
