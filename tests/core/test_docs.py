"""The pages of docs/: their links lead somewhere, their examples run, and they name only flags that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools.flags_page import SERVICES

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
NAMES = [page.name for page in PAGES]

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)

FOREIGN_FLAGS = {
    # of kubectl, helm and docker
    *("server-side", "take-ownership", "namespace", "set", "target", "install"),
    # of nobody: examples of syntax
    *("name", "switch"),
    # of the vpa command
    *("usage", "explain", "now", "prometheus", "plan", "no-in-place"),
    # of the benchmarks
    "through-trickster",
}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page(name))):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / "docs" / path).resolve() if path else ROOT / "docs" / name
        assert file.exists(), f"{name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            known = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
            assert anchor in known, f"{name} links to {target}"


@pytest.mark.parametrize("name", NAMES)
def test_every_example_of_yaml_can_be_read(name: str) -> None:
    for language, text in FENCE.findall(page(name)):
        if language == "yaml":
            assert all(each is not None for each in yaml.safe_load_all(text))


@pytest.mark.parametrize("name", NAMES)
def test_only_flags_that_exist_are_named(name: str) -> None:
    known = {flag for table in SERVICES.values() for flag in table.flags}
    for flag in re.findall(r"`[^`\n]*?--([a-z][a-z0-9-]*[a-z0-9])", FENCE.sub("", page(name))):
        assert flag in known | FOREIGN_FLAGS, f"{name} names --{flag}"


def test_the_examples_of_the_library_page_run() -> None:
    shared: dict[str, Any] = {}
    blocks = [text for language, text in FENCE.findall(page("library.md")) if language == "python"]
    assert len(blocks) > 5
    for number, text in enumerate(blocks, 1):
        exec(compile(text, f"example {number} of docs/library.md", "exec"), shared)


def test_the_example_of_the_readme_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = [
        text for language, text in FENCE.findall((ROOT / "README.md").read_text()) if language == "python"
    ]
    exec(compile(text, "the example of README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == text.rsplit("# ", 1)[1].strip()


def test_every_link_of_the_readme_leads_to_a_file() -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", (ROOT / "README.md").read_text())):
        assert target.startswith("https://") or (ROOT / target).exists(), f"README.md links to {target}"


@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_too_long_to_read_in_a_terminal(name: str) -> None:
    text = FENCE.sub("", page(name))
    long = [line for line in text.splitlines() if len(line) > 140 and not line.startswith("|")]
    assert long == []
