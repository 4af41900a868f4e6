"""Plans: every point asked for once, no query too big, the newest days first, the same text each time."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpa.metrics.history.grids import DAY, Grid, blocks, history_grid
from vpa.metrics.history.planning import (
    CPU,
    MOST_POINTS,
    MOST_SAMPLES,
    Limits,
    Piece,
    Plan,
    Target,
    plan,
    smaller,
)
from vpa.metrics.prometheus.names import Names
from vpa.metrics.prometheus.queries import Shard, prefix_pattern

NOW = 1_790_000_123.4
STEPS = st.sampled_from([30, 60, 300, 420, 900, 3600, 7200, DAY])
GRIDS = st.builds(
    lambda length, step, now: history_grid(now=now, length=length, step=step),
    st.integers(1, 40 * DAY),
    STEPS,
    st.floats(1.6e9, 1.9e9),
)
TARGETS = st.lists(
    st.builds(
        lambda ns, kind, name, series: Target(
            namespace=f"ns-{ns}", kind=kind, name=f"w-{name}", series=series
        ),
        st.integers(0, 5),
        st.sampled_from(["Deployment", "StatefulSet", "Rollout"]),
        st.integers(0, 12),
        st.integers(1, 20_000),
    ),
    max_size=20,
    unique_by=lambda one: (one.namespace, one.kind, one.name),
)
LIMITS = st.builds(
    lambda points, samples: Limits(points=points, samples=samples),
    st.integers(1, 11_000),
    st.integers(100, 240_000),
)


def covered(grids: list[Grid]) -> list[int]:
    return sorted(second for grid in grids for second in range(grid.start, grid.end + 1, grid.step))


@given(GRIDS)
def test_a_grid_lies_on_multiples_of_its_step_behind_the_present(grid: Grid) -> None:
    assert grid.start % grid.step == grid.end % grid.step == 0
    assert grid.points >= 1


def test_eight_days_of_hours_are_192_points_of_which_the_newest_is_the_last_full_hour() -> None:
    grid = history_grid(now=NOW, length=8 * DAY, step=3600)
    assert grid.points == 192
    assert 120 <= NOW - grid.end < 3600 + 120


@given(GRIDS, st.integers(1, 3 * DAY), st.integers(1, 20_000))
@settings(max_examples=60)
def test_blocks_cover_each_point_once_and_the_newest_comes_first(grid: Grid, first: int, points: int) -> None:
    found = list(blocks(grid, first=first, points=points))
    assert covered(found) == covered([grid])
    assert found[0].end == grid.end
    assert all(newer.start > older.end for newer, older in pairwise(found))


def test_blocks_are_cut_at_midnight() -> None:
    grid = history_grid(now=NOW, length=8 * DAY, step=3600)
    found = list(blocks(grid, first=DAY // 2, points=48))
    assert all(block.start % DAY == 3600 for block in found[:-1])
    assert {block.points for block in found[1:-1]} == {48}


@given(TARGETS, GRIDS, LIMITS)
@settings(max_examples=60, deadline=None)
def test_no_query_is_over_the_limits_and_each_shard_gets_each_point_of_both_resources(
    targets: list[Target], grid: Grid, limits: Limits
) -> None:
    whole = plan(targets, grid, limits)
    by_query: dict[tuple[Shard, str], list[Grid]] = {}
    for piece in whole.pieces():
        assert piece.grid.points <= limits.points
        by_query.setdefault((piece.shard, piece.resource), []).append(piece.grid)
    assert len(by_query) == 2 * len(whole.shards)
    for grids in by_query.values():
        assert covered(grids) == covered([grid])


@given(TARGETS)
@settings(max_examples=40, deadline=None)
def test_answers_stay_within_the_budget_of_samples(targets: list[Target]) -> None:
    grid = history_grid(now=NOW, length=8 * DAY, step=3600)
    for piece in plan(targets, grid).pieces():
        single = len(piece.shard.tail) == 1
        assert piece.samples <= MOST_SAMPLES * 36 // 24 or single


@given(TARGETS, st.randoms())
@settings(max_examples=40, deadline=None)
def test_the_same_targets_in_any_order_give_the_same_texts(targets: list[Target], random: object) -> None:
    grid = history_grid(now=NOW, length=8 * DAY, step=3600)
    shuffled = list(targets)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    texts = [
        [one.text(Names(), peaks=True) for one in plan(each, grid).pieces()] for each in (targets, shuffled)
    ]
    assert texts[0] == texts[1]


@given(TARGETS)
@settings(max_examples=40, deadline=None)
def test_every_targets_pods_are_asked_for(targets: list[Target]) -> None:
    grid = history_grid(now=NOW, length=8 * DAY, step=3600)
    shards = [shard for shard, _ in plan(targets, grid).shards]
    for target in targets:
        pod = f"{target.name}-6d4cf56db6-x2x4z"
        asking = [shard for shard in shards if asks_for(shard, target.namespace, pod)]
        if target.kind == "Rollout":
            # An unknown kind may share its name with a known one, whose query then has its pods.
            assert asking
        else:
            assert len(asking) == 1


def asks_for(shard: Shard, namespace: str, pod: str) -> bool:
    """What Prometheus does with the matchers of a shard."""
    return (
        namespace in shard.namespaces
        and (not shard.prefixes or bool(re.fullmatch(prefix_pattern(shard.prefixes), pod)))
        and (not shard.excluded or not re.fullmatch(prefix_pattern(shard.excluded), pod))
        and (not shard.tail or pod[-1] in shard.tail)
    )


def test_a_namespace_that_comes_leaves_the_other_queries_as_they_are() -> None:
    grid = history_grid(now=NOW, length=8 * DAY, step=3600)
    targets = [Target(namespace=f"ns-{n}", kind="Deployment", name="a", series=40) for n in range(500)]
    before = {shard for shard, _ in plan(targets, grid).shards}
    after = {
        shard
        for shard, _ in plan([*targets, Target(namespace="new", kind="Deployment", name="a")], grid).shards
    }
    assert len(before) > 4
    assert len(before - after) == 1


def test_the_newest_days_of_all_come_before_the_older_days_of_any() -> None:
    grid = history_grid(now=NOW, length=8 * DAY, step=3600)
    targets = [Target(namespace=f"ns-{n}", kind="Deployment", name="a", series=900) for n in range(9)]
    whole = plan(targets, grid)
    ends = [piece.grid.end == grid.end for piece in whole.pieces()]
    assert ends == sorted(ends, reverse=True)
    assert sum(ends) == 2 * len(whole.shards)


def test_eight_days_at_thirty_seconds_are_asked_for_in_pieces_that_prometheus_allows() -> None:
    grid = history_grid(now=NOW, length=8 * DAY, step=30)
    assert grid.points == 23_040
    pieces = list(plan([Target(namespace="n", kind="Deployment", name="a")], grid).pieces())
    assert all(piece.grid.points <= MOST_POINTS for piece in pieces)
    assert covered([piece.grid for piece in pieces if piece.resource == CPU]) == covered([grid])


def test_a_plan_says_when_a_trickster_cannot_keep_it() -> None:
    target = [Target(namespace="n", kind="Deployment", name="a")]
    assert not list(plan(target, history_grid(now=NOW, length=8 * DAY, step=900)).notes())
    notes = list(plan(target, history_grid(now=NOW, length=8 * DAY, step=300)).notes())
    assert "keeps its newest 1024" in notes[0]


def test_a_small_cluster_costs_few_queries() -> None:
    grid = history_grid(now=NOW, length=8 * DAY, step=3600)
    targets = [Target(namespace=f"ns-{n}", kind="Deployment", name="a", series=20) for n in range(20)]
    assert len(list(plan(targets, grid).pieces())) == 4


def test_nothing_is_asked_for_without_targets() -> None:
    assert list(plan([], history_grid(now=NOW, length=8 * DAY, step=3600)).pieces()) == []


PIECES = st.builds(
    lambda series, shard, points: Piece(
        resource=CPU, shard=shard, grid=Grid(0, (points - 1) * 60, 60), series=series
    ),
    st.integers(1, 10_000),
    st.builds(
        lambda namespaces, prefixes: Shard(namespaces=tuple(namespaces), prefixes=tuple(prefixes)),
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True),
        st.lists(st.sampled_from(["web", "api", "db", "x"]), max_size=4, unique=True),
    ),
    st.integers(1, 300),
)


@given(PIECES)
@settings(max_examples=60, deadline=None)
def test_halves_together_ask_for_the_same(piece: Piece) -> None:
    halves = smaller(piece)
    if not halves:
        assert piece.grid.points == 1
        assert piece.series == 1
        return
    asked = [
        (namespace, pod, second)
        for half in halves
        for second in range(half.grid.start, half.grid.end + 1, half.grid.step)
        for namespace in piece.shard.namespaces
        for pod in ("web-a1b2c", "api-0", "db-9z", "x-q")
        if asks_for(half.shard, namespace, pod)
    ]
    whole = [
        (namespace, pod, second)
        for second in range(piece.grid.start, piece.grid.end + 1, piece.grid.step)
        for namespace in piece.shard.namespaces
        for pod in ("web-a1b2c", "api-0", "db-9z", "x-q")
        if asks_for(piece.shard, namespace, pod)
    ]
    assert sorted(asked) == sorted(whole)
    assert all(half.expected_bytes < piece.expected_bytes or piece.series == 1 for half in halves)


def test_cutting_ends() -> None:
    piece = Piece(resource=CPU, shard=Shard(namespaces=("n",)), grid=Grid(0, 600, 60), series=100_000)
    pieces, rounds = [piece], 0
    while pieces := [half for one in pieces[:1] for half in smaller(one)]:
        rounds += 1
        assert rounds < 40


@pytest.mark.parametrize("step", [3600, 300])
def test_expected_bytes_of_a_big_cluster_are_moderate_for_each_answer(step: int) -> None:
    grid = history_grid(now=NOW, length=8 * DAY, step=step)
    targets = [
        Target(namespace=f"ns-{n % 50}", kind="Deployment", name=f"app-{n}", series=10) for n in range(1000)
    ]
    whole: Plan = plan(targets, grid)
    assert max(piece.expected_bytes for piece in whole.pieces()) < 10_000_000
