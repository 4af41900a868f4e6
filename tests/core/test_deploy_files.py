"""What can be said of deploy/ without a cluster."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

import pytest
import yaml

from admission.metrics import AdmissionMetrics
from recommender.metrics import QualityMetrics, RecommenderMetrics
from tests.tools import deploy_copies
from tests.tools.deploy_copies import CHART, DEPLOY, OBSERVABILITY
from updater.metrics import UpdaterMetrics
from vpa.telemetry.endpoints import new_registry

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
TARGETS = {"recommender": "recommender", "updater": "updater", "admission-controller": "admission"}
CRDS = ("verticalpodautoscalers", "verticalpodautoscalercheckpoints")


def crd(plural: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "crds" / f"{plural}.yaml").read_text())
    return loaded


def fields(schema: dict[str, Any], path: str = "") -> set[str]:
    """Every path of properties in a schema; ``[]`` stands for items, ``*`` for any key."""
    found: set[str] = {path} if path else set()
    for name, inner in schema.get("properties", {}).items():
        found |= fields(inner, f"{path}.{name}".lstrip("."))
    if isinstance(schema.get("items"), dict):
        found |= fields(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        found |= fields(schema["additionalProperties"], f"{path}.*")
    return found


def test_every_copy_equals_its_original() -> None:
    for path, text in deploy_copies.copies():
        assert path.read_text() == text, f"{path.relative_to(DEPLOY)} is out of date; run `make pages`"


@pytest.mark.parametrize("plural", CRDS)
def test_v1_is_served_and_stored_and_v1beta2_is_neither(plural: str) -> None:
    versions = {each["name"]: each for each in crd(plural)["spec"]["versions"]}
    assert list(versions) == ["v1", "v1beta2"]
    assert (versions["v1"]["served"], versions["v1"]["storage"]) == (True, True)
    assert (versions["v1beta2"]["served"], versions["v1beta2"]["storage"]) == (False, False)


def test_only_autoscalers_have_a_status_of_their_own() -> None:
    for version in crd("verticalpodautoscalers")["spec"]["versions"]:
        assert version["subresources"] == {"status": {}}
    for version in crd("verticalpodautoscalercheckpoints")["spec"]["versions"]:
        assert "subresources" not in version


def test_v1beta2_is_a_subset_of_v1() -> None:
    v1, v1beta2 = (
        fields(version["schema"]["openAPIV3Schema"])
        for version in crd("verticalpodautoscalers")["spec"]["versions"]
    )
    assert v1beta2 < v1
    assert {"spec.scope", "status.groups[].scopeValue", "spec.updatePolicy.minReplicas"} <= v1 - v1beta2


@pytest.mark.parametrize("plural", CRDS)
def test_no_field_has_a_default_and_every_field_is_described(plural: str) -> None:
    def walk(schema: dict[str, Any], path: str) -> None:
        assert "default" not in schema, path
        for name, inner in schema.get("properties", {}).items():
            here = f"{path}.{name}"
            assert name == "metadata" or inner.get("description", "").endswith("."), (
                f"{here} has no description"
            )
            walk(inner, here)
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), dict):
                walk(schema[key], path)

    for version in crd(plural)["spec"]["versions"]:
        walk(version["schema"]["openAPIV3Schema"], version["name"])


def test_each_target_of_the_image_runs_its_service_and_takes_only_arguments() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    final = {stage.splitlines()[0].split(" AS ")[1]: stage for stage in stages}
    for target, module in TARGETS.items():
        (entry,) = re.findall(r"^ENTRYPOINT (.*)$", final[target], flags=re.MULTILINE)
        assert json.loads(entry) == ["/opt/vpa/bin/python", "-IB", "-m", module]
        assert importlib.util.find_spec(module) is not None
    assert "CMD" not in DOCKERFILE
    assert re.findall(r"^USER (.*)$", DOCKERFILE, flags=re.MULTILINE) == ["65534:65534"]


def test_the_image_holds_the_packages_that_the_tests_ran_with() -> None:
    def pins(name: str) -> set[str]:
        text = (DEPLOY.parent / name).read_text()
        return {line.rstrip(" \\") for line in text.splitlines() if "==" in line}

    image = pins("deploy/requirements.lock")
    assert image <= pins("requirements.lock")
    assert not any(line.startswith(("pytest", "mypy", "ruff", "kubectl")) for line in image)


def test_every_value_of_the_chart_is_in_its_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def walk(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        if "properties" not in schema:
            return
        for key, value in values.items():
            assert key in schema["properties"], f"{path}{key}"
            if isinstance(value, dict):
                walk(value, schema["properties"][key], f"{path}{key}.")

    walk(values, schema, "")


def exported() -> set[str]:
    """The names of all series that the three services export."""
    registry = new_registry()
    for family in (RecommenderMetrics, QualityMetrics, UpdaterMetrics, AdmissionMetrics):
        family(registry)
    names = set()
    for metric in registry.collect():
        if metric.type == "histogram":
            names |= {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
        elif metric.type == "counter":
            names |= {metric.name, f"{metric.name}_total"}
        else:
            names.add(metric.name)
    return names


def test_the_dashboard_and_the_alerts_ask_only_for_metrics_that_are_exported() -> None:
    dashboard = json.loads((OBSERVABILITY / "dashboard.json").read_text())
    rules = yaml.safe_load((OBSERVABILITY / "alerts.yaml").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert len(queries) > 30
    known = exported()
    for query in queries:
        for name in re.findall(r"(?<![\w|(])(?:vpa|process)_\w+", query):
            assert name in known or name in {"vpa_namespace", "vpa_name"}, f"{name} in {query}"
