"""The pages of docs/ name only conditions, reasons, events, metrics and fields that there are."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from prometheus_client.registry import CollectorRegistry

import admission.metrics
import recommender.metrics
import updater.metrics
from recommender.decisions import OWNED as RECOMMENDERS
from updater.standing import OWNED as UPDATERS
from vpa.conditions import CONFIG_DEPRECATED

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
CODE = ("vpa", "recommender", "updater", "admission", "deploy", "tests/testbed")

OTHERS = {
    # Kubernetes, its tools and its neighbours, where our code has no use for the word
    "ServerSideApply",
    "PruneLast",
    "SkipDryRunOnMissingResource",
    "HelmRelease",
    "GitRepository",
    "ignoreDifferences",
}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@cache
def words() -> set[str]:
    """All words in code and manifests."""
    found: set[str] = set()
    for folder in CODE:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".json", ".tpl"):
                found.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return found


@cache
def metrics() -> set[str]:
    """The samples that the services export."""
    registry = CollectorRegistry()
    recommender.metrics.AllMetrics(registry)
    updater.metrics.AllMetrics(registry)
    admission.metrics.AdmissionMetrics(registry)
    admission.metrics.OwnMetrics(registry)
    found: set[str] = set()
    for family in registry.collect():
        ends = {"histogram": ("_bucket", "_count", "_sum", "")}.get(family.type, ("",))
        total = "_total" if family.type == "counter" and not family.name.endswith("_total") else ""
        found.update(f"{family.name}{total}{end}" for end in ends)
        found.add(family.name)
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_metric_that_is_named_is_exported(path: Path) -> None:
    names = re.findall(r"\bvpa_(?:recommender|updater|admission_controller|quality)_\w+", path.read_text())
    assert set(names) <= metrics()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_word_of_code_that_is_named_is_one(path: Path) -> None:
    """Conditions, reasons, events, kinds, fields: in backticks, with capitals within."""
    named = set(re.findall(r"`([A-Za-z]+[a-z][A-Z][A-Za-z]*)`", path.read_text(encoding="utf-8")))
    assert named - words() - OTHERS == set()


def test_the_page_of_conditions_has_a_row_for_each_that_is_written_and_its_writer() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", page("conditions.md"), re.MULTILINE)
    written = dict.fromkeys(RECOMMENDERS, "recommender") | dict.fromkeys(UPDATERS, "updater")
    assert dict(rows) == written | {CONFIG_DEPRECATED: "recommender"}
    assert len(rows) == len(dict(rows))


def test_the_columns_that_are_named_are_those_of_kubectl_get() -> None:
    crd = yaml.safe_load((ROOT / "deploy" / "crds" / "verticalpodautoscalers.yaml").read_text())
    columns = {one["name"].upper() for one in crd["spec"]["versions"][0]["additionalPrinterColumns"]}
    assert "PROVIDED" in columns
    for path in PAGES:
        assert set(re.findall(r"`([A-Z]{4,})` is", path.read_text())) <= columns


def test_the_rules_of_alerts_that_are_named_exist() -> None:
    alerts = (ROOT / "deploy" / "observability" / "alerts.yaml").read_text()
    for path in PAGES:
        for name in re.findall(r"`(VPA[A-Z]\w+)`", path.read_text()):
            assert f"alert: {name}\n" in alerts, name
