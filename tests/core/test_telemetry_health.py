"""Health: silence of a running loop, never of a waiting one."""

from __future__ import annotations

from vpa.durations import Duration
from vpa.telemetry.health import Health


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_loop_that_was_not_started_is_healthy_for_ever() -> None:
    clock = Clock()
    health = Health(Duration.of(minutes=5), clock=clock)
    clock.now += 10_000
    assert health.error() is None


def test_silence_longer_than_the_timeout_is_an_error_in_upstreams_words() -> None:
    clock = Clock()
    health = Health(Duration.of(minutes=5), clock=clock)
    health.start()
    clock.now += 300
    assert health.error() is None
    clock.now += 61.5
    assert health.error() == "Error: last activity more than 6m1.5s ago"
    health.alive()
    assert health.error() is None


def test_a_loop_that_was_stopped_is_healthy() -> None:
    clock = Clock()
    health = Health(Duration.of(minutes=5), clock=clock)
    health.start()
    health.stop()
    clock.now += 10_000
    assert health.error() is None
