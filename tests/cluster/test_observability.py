"""The alerts as Prometheus' own tools see them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.testbed import builds
from tests.tools.deploy_copies import OBSERVABILITY

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # promtool is built on the first day

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
