"""One call of the webhook: whatever comes, the answer is quick, proper, and never a refusal of a pod."""

from __future__ import annotations

import copy
import json
import random
from http import HTTPStatus
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.handler import LARGEST, patience_of
from tests.core.admission_kit import PODS, VPAS, Bench, patch_of, review
from tests.core.pods import UPSTREAM, Data, container, limit_range, pod, refusals, vpa
from vpa.gates import FeatureGates

TARGET = {"app": {"cpu": "250m", "memory": "200Mi"}}
SMALL = {"cpu": "100m", "memory": "100Mi"}


def a_pod(**more: Any) -> Data:
    return pod(container("app", SMALL, {"cpu": "200m"}), **more)


async def test_a_pod_gets_its_patch_in_the_version_that_it_was_asked_in() -> None:
    bench = Bench(vpa(TARGET))
    for version in ("v1", "v1beta1"):
        body = review(PODS, a_pod(), version=version)
        reply = await bench.call(json.dumps(body).encode())
        answer = json.loads(reply.body)
        assert answer["apiVersion"] == f"admission.k8s.io/{version}"
        assert answer["response"]["uid"] == body["request"]["uid"]
        assert answer["response"]["allowed"] is True
        changed = jsonpatch.apply_patch(a_pod(), patch_of(answer["response"]))
        assert changed["spec"]["containers"][0]["resources"]["requests"] == TARGET["app"]
    assert bench.metrics.pods.value(applied="true") == 2
    assert bench.metrics.latency.count(status="applied", resource="Pod") == 2
    for step in ("read_request", "admit", "build_response"):
        assert bench.metrics.execution_latency.count(step=step) == 2


async def test_a_pod_without_a_vpa_is_let_in_and_counted_with_the_reason() -> None:
    bench = Bench()
    assert await bench.ask(review(PODS, a_pod())) == {
        "uid": "0b1d9a4e-7f4a-4a77-9d5c-5a2f8a2f3b11",
        "allowed": True,
    }
    assert bench.own.unchanged.value(reason="NoVPA") == 1
    assert bench.metrics.latency.count(status="skipped", resource="Pod") == 1


@pytest.mark.parametrize(
    ("bench", "obj", "reason"),
    [
        (Bench(vpa(TARGET), synced=False), a_pod(), "NotSynced"),
        (Bench(vpa(TARGET)), {"spec": {"containers": "many"}}, "Unreadable"),
        (Bench(vpa(TARGET)), pod(container("app", {"cpu": "a lot"})), "Unreadable"),
        (Bench(vpa(TARGET), bug=RuntimeError("bug")), a_pod(), "InternalError"),
        (Bench(vpa(TARGET), bug=RecursionError()), a_pod(), "InternalError"),
    ],
)
async def test_any_doubt_lets_the_pod_in_unchanged_and_counts_as_an_error(
    bench: Bench, obj: Data, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await bench.ask(review(PODS, obj))).keys() == {"uid", "allowed"}
    assert bench.own.unchanged.value(reason=reason) == 1
    assert bench.metrics.latency.count(status="error", resource="Pod") == 1
    assert bench.metrics.pods.value(applied="false") == 1
    assert "Let an object in unchanged" in caplog.text


@pytest.mark.parametrize(
    "change", [{"operation": "UPDATE"}, {"subResource": "ephemeralcontainers"}, {"operation": "DELETE"}]
)
async def test_nothing_but_the_creation_of_a_pod_is_patched(change: Data) -> None:
    body = review(PODS, a_pod())
    body["request"] |= change
    assert patch_of(await Bench(vpa(TARGET)).ask(body)) == []


async def test_other_objects_are_let_in() -> None:
    bench = Bench(vpa(TARGET))
    response = await bench.ask(review({"group": "apps", "version": "v1", "resource": "deployments"}, {}))
    assert response["allowed"] is True
    assert bench.metrics.latency.count(status="error", resource="unknown") == 1


async def test_a_vpa_without_a_mode_is_completed_and_an_unsound_one_refused() -> None:
    bench = Bench()
    spec: Data = {"targetRef": {"kind": "Deployment", "name": "web"}}
    response = await bench.ask(review(VPAS, {"metadata": {"name": "v"}, "spec": spec}, name="v"))
    assert patch_of(response) == [
        {"op": "add", "path": "/spec/updatePolicy", "value": {"updateMode": "Recreate"}}
    ]
    spec |= {"updatePolicy": {"updateMode": "Auto", "minReplicas": 0}}
    response = await bench.ask(review(VPAS, {"metadata": {"name": "v"}, "spec": spec}, name="v"))
    assert response["allowed"] is False
    assert "patch" not in response
    assert response["warnings"][0].startswith('spec.updatePolicy: "Auto" mode is deprecated')
    error = "spec.updatePolicy.minReplicas: Invalid value: 0: minReplicas has to be positive"
    assert response["status"] == {
        "status": "Failure",
        "message": f'VerticalPodAutoscaler.autoscaling.k8s.io "v" is invalid: {error}',
        "reason": "Invalid",
        "details": {
            "name": "v",
            "group": "autoscaling.k8s.io",
            "kind": "VerticalPodAutoscaler",
            "causes": [
                {
                    "reason": "FieldValueInvalid",
                    "message": "Invalid value: 0: minReplicas has to be positive",
                    "field": "spec.updatePolicy.minReplicas",
                }
            ],
        },
        "code": 422,
    }


async def test_what_an_update_keeps_of_an_old_vpa_is_not_refused() -> None:
    old = {"spec": {"resourcePolicy": {"containerPolicies": [{"containerName": "a", "oomBumpUpRatio": "2"}]}}}
    body = review(VPAS, old, operation="UPDATE", name="v")
    assert (await Bench().ask(body))["allowed"] is False
    body["request"]["oldObject"] = old
    assert (await Bench().ask(body))["allowed"] is True


REVIEW = json.dumps(review(PODS, a_pod())).encode()
OTHER_VERSION = REVIEW.replace(b"admission.k8s.io/v1", b"admission.k8s.io/v2")


@pytest.mark.parametrize(
    ("body", "call", "status"),
    [
        (REVIEW, {"content_type": "text/plain"}, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
        (REVIEW, {"content_type": ""}, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
        (REVIEW, {"method": "GET"}, HTTPStatus.METHOD_NOT_ALLOWED),
        (b"", {}, HTTPStatus.BAD_REQUEST),
        (b"{", {}, HTTPStatus.BAD_REQUEST),
        (b"[" * 100_000, {}, HTTPStatus.BAD_REQUEST),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', {}, HTTPStatus.BAD_REQUEST),
        (OTHER_VERSION, {}, HTTPStatus.BAD_REQUEST),
    ],
)
async def test_calls_that_are_no_reviews_get_proper_http_errors(
    body: bytes, call: dict[str, str], status: HTTPStatus
) -> None:
    bench = Bench(vpa(TARGET))
    reply = await bench.call(body, **call)
    assert reply.status == status
    assert reply.content_type == "text/plain"
    assert reply.body.endswith(b"\n")
    assert bench.metrics.latency.count(status="error", resource="unknown") == 1


async def test_parameters_of_the_content_type_do_not_matter() -> None:
    reply = await Bench(vpa(TARGET)).call(REVIEW, content_type="application/json; charset=utf-8")
    assert reply.status == HTTPStatus.OK


async def test_upstreams_rules_answer_what_is_no_review_as_upstream_does() -> None:
    bench = Bench(vpa(TARGET), rules=UPSTREAM)
    assert (await bench.call(REVIEW, content_type="text/plain")).body == b""
    for body in (b"", b"{", b"{}"):
        reply = await bench.call(body)
        assert reply.status == HTTPStatus.OK
        assert json.loads(reply.body)["response"] == {"uid": "", "allowed": True}
    assert patch_of(json.loads((await bench.call(REVIEW, method="PUT")).body)["response"])


def test_a_body_that_is_too_large_is_said_to_be() -> None:
    reply = Bench().handler.too_large()
    assert reply.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert reply.body == b"request payload too large\n"
    assert LARGEST == 5 * 1024 * 1024


@pytest.mark.parametrize(
    ("query", "patience"),
    [("", 3.0), ("timeout=30s", 3.0), ("timeout=1s", 0.6), ("timeout=nonsense", 3.0), ("timeout=-1s", 3.0)],
)
def test_a_pod_waits_three_seconds_at_most_and_less_where_the_api_server_is_impatient(
    query: str, patience: float
) -> None:
    assert patience_of(query) == pytest.approx(patience)


# Fuzz

quantities = st.sampled_from(["0", "1m", "50m", "1", "1500m", "64Ki", "100Mi", "1Gi", "3", "1e3", "0.5"])
resource_lists = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "a~b/c"]), quantities)
maybe_lists = st.none() | resource_lists
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def pods(draw: st.DrawFn) -> Data:
    names = draw(st.lists(st.sampled_from(["app", "proxy", "log"]), min_size=1, max_size=3, unique=True))
    containers = [container(name, draw(maybe_lists), draw(maybe_lists)) for name in names]
    made = pod(*containers)
    annotations = draw(st.none() | st.dictionaries(st.text("ab/~", max_size=4), st.text(max_size=4)))
    if annotations is not None:
        made["metadata"]["annotations"] = annotations
    if draw(st.booleans()):
        made["spec"]["resources"] = {"limits": draw(resource_lists)}
    return made


@st.composite
def vpas(draw: st.DrawFn) -> Data:
    targets: Data = draw(
        st.dictionaries(st.sampled_from(["app", "proxy", "log", "gone"]), resource_lists, max_size=3)
    )
    policies = draw(
        st.lists(
            st.fixed_dictionaries(
                {"containerName": st.sampled_from(["*", "app", "proxy"])},
                optional={
                    "mode": st.sampled_from(["Auto", "Off"]),
                    "controlledValues": st.sampled_from(["RequestsOnly", "RequestsAndLimits"]),
                    "minAllowed": resource_lists,
                    "maxAllowed": resource_lists,
                },
            ),
            max_size=2,
        )
    )
    boost = draw(st.none() | st.just({"cpu": {"type": "Factor", "factor": 3}}) | st.just({}))
    spec = {} if boost is None else {"startupBoost": boost}
    mode = draw(st.sampled_from(["Recreate", "Off", "Initial", "InPlace"]))
    return vpa(targets, policies=policies, updatePolicy={"updateMode": mode}, **spec)


ranges = st.none() | st.fixed_dictionaries(
    {"type": st.sampled_from(["Pod", "Container"])},
    optional={"max": resource_lists, "min": resource_lists, "default": resource_lists},
)


@given(pods(), vpas(), ranges, st.booleans())
async def test_every_patch_applies_and_makes_a_valid_pod_no_worse(
    created: Data, autoscaler: Data, item: Data | None, gate: bool
) -> None:
    limit_ranges = () if item is None else (limit_range(item),)
    gates = FeatureGates.parse("CPUStartupBoost=true" if gate else "")
    bench = Bench(autoscaler, limit_ranges, gates=gates)
    response = await bench.ask(review(PODS, created))
    assert response["allowed"] is True
    assert bench.own.unchanged.value(reason="InternalError") == 0
    changed = jsonpatch.apply_patch(copy.deepcopy(created), patch_of(response))
    if not refusals(created, *limit_ranges):
        assert refusals(changed, *limit_ranges) == []


@given(st.binary(max_size=200))
async def test_bytes_of_any_kind_get_an_answer(body: bytes) -> None:
    assert (await Bench(vpa(TARGET)).call(body)).status == HTTPStatus.BAD_REQUEST


@given(values, values, st.sampled_from([PODS, VPAS]), st.sampled_from(["CREATE", "UPDATE"]))
async def test_objects_of_any_shape_get_an_answer(obj: Any, old: Any, resource: Data, operation: str) -> None:
    body = review(resource, obj, operation=operation, oldObject=old)
    reply = await Bench(vpa(TARGET)).call(json.dumps(body).encode())
    assert reply.status in (HTTPStatus.OK, HTTPStatus.BAD_REQUEST)


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 6))
async def test_damaged_reviews_get_an_answer_and_pods_are_let_in(seed: int, damages: int) -> None:
    chance = random.Random(seed)
    body = copy.deepcopy(review(PODS, a_pod()))
    for _ in range(damages):
        _damage(body["request"], chance)
    bench = Bench(vpa(TARGET))
    reply = await bench.call(json.dumps(body).encode())
    if reply.status == HTTPStatus.OK:
        response = json.loads(reply.body)["response"]
        assert response["allowed"] is True
        if "patch" in response:
            jsonpatch.apply_patch(body["request"]["object"], patch_of(response))
    else:
        assert reply.status == HTTPStatus.BAD_REQUEST


def _damage(data: Any, chance: random.Random) -> None:
    """Replace something, somewhere."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(data[key], dict | list) and data[key] and chance.random() < 0.8:
            data = data[key]
            continue
        data[key] = chance.choice([None, "", "x", -1, 1.5, True, [], {}, [None], {"a": None}, 10**30])
        return


def an_agent(node: str) -> Data:
    """A pod as the DaemonSet controller creates it, for one node."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return pod(container("app", SMALL), affinity=affinity)


async def test_a_pod_of_a_daemon_set_that_a_label_splits_gets_what_is_recommended_for_its_node() -> None:
    groups = {"big": {"cpu": "2"}, "small": {"cpu": "1"}}
    autoscaler = vpa(
        {}, scope="size", targetRef={"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent"}
    )
    autoscaler["status"] = {
        "groups": [
            {"scopeValue": value, "containerRecommendations": [{"containerName": "app", "target": target}]}
            for value, target in groups.items()
        ]
    }
    labels = {"one": {"size": "small"}, "two": {"size": "big"}, "three": {}}
    bench = Bench(autoscaler, labels=labels)
    sizes = {}
    for node in (*labels, "unknown"):
        patch = patch_of(await bench.ask(review(PODS, an_agent(node))))
        changed = jsonpatch.apply_patch(an_agent(node), patch)
        sizes[node] = changed["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    assert sizes == {"one": "1", "two": "2", "three": "100m", "unknown": "100m"}
    assert bench.own.unchanged.value(reason="NoRecommendation") == 2


async def test_replicas_share_a_decision_and_pods_that_differ_do_not() -> None:
    bench = Bench(vpa(TARGET))
    first = await bench.ask(review(PODS, a_pod()))
    again = a_pod()
    again["metadata"] |= {"name": "another", "labels": {"pod": "another"}}
    assert patch_of(await bench.ask(review(PODS, again))) == patch_of(first)
    other = pod(container("app", SMALL, {"cpu": "400m"}))
    assert patch_of(await bench.ask(review(PODS, other))) != patch_of(first)
    annotated = a_pod()
    annotated["metadata"]["annotations"] = {}
    assert patch_of(await bench.ask(review(PODS, annotated))) == patch_of(first)[1:]
