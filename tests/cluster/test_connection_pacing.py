"""The client-side rate limit, growing delays, and the choice among several endpoints; time is injected."""

from __future__ import annotations

import asyncio

import pytest

from vpa.cluster.endpoints import Endpoints
from vpa.cluster.pacing import Backoff, TokenBucket


class Time:
    """A clock that only moves when told, or when somebody sleeps on it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


async def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    time = Time()
    bucket = TokenBucket(qps=10, burst=5, clock=time, sleep=time.sleep)
    for _ in range(5):
        await bucket.take()
    assert time.now == 1000.0
    for _ in range(20):
        await bucket.take()
    assert time.now == pytest.approx(1002.0)


async def test_tokens_that_nobody_took_are_there_later_but_never_more_than_the_burst() -> None:
    time = Time()
    bucket = TokenBucket(qps=10, burst=5, clock=time, sleep=time.sleep)
    for _ in range(5):
        await bucket.take()
    time.now += 3600
    assert [bucket.try_take() for _ in range(6)] == [True] * 5 + [False]


async def test_no_rate_means_no_limit() -> None:
    bucket = TokenBucket(qps=0, burst=1, clock=Time())
    assert all(bucket.try_take() for _ in range(10_000))


async def test_a_cancelled_waiter_gives_its_token_back() -> None:
    time = Time()

    async def sleep_for_ever(_: float) -> None:
        await asyncio.Event().wait()

    bucket = TokenBucket(qps=1, burst=1, clock=time, sleep=sleep_for_ever)
    await bucket.take()
    waiter = asyncio.create_task(bucket.take())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    time.now += 1.0
    assert bucket.try_take()


def test_delays_double_up_to_a_cap_and_start_anew_after_success() -> None:
    backoff = Backoff(base=1, cap=8, uniform=lambda low, high: high)
    assert [backoff.delay() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    backoff.reset()
    assert backoff.delay() == 1


def test_delays_are_spread_over_half_of_their_length() -> None:
    backoff = Backoff(base=4, cap=4)
    drawn = [backoff.delay() for _ in range(1000)]
    assert 2.0 <= min(drawn) < 2.2
    assert 3.8 < max(drawn) <= 4.0


def test_the_first_endpoint_is_used_as_long_as_it_answers() -> None:
    endpoints = Endpoints(["https://a", "https://b"], clock=Time())
    endpoints.worked("https://b")
    assert endpoints.pick() == "https://a"


def test_a_failed_endpoint_is_passed_over_and_tried_again_by_one_request_only() -> None:
    time = Time()
    endpoints = Endpoints(["https://a", "https://b"], clock=time)
    endpoints.failed("https://a")
    assert endpoints.pick() == "https://b"
    time.now += 2.0
    assert [endpoints.pick() for _ in range(3)] == ["https://a", "https://b", "https://b"]
    endpoints.worked("https://a")
    assert endpoints.pick() == "https://a"


def test_an_endpoint_that_stays_away_is_tried_more_and_more_rarely() -> None:
    time = Time()
    endpoints = Endpoints(["https://a", "https://b"], clock=time)
    tries = 0
    for _ in range(600):  # ten minutes, a request each second
        if endpoints.pick() == "https://a":
            tries += 1
            endpoints.failed("https://a")
        time.now += 1.0
    assert 15 <= tries <= 25


def test_when_all_endpoints_have_failed_the_one_that_is_due_first_is_used() -> None:
    time = Time()
    endpoints = Endpoints(["https://a", "https://b"], clock=time)
    endpoints.failed("https://a")
    time.now += 1.0
    endpoints.failed("https://b")
    assert endpoints.pick() == "https://a"
