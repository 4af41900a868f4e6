"""Where present usage is read: what is said of a Prometheus that is in trouble."""

from __future__ import annotations

import logging

import pytest

from recommender.settings import TABLE, Settings
from recommender.sources import FromPrometheus
from recommender.troubles import Troubles
from vpa.metrics.prometheus import names
from vpa.metrics.prometheus.access import Access
from vpa.metrics.prometheus.client import Client
from vpa.metrics.prometheus_usage import PrometheusUsage

NOBODY = "http://127.0.0.1:9"
NOW = 1_785_585_600.0


async def at_once(_: float) -> None:
    """Nobody waits."""


async def test_a_prometheus_that_is_left_in_peace_after_failures_is_no_new_trouble(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its breaker opens and lets a request through now and then: that is one trouble, said once."""
    settings = TABLE.parse(()).fill(Settings)
    clock = 0.0
    troubles = Troubles()
    client = Client(Access(addresses=(NOBODY,)), sleep=at_once, clock=lambda: clock, jitter=lambda: 0.5)
    async with client:
        usage = PrometheusUsage(client=client, names=names.from_flags(settings.history), rules=settings.rules)
        source = FromPrometheus(usage, lambda: NOW)
        with caplog.at_level(logging.WARNING):
            for _ in range(40):
                clock += 1.0
                with pytest.raises(Exception, match="Cannot connect") as raised:
                    await source.poll()
                troubles.bad(source.title, raised.value)
    assert client.statistics.requests < 40 * 3, "it was left in peace meanwhile"
    (said,) = caplog.messages
    assert said.startswith("Prometheus: Prometheus query 'topk by (job)")
    assert f"at {NOBODY}: Cannot connect to host 127.0.0.1:9" in said
