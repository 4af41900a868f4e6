"""The page of differences is complete: each row has a test that exists, each rule has a row."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tools.flags_page import SERVICES
from vpa.flags import flags_of
from vpa.rules import Rules

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "differences.md").read_text(encoding="utf-8")

ALWAYS = "always"
RULES = {field.name for field in fields(Rules)}
FLAGS = {f"--{flag}" for table in SERVICES.values() for flag in table.flags}
SURPRISES = {"R": 35, "U": 49}
"""How many surprises in upstream's behaviour are known: of its recommender, and of all the rest."""


class Row(NamedTuple):
    """One row; *number* and *verdict* are empty in the table of what is not upstream's."""

    number: str
    verdict: str
    rule: str
    text: str
    """What ours does."""
    tests: list[str]


def rows() -> list[Row]:
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or cells[0] in ("#", "rule") or set(cells[0]) <= {"-", " "}:
            continue
        tests = cells[-1].split("<br>")
        if len(cells) == 6:
            found.append(Row(cells[0], cells[2], cells[4], cells[3], tests))
        else:
            assert len(cells) == 3, line
            found.append(Row("", "", cells[0], cells[1], tests))
    return found


ROWS = rows()


@cache
def functions(file: str) -> set[str]:
    """The tests of a file as pytest collects them: functions of the module by name."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_surprise_has_its_row_in_order() -> None:
    numbers = [row.number for row in ROWS if row.number]
    assert numbers == [f"{letter}{n}" for letter, count in SURPRISES.items() for n in range(1, count + 1)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number or row.rule.strip("`"))
def test_every_row_names_tests_that_exist(row: Row) -> None:
    assert row.tests
    for test in row.tests:
        named = re.fullmatch(r"`((?:core|cluster|faults|node)/test_\w+\.py)::(test_\w+)`", test)
        assert named is not None, f"{test} is not file::test"
        assert named[2] in functions(named[1]), f"{test} does not exist"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number or row.rule.strip("`"))
def test_every_rule_that_is_named_exists(row: Row) -> None:
    if row.rule in ("", ALWAYS):
        return
    name = re.fullmatch(r"`([\w-]+)`", row.rule)
    assert name is not None, f"{row.rule} is neither a rule, nor a flag, nor {ALWAYS}"
    assert name[1] in RULES | FLAGS


def test_every_rule_has_a_row() -> None:
    assert {row.rule.strip("`") for row in ROWS} >= RULES


def test_where_only_a_rule_is_named_its_help_is_what_it_does() -> None:
    help_of = {flag.name.replace("-", "_"): flag.help for flag in flags_of(Rules)}
    for row in ROWS:
        if not row.number and row.rule != ALWAYS:
            assert row.text == help_of[row.rule.strip("`")]


def test_what_is_mended_says_by_which_rule_and_what_is_kept_needs_none() -> None:
    for row in ROWS:
        if row.number:
            assert row.verdict in ("kept", "mended"), row.number
            assert row.verdict == "kept" or row.rule, f"{row.number} is mended by nothing"


def test_rules_and_flags_within_the_texts_exist() -> None:
    for name in re.findall(r"\*(\w+_\w+)\*", PAGE):
        assert name in RULES
    for name in re.findall(r"`(--[a-z][a-z-]*[a-z])", PAGE):
        assert name in FLAGS, name
