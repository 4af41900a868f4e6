"""Answers become one table: on the grid, without what does not belong there, nothing counted twice."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa import rules as rules_module
from vpa.durations import Duration
from vpa.metrics.history.amounts import millicores, sample_weight, whole_bytes
from vpa.metrics.history.grids import Grid
from vpa.metrics.history.planning import CPU, MEMORY
from vpa.metrics.history.tables import Part, Table, lay
from vpa.metrics.prometheus.decoding import Labels, Matrix
from vpa.metrics.prometheus.names import Names
from vpa.quantities import Quantity
from vpa.settings import Aggregation
from vpa.usage import Usage

SAFE = rules_module.preset("safe")
UPSTREAM = rules_module.preset("upstream")
GRID = Grid(3600, 36_000, 3600)


def matrix(*series: tuple[Labels, list[tuple[float, float]]]) -> Matrix:
    flat = [sample for _, samples in series for sample in samples]
    return Matrix(
        labels=[labels for labels, _ in series],
        ends=np.cumsum(np.array([len(samples) for _, samples in series], np.int64)),
        times=np.array([time for time, _ in flat], np.float64),
        values=np.array([value for _, value in flat], np.float64),
    )


def of(pod: str = "p", container: str = "c", **more: str) -> Labels:
    return {"namespace": "n", "pod": pod, "container": container, **more}


def laid(*series: tuple[Labels, list[tuple[float, float]]], resource: str = CPU, grid: Grid = GRID) -> Part:
    return lay(matrix(*series), grid=grid, resource=resource, names=Names(), rules=SAFE)


def rows(part: Part) -> list[tuple[str, int, int]]:
    return [
        (part.keys[index][1], int(at), int(value))
        for index, at, value in zip(part.index, part.at, part.values, strict=True)
    ]


def test_points_on_the_grid_are_taken() -> None:
    part = laid((of("a"), [(3600, 0.5), (7200, 1.0)]), (of("b"), [(36_000, 2.0)]))
    assert rows(part) == [("a", 0, 500), ("a", 1, 1000), ("b", 9, 2000)]
    assert part.counts.points == 3
    assert part.counts.words() == ""


def test_what_does_not_belong_there_is_left_out_and_counted() -> None:
    """Field case 37: one bad series does not void the rest."""
    part = laid(
        (
            of("a"),
            [(3600, 0.5), (7200, float("nan")), (10_800, float("inf")), (14_400, -0.25), (14_401.5, 9.0)],
        ),
        (of("a", container=""), [(3600, 7.0)]),
        ({"namespace": "n"}, [(3600, 7.0)]),
        (of("b"), [(0, 7.0), (39_600, 7.0)]),
    )
    assert rows(part) == [("a", 0, 500)]
    assert part.counts.not_a_number == 2
    assert part.counts.negative == 1
    assert part.counts.off_grid == 3
    assert part.counts.nameless == 2
    assert part.counts.words() == (
        "2 not a number, 1 negative (counter reset), 3 off the grid, 2 series without names"
    )


def test_cpu_that_is_exposed_per_core_is_summed() -> None:
    cores = [(of(cpu=f"cpu0{n}"), [(3600.0, 0.125), (7200.0, 0.25)]) for n in range(8)]
    part = laid(*cores)
    assert rows(part) == [("p", 0, 1000), ("p", 1, 2000)]
    assert part.counts.duplicates == 14


def test_copies_of_a_series_do_not_count_twice() -> None:
    replicas = [(of(cpu="total", prometheus_replica=str(n)), [(3600.0, 0.5 + n / 10)]) for n in range(2)]
    paths = [(of(metrics_path="/metrics/resource"), [(3600.0, 0.4)])]
    assert rows(laid(*replicas, *paths)) == [("p", 0, 600)]


def test_a_container_that_started_again_within_a_step_used_what_both_runs_used() -> None:
    part = laid((of(id="/a"), [(3600, 0.25)]), (of(id="/b"), [(3600, 0.5), (7200, 1.0)]))
    assert rows(part) == [("p", 0, 750), ("p", 1, 1000)]


def test_of_several_memory_series_the_largest_counts() -> None:
    part = laid((of(id="/a"), [(3600, 100.0)]), (of(id="/b"), [(3600, 300.0)]), resource=MEMORY)
    assert rows(part) == [("p", 0, 300)]


def test_two_points_at_one_time_are_one() -> None:
    part = laid((of(), [(3600, 0.5), (3600, 0.75), (7200, 1.0)]))
    assert rows(part) == [("p", 0, 750), ("p", 1, 1000)]
    assert part.counts.duplicates == 1


def test_times_at_which_nobody_has_a_point_are_holes() -> None:
    assert laid((of("a"), [(3600, 1), (7200, 1)]), (of("b"), [(14_400, 1)])).holes() == 1
    assert laid((of("a"), [(7200, 1)]), (of("b"), [(10_800, 1)])).holes() == 0, "the ends may be empty"
    assert laid().holes() == 0


def test_an_empty_answer_is_an_empty_table() -> None:
    table = Table(GRID)
    table.add(CPU, laid())
    points = table.points(CPU)
    assert len(points.times) == 0
    assert points.gaps(GRID.step) == 0
    assert list(points.by_time()) == []


def test_parts_join_in_the_order_of_time_whatever_came_first() -> None:
    table = Table(GRID)
    newer, older = Grid(18_000, 36_000, 3600), Grid(3600, 14_400, 3600)
    table.add(CPU, laid((of("b"), [(18_000, 3.0)]), (of("a"), [(36_000, 4.0)]), grid=newer))
    table.add(CPU, laid((of("a"), [(3600, 1.0), (14_400, 2.0)]), grid=older))
    points = table.points(CPU)
    assert list(table.keys) == [("n", "b", "c"), ("n", "a", "c")]
    times, values = points.of(1)
    assert times.tolist() == [3600 * 10**9, 14_400 * 10**9, 36_000 * 10**9]
    assert values.tolist() == [1000, 2000, 4000]
    assert points.of(0)[1].tolist() == [3000]
    assert points.gaps(3600) == 7


def test_a_point_that_is_had_twice_counts_once_and_the_later_answer_wins() -> None:
    table = Table(GRID)
    table.add(MEMORY, laid((of(), [(3600, 1.0), (7200, 2.0)]), resource=MEMORY))
    table.add(MEMORY, laid((of(), [(7200, 5.0)]), resource=MEMORY))
    assert table.points(MEMORY).values.tolist() == [1, 5]


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 9)),
        max_size=60,
        unique_by=lambda one: one[:2],
    )
)
def test_batches_by_time_have_each_container_once_and_lose_nothing(cells: list[tuple[int, int, int]]) -> None:
    series: dict[int, list[tuple[float, float]]] = {}
    for pod, at, value in cells:
        series.setdefault(pod, []).append((3600.0 * (at + 1), float(value)))
    table = Table(GRID)
    table.add(CPU, laid(*((of(str(pod)), samples) for pod, samples in series.items())))
    seen: list[tuple[int, int, int]] = []
    previous = -1
    for index, times, values in table.points(CPU).by_time():
        assert len(set(index.tolist())) == len(index)
        assert len(set(times.tolist())) == 1
        assert times[0] > previous
        previous = times[0]
        seen += zip(index.tolist(), times.tolist(), values.tolist(), strict=True)
    keys = list(table.keys)
    expected = [
        (keys.index(("n", str(pod), "c")), (at + 1) * 3600 * 10**9, value * 1000) for pod, at, value in cells
    ]
    assert sorted(seen) == sorted(expected)


@given(
    st.lists(
        st.lists(st.integers(0, 5) | st.integers(0, 10**9), min_size=0, max_size=60),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([1, 2, 7, 24, 100]),
)
@settings(deadline=None)
def test_thinned_points_leave_the_peaks_that_all_points_leave(series: list[list[int]], hours: int) -> None:
    grid = Grid(3600, 3600 * 60, 3600)
    table = Table(grid)
    samples = (
        (of(str(pod)), [(3600.0 * (at + 1), float(value)) for at, value in enumerate(some) if value != 3])
        for pod, some in enumerate(series)
    )
    table.add(MEMORY, laid(*samples, resource=MEMORY, grid=grid))
    points = table.points(MEMORY)
    interval = np.full(len(points.ends), hours * 3600 * 10**9)
    outcomes = []
    for chosen in (points, points.thinned(interval)):
        usage = Usage(Aggregation(memory_aggregation_interval=Duration.of(hours=hours)))
        rows = usage.new_rows(len(points.ends), 0)
        instances = usage.new_instances(rows)
        usage.add_memory(instances[chosen.index], chosen.times, chosen.values)
        state = (usage.memory_time, usage.memory_peak, usage.window_end)
        weights = np.array([usage.memory.weights(int(row)) for row in rows])
        outcomes.append((weights, *(column[instances] for column in state)))
    for all_points, few_points in zip(*outcomes, strict=True):
        np.testing.assert_allclose(few_points, all_points, rtol=1e-9, atol=1e-9)


def test_thinning_leaves_few_points_of_many() -> None:
    grid = Grid(3600, 3600 * 192, 3600)
    table = Table(grid)
    random = np.random.default_rng(1)
    series = [(of(str(n)), [(3600.0 * k, random.random() * 1e9) for k in range(1, 193)]) for n in range(10)]
    table.add(MEMORY, laid(*series, resource=MEMORY, grid=grid))
    points = table.points(MEMORY)
    few = points.thinned(np.full(10, 86_400 * 10**9))
    assert len(few.times) <= 10 * (2 * 8 + 1)
    assert [few.of(n)[1].max() for n in range(10)] == [points.of(n)[1].max() for n in range(10)]


@given(st.floats(0, 1e6), st.integers(0, 10**8))
def test_cores_are_rounded_up_as_their_decimal_text_is(drawn: float, milli: int) -> None:
    for cores in (drawn, milli / 1000):
        exact = -(-(Fraction(repr(cores)) * 1000) // 1)
        assert millicores(np.array([cores]), SAFE).tolist() == [int(exact)]


@pytest.mark.parametrize("text", ["0.029", "0.07", "1.001", "0.0291", "0.000001", "3", "0"])
def test_history_and_quantities_agree(text: str) -> None:
    assert int(millicores(np.array([float(text)]), SAFE)[0]) == Quantity.parse(text).milli()


def test_under_upstream_amounts_are_cut() -> None:
    assert millicores(np.array([0.0299, 0.069946, 1e30]), UPSTREAM).tolist() == [29, 69, 10**14]
    assert whole_bytes(np.array([10.9]), UPSTREAM).tolist() == [10]
    assert whole_bytes(np.array([10.1, 1e30]), SAFE).tolist() == [11, 10**14]
    assert millicores(np.array([1e30]), SAFE).tolist() == [10**14]


def test_a_point_of_an_hour_stands_for_sixty_samples_and_under_upstream_for_one() -> None:
    assert sample_weight(3600, SAFE) == (6.0, 60)
    assert sample_weight(60, SAFE) == (0.1, 1)
    assert sample_weight(30, SAFE) == (0.05, 1)
    assert sample_weight(3600, UPSTREAM) == (0.1, 1)
