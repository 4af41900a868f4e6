"""The page of permissions has a row for each that the manifests grant, and no other."""

from __future__ import annotations

import re

import pytest

from tests.cluster.rendering import COMPONENTS
from tests.rbac import page, permissions
from tests.rbac.purposes import SELDOM


def rows(service: str) -> list[list[str]]:
    """The cells of a service's table."""
    text = page.PAGE.read_text(encoding="utf-8")
    heading = f"### {page.title(service)}\n"
    section = text.split(heading)[1].split("### ")[0]
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in section.splitlines()
        if line.startswith("| `")
    ]


@pytest.mark.parametrize("service", COMPONENTS)
def test_each_permission_has_its_row_with_what_it_is_for(service: str) -> None:
    granted = [
        [f"`{one}`", "optional" if one.optional else "required", page.purpose(one)]
        for one in permissions.of(service)
    ]
    assert [row[:3] for row in rows(service)] == granted, "run `make rbac-proof`"


@pytest.mark.parametrize("service", COMPONENTS)
def test_each_row_says_what_is_lost_and_of_optional_ones_what_is_said(service: str) -> None:
    for permission, kind, _, lost, said in rows(service):
        assert lost, permission
        assert said not in ("", "—") or kind == "required", permission


def test_verbs_that_are_seldom_used_name_a_test_that_uses_them() -> None:
    for test in SELDOM.values():
        file, _, name = test.partition("::")
        text = (page.PAGE.parents[1] / "tests" / file).read_text(encoding="utf-8")
        assert f"def {name}(" in text, test
