"""The grid of times that history is asked for. Pure.

Start, end and step are whole seconds and the ends are multiples of the step, so that each point has one
time for ever: Trickster and Mimir then know it again, and two answers can be laid upon one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

DAY = 86_400

LAG = 120
"""Seconds that the newest point stays behind the present: two scrapes of a minute, and time to store them."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The times ``start, start + step, …, end`` in seconds since the epoch; none when end < start."""

    start: int
    end: int
    step: int

    @property
    def points(self) -> int:
        """How many times there are."""
        return max((self.end - self.start) // self.step + 1, 0)

    def halves(self) -> tuple[Grid, Grid]:
        """The older and the newer half; of at least two points."""
        middle = self.start + (self.points // 2) * self.step
        return Grid(self.start, middle - self.step, self.step), Grid(middle, self.end, self.step)

    def __contains__(self, second: int) -> bool:
        return self.start <= second <= self.end and (second - self.start) % self.step == 0


def history_grid(*, now: float, length: int, step: int, lag: int = LAG) -> Grid:
    """The last *length* seconds in steps of *step*; the newest point is at least *lag* behind now."""
    end = int(now - lag) // step * step
    return Grid(end - (max(length // step, 1) - 1) * step, end, step)


def blocks(grid: Grid, *, first: int, points: int) -> Iterator[Grid]:
    """*grid* cut at midnights (UTC), the newest block first.

    The newest block has between *first* and *first* plus a day of seconds, so that it suffices for a first
    recommendation; the others are as many whole days as fit in *points*, but at least one.
    """
    if not grid.points:
        return
    cut = max(_after_midnight(grid.end - first, grid.step), grid.start)
    yield Grid(cut, grid.end, grid.step)
    days = max(points * grid.step // DAY, 1)
    while cut > grid.start:
        end = cut - grid.step
        cut = max(_after_midnight(end - (days - 1) * DAY - 1, grid.step), grid.start)
        yield Grid(cut, end, grid.step)


def _after_midnight(second: int, step: int) -> int:
    """The first point of the grid after the midnight that comes before or with *second*."""
    midnight = second // DAY * DAY
    return (midnight // step + 1) * step
