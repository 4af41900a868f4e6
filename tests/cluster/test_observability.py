"""The alerts and the dashboard as Prometheus sees them."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from admission.metrics import AdmissionMetrics
from recommender.metrics import ObjectLabels, QualityMetrics, RecommenderMetrics
from tests.testbed import builds
from tests.testbed.prometheus import Prometheus
from tests.tools.deploy_copies import OBSERVABILITY
from updater.metrics import UpdaterMetrics
from vpa.durations import Duration
from vpa.telemetry import endpoints
from vpa.telemetry.health import Health
from vpa.telemetry.metrics import Counter, Family, Gauge, Histogram

pytestmark = [pytest.mark.cluster, pytest.mark.builds("prometheus")]

ALERTS = OBSERVABILITY / "alerts.yaml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
}

OBJECTS = "vpa_recommender_vpa_objects_count"
LOOPS = "vpa_recommender_execution_latency_seconds_count"
ANSWERS = "vpa_recommender_metric_server_responses"
QUERIES = "vpa_recommender_prometheus_client_api_requests_count"
REVIEWS = "vpa_admission_controller_admission_latency_seconds_count"
PODS = "vpa_admission_controller_admission_pods_total"
EVICTED = "vpa_updater_evicted_pods_total"
NAMED = 'vpa_namespace="shop",vpa_name="web"'

GROWS, STANDS, NONE, SOME = "0+60x180", "7x180", "0x180", "3x180"

# Alert → series with which it fires after three hours, and with which it does not.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "VPARecommenderMissing": ({}, {f'{LOOPS}{{step="total"}}': GROWS}),
    "VPARecommenderStandsStill": (
        {f'{LOOPS}{{step="total",pod="a"}}': STANDS, f'{LOOPS}{{step="total",pod="b"}}': NONE},
        {f'{LOOPS}{{step="total",pod="a"}}': GROWS, f'{LOOPS}{{step="total",pod="b"}}': NONE},
    ),
    "VPAUsageUnavailable": (
        {f'{ANSWERS}{{is_error="true"}}': GROWS, f'{ANSWERS}{{is_error="false"}}': STANDS},
        {f'{ANSWERS}{{is_error="true"}}': "0+1x180", f'{ANSWERS}{{is_error="false"}}': GROWS},
    ),
    "VPAHistoryUnavailable": (
        {f'{QUERIES}{{code="503"}}': GROWS, f'{QUERIES}{{code="200"}}': STANDS},
        {f'{QUERIES}{{code="503"}}': "0+1x180", f'{QUERIES}{{code="200"}}': GROWS},
    ),
    "VPAWithoutRecommendation": (
        {f'{OBJECTS}{{has_recommendation="false",matches_pods="true"}}': SOME},
        {
            f'{OBJECTS}{{has_recommendation="false",matches_pods="false"}}': SOME,
            f'{OBJECTS}{{has_recommendation="false",matches_pods="true"}}': NONE,
        },
    ),
    "VPAUnsupportedTarget": (
        {f'{OBJECTS}{{unsupported_config="true"}}': SOME},
        {f'{OBJECTS}{{unsupported_config="true"}}': NONE, f'{OBJECTS}{{unsupported_config="false"}}': SOME},
    ),
    "VPADeprecatedUpdateModeAuto": (
        {f'{OBJECTS}{{update_mode="Auto"}}': SOME},
        {f'{OBJECTS}{{update_mode="Auto"}}': NONE, f'{OBJECTS}{{update_mode="Recreate"}}': SOME},
    ),
    "VPAUpdaterMissing": ({}, {'vpa_updater_execution_latency_seconds_count{step="total"}': GROWS}),
    "VPAEvictionsFail": (
        {f'vpa_updater_failed_eviction_attempts_total{{reason="EvictionError",{NAMED}}}': GROWS},
        {f'vpa_updater_failed_eviction_attempts_total{{reason="EvictionError",{NAMED}}}': STANDS},
    ),
    "VPAResizesFail": (
        {f'vpa_updater_failed_in_place_update_attempts_total{{reason="InPlaceUpdateError",{NAMED}}}': GROWS},
        {f'vpa_updater_failed_in_place_update_attempts_total{{reason="InPlaceUpdateError",{NAMED}}}': STANDS},
    ),
    "VPAWebhookMissing": (
        {},
        {'vpa_admission_controller_execution_latency_seconds_count{step="total"}': GROWS},
    ),
    "VPAWebhookFails": (
        {f'{REVIEWS}{{status="error"}}': GROWS, f'{REVIEWS}{{status="applied"}}': GROWS},
        {f'{REVIEWS}{{status="error"}}': "0+1x180", f'{REVIEWS}{{status="applied"}}': GROWS},
    ),
    "VPAWebhookNotCalled": (
        {f"{EVICTED}{{{NAMED}}}": GROWS, f'{PODS}{{applied="true"}}': STANDS},
        {f"{EVICTED}{{{NAMED}}}": GROWS, f'{PODS}{{applied="true"}}': GROWS},
    ),
}


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [builds.binary("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_alerts() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", "--lint-fatal", ALERTS)


def test_every_alert_has_a_case_and_says_what_to_do() -> None:
    assert set(CASES) == set(RULES)
    for name, rule in RULES.items():
        assert rule["annotations"]["summary"].endswith("."), name
        assert rule["annotations"]["description"].endswith("."), name
        assert rule["labels"]["severity"] in {"warning", "info"}, name


@pytest.mark.parametrize("fires", [True, False], ids=["fires", "is silent"])
def test_an_alert_fires_when_it_should_and_only_then(tmp_path: Path, fires: bool) -> None:
    tests = [
        {
            "interval": "1m",
            "name": name,
            "input_series": [
                {"series": series, "values": values} for series, values in case[0 if fires else 1].items()
            ],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                    "eval_time": "3h",
                    "exp_samples": [{"labels": "{}", "value": 1 if fires else 0}],
                }
            ],
        }
        for name, case in CASES.items()
    ]
    file = tmp_path / "tests.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )
    assert "SUCCESS" in promtool("test", "rules", file)


LABELS = {
    "applied": ["true", "false"],
    "has_recommendation": ["true", "false"],
    "is_error": ["true", "false"],
    "is_oom": ["true", "false"],
    "matches_pods": ["true", "false"],
    "recommendation_missing": ["true", "false"],
    "resource": ["cpu", "memory"],
    "step": ["total", "one"],
    "unsupported_config": ["true", "false"],
}


def use(family: Family) -> None:
    """Something happens, with every label."""
    for values in itertools.product(*(LABELS.get(label, ["x"]) for label in family.labels)):
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(family, Histogram):
            family.observe(0.5, **labels)
        elif isinstance(family, Gauge):
            family.set(3, **labels)
        elif isinstance(family, Counter):
            family.inc(1.0, **labels)


async def test_every_query_of_the_dashboard_has_an_answer(tmp_path: Path) -> None:
    dashboard = json.loads((OBSERVABILITY / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    async with AsyncExitStack() as stack:
        families: list[Family] = []
        ports = []
        for kinds in ((RecommenderMetrics, QualityMetrics), (UpdaterMetrics,), (AdmissionMetrics,)):
            registry = endpoints.new_registry()
            for kind in kinds:
                families += [each for each in vars(kind(registry)).values() if isinstance(each, Family)]
            serving = endpoints.serving(
                address="127.0.0.1:0", registry=registry, health=Health(Duration.of(minutes=1))
            )
            ports.append(await stack.enter_async_context(serving))
        assert {"update_mode", *ObjectLabels._fields} <= {label for each in families for label in each.labels}
        prometheus = Prometheus(tmp_path)
        targets = [f"127.0.0.1:{port}" for port in ports]
        scrape = {"job_name": "vpa", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}))
        await asyncio.to_thread(prometheus.__enter__)
        stack.callback(prometheus.__exit__, None, None, None)
        session = await stack.enter_async_context(aiohttp.ClientSession(prometheus.url))

        async def answer(query: str) -> list[float]:
            async with session.get("/api/v1/query", params={"query": query}) as response:
                body = await response.json()
            assert body["status"] == "success", f"{query}: {body}"
            return [float(each["value"][1]) for each in body["data"]["result"]]

        waiting = list(queries)
        for _ in range(60):
            for family in families:
                use(family)
            await asyncio.sleep(1)
            waiting = [each for each in waiting if not any(value > 0 for value in await answer(each))]
            if not waiting:
                break
        assert waiting == []
