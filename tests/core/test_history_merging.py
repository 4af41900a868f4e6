"""History and checkpoint together count each sample once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vpa.metrics.history.merging import Merge, merge

TIMES = st.lists(st.integers(0, 50), max_size=20, unique=True).map(sorted)


def test_history_that_reaches_further_back_replaces_the_checkpoint() -> None:
    assert merge(history_first=1, checkpoint_first=5, checkpoint_last=9) == Merge(True, None, None)


def test_history_that_does_not_only_adds_what_is_newer() -> None:
    assert merge(history_first=5, checkpoint_first=5, checkpoint_last=9) == Merge(False, 9, None)
    assert merge(history_first=7, checkpoint_first=5, checkpoint_last=9) == Merge(False, 9, None)


def test_without_a_checkpoint_history_is_all_there_is() -> None:
    assert merge(history_first=7, checkpoint_first=None, checkpoint_last=None) == Merge(True, None, None)


def test_without_history_the_checkpoint_stays() -> None:
    assert merge(history_first=None, checkpoint_first=5, checkpoint_last=9) == Merge(False, 9, None)


def test_what_the_process_saw_itself_is_not_read_again() -> None:
    found = merge(history_first=1, checkpoint_first=None, checkpoint_last=None, live_first=30)
    assert np.array([10, 29, 30, 31])[found.span(np.array([10, 29, 30, 31]))].tolist() == [10, 29]


@given(TIMES, TIMES, st.integers(0, 60) | st.none())
def test_no_time_counts_twice_and_none_in_reach_is_lost(
    history: list[int], checkpoint: list[int], live_first: int | None
) -> None:
    found = merge(
        history_first=history[0] if history else None,
        checkpoint_first=checkpoint[0] if checkpoint else None,
        checkpoint_last=checkpoint[-1] if checkpoint else None,
        live_first=live_first,
    )
    added = np.array(history, np.int64)[found.span(np.array(history, np.int64))].tolist()
    kept = [] if found.replaces else checkpoint
    assert not set(added) & set(kept)
    assert all(live_first is None or time < live_first for time in added)
    if not found.replaces and history and checkpoint:
        assert history[0] >= checkpoint[0], "a checkpoint is only dropped for a longer history"
