"""The page of reasons says all there is, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from vpa.reasons import Reason

PAGE = Path(__file__).parents[2] / "docs" / "reasons.md"


def test_the_page_has_a_row_for_each_reason_and_no_other() -> None:
    rows = re.findall(r"^\| ([A-Z]\w+) \| (.+?) \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(word for word, _, _ in rows) == sorted(reason.value for reason in Reason)
    assert all(meaning and remedy for _, meaning, remedy in rows)


def test_reasons_are_camel_case_and_fit_a_condition() -> None:
    assert all(re.fullmatch(r"[A-Z][A-Za-z]{2,40}", reason.value) for reason in Reason)
