"""Present usage is read quickly, and what is missing is no sample."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa import rules as rules_module
from vpa.metrics.metrics_api import (
    ExternalMetrics,
    ExternalPod,
    MetricsApi,
    MetricsError,
    cpu_amount,
    decode_pod_metrics,
    memory_amount,
)
from vpa.metrics.usage import ABSENT, Usage
from vpa.quantities import Quantity, QuantityError

SAFE = rules_module.preset("safe")
UPSTREAM = rules_module.preset("upstream")


def pod(
    name: str,
    *containers: tuple[str, dict[str, Any]],
    time: str = "2026-11-30T12:00:01Z",
    window: str = "15s",
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "n", "creationTimestamp": None},
        "timestamp": time,
        "window": window,
        "containers": [{"name": container, "usage": usage} for container, usage in containers],
    }


def listed(*pods: Any) -> bytes:
    return json.dumps({"kind": "PodMetricsList", "metadata": {}, "items": list(pods)}).encode()


def entries(usage: Usage) -> list[tuple[str, str, int, int]]:
    return list(zip(usage.pods, usage.containers, usage.cpu.tolist(), usage.memory.tolist(), strict=True))


def test_every_container_is_an_entry_with_whole_amounts_rounded_up() -> None:
    usage = decode_pod_metrics(
        listed(
            pod("p", ("a", {"cpu": "12345678n", "memory": "34Mi"}), ("b", {"cpu": "0", "memory": "1500m"}))
        ),
        SAFE,
    )
    assert entries(usage) == [("p", "a", 13, 34 << 20), ("p", "b", 0, 2)]
    assert usage.namespaces == ["n", "n"]
    assert usage.times.tolist() == [1_796_040_001 * 10**9] * 2


def test_a_missing_resource_is_no_sample_and_under_upstream_a_sample_of_zero() -> None:
    body = listed(pod("p", ("a", {"cpu": "5m"}), ("b", {"memory": "1Ki"}), ("c", {})))
    assert entries(decode_pod_metrics(body, SAFE)) == [
        ("p", "a", 5, ABSENT),
        ("p", "b", ABSENT, 1024),
        ("p", "c", ABSENT, ABSENT),
    ]
    assert entries(decode_pod_metrics(body, UPSTREAM)) == [
        ("p", "a", 5, 0),
        ("p", "b", 0, 1024),
        ("p", "c", 0, 0),
    ]


def test_memory_of_zero_is_no_sample() -> None:
    assert entries(decode_pod_metrics(listed(pod("p", ("a", {"cpu": "5m", "memory": "0"}))), SAFE)) == [
        ("p", "a", 5, ABSENT)
    ]


def test_the_pods_own_cgroup_is_no_container() -> None:
    body = listed(pod("p", ("", {"cpu": "1"}), ("POD", {"cpu": "1"}), ("a", {"cpu": "1", "memory": "1Gi"})))
    assert entries(decode_pod_metrics(body, SAFE)) == [("p", "a", 1000, 1 << 30)]


@pytest.mark.parametrize(
    "bad",
    [
        {"metadata": 7},
        pod("bad", ("a", {"cpu": "1"}), time="yesterday"),
        pod("bad", ("a", {"cpu": "1"}), time="2026-11-30T12:00:01"),
        pod("bad", ("a", {"cpu": "many"})),
        pod("bad", ("a", {"cpu": {"a": 1}})),
    ],
)
def test_one_bad_pod_does_not_cost_the_others(bad: Any) -> None:
    usage = decode_pod_metrics(
        listed(pod("p", ("a", {"cpu": "1"})), bad, pod("q", ("a", {"cpu": "2"}))), SAFE
    )
    assert [name for name, *_ in entries(usage)] == ["p", "q"]
    assert usage.skipped == 1


def test_an_empty_list_is_no_usage() -> None:
    assert len(decode_pod_metrics(b'{"items":null}', SAFE)) == 0
    assert len(decode_pod_metrics(listed(), SAFE)) == 0


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"items":3}'])
def test_what_is_no_list_is_an_error(body: bytes) -> None:
    with pytest.raises(MetricsError):
        decode_pod_metrics(body, SAFE)


@given(
    st.integers(0, 10**12),
    st.sampled_from(["", "n", "u", "m", "k", "M", "Ki", "Mi", "Gi", "Ti", "e3"]),
    st.sampled_from(["", "0", "000"]),
)
def test_the_quick_way_of_reading_amounts_is_that_of_quantities(number: int, suffix: str, zeros: str) -> None:
    text = f"{zeros}{number}{suffix}"
    assert min(cpu_amount(text), 10**14) == min(Quantity.parse(text).milli(), 10**14)
    assert min(memory_amount(text), 10**14) == min(Quantity.parse(text).value(), 10**14)
    decode_pod_metrics(listed(pod("p", ("a", {"cpu": text, "memory": text}))), SAFE)


@pytest.mark.parametrize("text", ["", "1.5.5", "1x", "1 m"])
def test_what_is_no_quantity_is_an_error(text: str) -> None:
    with pytest.raises(QuantityError):
        cpu_amount(text)
    with pytest.raises(QuantityError):
        memory_amount(text)


class Server:
    """Answers of the API server, and what was asked."""

    def __init__(self, *bodies: bytes | Exception) -> None:
        self.bodies = list(bodies)
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def get(self, path: str, params: Mapping[str, str]) -> bytes:
        self.asked.append((path, dict(params)))
        body = self.bodies.pop(0)
        if isinstance(body, Exception):
            raise body
        return body


async def test_all_namespaces_or_one_are_listed() -> None:
    server = Server(listed(), listed())
    await MetricsApi(get=server.get, rules=SAFE).poll()
    await MetricsApi(get=server.get, rules=SAFE, namespace="n").poll()
    assert [path for path, _ in server.asked] == [
        "/apis/metrics.k8s.io/v1beta1/pods",
        "/apis/metrics.k8s.io/v1beta1/namespaces/n/pods",
    ]


async def test_an_adapters_zero_after_some_use_is_doubted_once() -> None:
    values = ["100m", "0", "0", "50m", "0"]
    server = Server(*(listed(pod("p", ("a", {"cpu": v, "memory": "1Mi"}), window="0s")) for v in values))
    api = MetricsApi(get=server.get, rules=SAFE)
    seen = [int((await api.poll()).cpu[0]) for _ in values]
    assert seen == [100, ABSENT, 0, 50, ABSENT]


async def test_a_zero_with_a_window_is_believed() -> None:
    server = Server(*(listed(pod("p", ("a", {"cpu": v, "memory": "1Mi"}))) for v in ("100m", "0")))
    api = MetricsApi(get=server.get, rules=SAFE)
    assert [int((await api.poll()).cpu[0]) for _ in range(2)] == [100, 0]


def values(*items: tuple[str, str]) -> bytes:
    return json.dumps(
        {
            "items": [
                {"metricLabels": {"name": name}, "timestamp": "2026-11-30T12:00:01Z", "value": value}
                for name, value in items
            ]
        }
    ).encode()


async def test_external_metrics_are_asked_for_as_upstream_asks() -> None:
    server = Server(values(("a", "250m"), ("", "1")), values(("a", "1Ki")))
    source = ExternalMetrics(get=server.get, rules=SAFE, cpu_metric="c", memory_metric="m")
    usage = await source.poll([ExternalPod("n", "p", "app=web")])
    assert entries(usage) == [("p", "a", 250, 1024)]
    assert server.asked == [
        ("/apis/external.metrics.k8s.io/v1beta1/namespaces/n/c", {"labelSelector": "app=web,pod=p"}),
        ("/apis/external.metrics.k8s.io/v1beta1/namespaces/n/m", {"labelSelector": "app=web,pod=p"}),
    ]


async def test_a_resource_without_external_metric_is_no_sample() -> None:
    server = Server(values(("a", "250m")), values(("a", "250m")))
    pods = [ExternalPod("n", "p", "")]
    assert entries(await ExternalMetrics(get=server.get, rules=SAFE, cpu_metric="c").poll(pods)) == [
        ("p", "a", 250, ABSENT)
    ]
    assert entries(await ExternalMetrics(get=server.get, rules=UPSTREAM, cpu_metric="c").poll(pods)) == [
        ("p", "a", 250, 0)
    ]


async def test_one_pods_error_costs_only_that_pod_and_under_upstream_the_poll() -> None:
    pods = [ExternalPod("n", "p", ""), ExternalPod("n", "q", "")]
    server = Server(OSError("down"), values(("a", "1")))
    source = ExternalMetrics(get=server.get, rules=SAFE, cpu_metric="c")
    assert entries(await source.poll(pods)) == [("q", "a", 1000, ABSENT)]
    assert source.errors == ["external metrics of pod n/p: down"]
    server = Server(OSError("down"), values(("a", "1")))
    with pytest.raises(MetricsError, match="n/p: down"):
        await ExternalMetrics(get=server.get, rules=UPSTREAM, cpu_metric="c").poll(pods)
