"""The alerts and the dashboard as Prometheus sees them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import subprocess
import urllib.request
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
import yaml

from admission.metrics import AdmissionMetrics
from recommender.metrics import ObjectLabels, QualityMetrics, RecommenderMetrics
from tests.cluster import roles
from tests.cluster.balancer import Balancer
from tests.cluster.recommending import Shop
from tests.cluster.rendering import COMPONENTS
from tests.cluster.replicas import Replica, clean_up, is_sized
from tests.testbed import builds
from tests.testbed.certificates import Authority
from tests.testbed.cluster import Cluster
from tests.testbed.metrics import MetricsApi
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


def queries_of_the_dashboard() -> list[str]:
    dashboard = json.loads((OBSERVABILITY / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def scraping(folder: Path, targets: list[str]) -> Prometheus:
    """A Prometheus that scrapes *targets* every second, and evaluates the alerts."""
    prometheus = Prometheus(folder)
    scrape = {"job_name": "vpa", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
    config = {"scrape_configs": [scrape], "rule_files": [str(ALERTS)]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    return prometheus


async def test_every_query_of_the_dashboard_has_an_answer(tmp_path: Path) -> None:
    queries = queries_of_the_dashboard()
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
        prometheus = scraping(tmp_path, [f"127.0.0.1:{port}" for port in ports])
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


def answer(prometheus: Prometheus, path: str, **parameters: str) -> Any:
    """What the HTTP API says, as data."""
    url = f"{prometheus.url}/api/v1/{path}?{urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=10) as response:
        body = json.load(response)
    assert body["status"] == "success", body
    return body["data"]


def test_every_query_of_the_dashboard_has_an_answer_from_services_at_work(
    cluster: Cluster, metrics: MetricsApi, namespace: str, tmp_path: Path
) -> None:
    """Pods are resized and evicted; and the updater, which may not read nodes and budgets, runs into both."""
    shop = Shop(cluster, namespace)
    modes = {
        "web": "InPlaceOrRecreate",
        "worker": "Recreate",
        "stuck": "InPlaceOrRecreate",
        "kept": "Recreate",
    }
    for name in modes:
        shop.workload(name, replicas=2)
        shop.use(name, cpu=0.5, memory=400)
    budget = {"selector": {"matchLabels": {"app": "kept"}}, "maxUnavailable": 0}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}}
    shop.api.create(kind | {"spec": budget}, namespace)
    with ExitStack() as stack:
        balancer = stack.enter_context(Balancer())
        authority = Authority(cluster.folder / "dashboard")
        stack.callback(clean_up, shop)
        replicas = []
        for component in COMPONENTS:
            account = cluster.service_account("kube-system", f"vpa-{component}")
            roles.ours(component, optional=component != "updater").grant_to(account)
            replica = Replica(
                component,
                shop=shop,
                account=account,
                balancer=balancer,
                authority=authority,
                name=f"dashboard-{component}",
                flags=["--wait-for-history=false"],
            )
            stack.enter_context(replica.process)
            replicas.append(replica)
        prometheus = stack.enter_context(scraping(tmp_path, [each.address for each in replicas]))
        processes = [each.process for each in replicas]
        first = "vpa_recommender_recommendation_latency_seconds_count"
        shop.wait("the first scrape", lambda: answer(prometheus, "query", query=first)["result"], *processes)
        too_large = {"containerPolicies": [{"containerName": "*", "minAllowed": {"cpu": "500"}}]}
        for name, mode in modes.items():
            policy = too_large if name == "stuck" else {}
            shop.vpa(name, updatePolicy={"updateMode": mode}, resourcePolicy=policy)
        for name in ("web", "worker"):
            shop.wait(f"{name} to be sized", lambda name=name: is_sized(shop, name, 2), *processes)  # type: ignore[misc]
        shop.use("web", cpu=0.9, memory=700)
        unanswered = queries_of_the_dashboard()
        looks = itertools.count()

        def answered() -> bool:
            if next(looks) % 5 == 0:  # rates need reviews that go on
                pod = shop.api.list("Pod", namespace, labelSelector="app=web")[0]
                shop.api.delete("Pod", pod["metadata"]["name"], namespace)
            for query in list(unanswered):
                found = answer(prometheus, "query", query=query)["result"]
                if found and not any(math.isnan(float(each["value"][1])) for each in found):
                    unanswered.remove(query)
            return not unanswered

        with contextlib.suppress(TimeoutError):
            shop.wait("all answers", answered, *processes)
        assert unanswered == []

        def evaluated() -> list[Any]:
            groups = answer(prometheus, "rules")["groups"]
            found = [rule for group in groups for rule in group["rules"]]
            return [] if any(rule["health"] == "unknown" for rule in found) else found

        rules = shop.wait("all rules to be evaluated", evaluated, *processes, seconds=120)
        assert {rule["name"]: rule["health"] for rule in rules} == dict.fromkeys(RULES, "ok")
        firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
        assert firing == []
