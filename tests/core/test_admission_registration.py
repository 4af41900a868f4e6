"""What the registration should say, and what is changed of one that says something else."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from admission.registration import (
    Configuration,
    bundle_change,
    bundle_of,
    change,
    labels_of,
    namespace_selector,
    wanted_hook,
)
from admission.service import names_of, own_namespace
from admission.settings import Webhook
from vpa.objects.meta import ObjectMeta
from vpa.settings import Selection

CA = base64.b64encode(b"ca").decode()


def hook(bundle: str = CA, **flags: Any) -> dict[str, Any]:
    return wanted_hook(Webhook(**flags), Selection(), namespace="kube-system", bundle=bundle)


def configuration(*hooks: dict[str, Any], **labels: str) -> Configuration:
    return Configuration(metadata=ObjectMeta(name="c", labels=labels or None), webhooks=list(hooks))


def test_by_default_pods_and_vpas_of_all_namespaces_are_sent_to_the_service() -> None:
    assert hook() == {
        "name": "vpa.k8s.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {"name": "vpa-webhook", "namespace": "kube-system", "port": 443},
            "caBundle": CA,
        },
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "reinvocationPolicy": "Never",
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "*",
            },
            {
                "apiGroups": ["autoscaling.k8s.io"],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["verticalpodautoscalers"],
                "scope": "*",
            },
        ],
        "sideEffects": "None",
        "timeoutSeconds": 30,
    }


def test_an_address_is_joined_with_its_port_as_it_is_given() -> None:
    found = hook(register_by_url=True, webhook_address="https://hook.example.org", webhook_port="8443")
    assert found["clientConfig"]["url"] == "https://hook.example.org:8443"
    assert "service" not in found["clientConfig"]


def test_flags_say_how_long_the_api_server_waits_and_what_it_does_then() -> None:
    found = hook(webhook_timeout_seconds=5, webhook_failure_policy_fail=True)
    assert (found["timeoutSeconds"], found["failurePolicy"]) == (5, "Fail")


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(), None),
        (Selection(ignored_vpa_object_namespaces=","), None),
        (Selection(ignored_vpa_object_namespaces="b,a"), ("NotIn", ["a", "b"])),
        (Selection(vpa_object_namespace="a"), ("In", ["a"])),
    ],
)
def test_namespaces_are_selected_as_the_flags_do(
    selection: Selection, expected: tuple[str, list[str]] | None
) -> None:
    found = namespace_selector(selection)
    if expected is None:
        assert found == {}
    else:
        (expression,) = found["matchExpressions"]
        assert expression["key"] == "kubernetes.io/metadata.name"
        assert (expression["operator"], expression["values"]) == expected


def test_labels_are_read_as_upstream_reads_them() -> None:
    assert labels_of("") == {}
    assert labels_of("key1:value1, key2 : value2,key3:") == {"key1": "value1", "key2": "value2", "key3": ""}
    assert labels_of('"k1:v1,k2:v2"') == {"k1": "v1", "k2": "v2"}
    for wrong in ("foo,bar", "key1:value1,:bar"):
        with pytest.raises(ValueError, match="is no name:value pair"):
            labels_of(wrong)


def test_what_is_as_it_should_be_is_not_written() -> None:
    assert change(configuration(hook(), a="b", other="label"), hook(), {"a": "b"}) is None


def test_what_differs_is_changed_and_what_belongs_to_others_stays() -> None:
    theirs = {"name": "theirs.example.org"}
    old = hook() | {"timeoutSeconds": 1, "matchConditions": [{"name": "x"}]}
    patch = change(configuration(theirs, old, mine="old"), hook(), {"mine": "new"})
    assert patch == {"metadata": {"labels": {"mine": "new"}}, "webhooks": [hook(), theirs]}


def test_a_bundle_that_we_cannot_read_does_not_replace_the_one_that_is_there() -> None:
    assert change(configuration(hook()), hook(bundle=""), {}) is None
    patch = change(configuration(hook() | {"timeoutSeconds": 1}), hook(bundle=""), {})
    assert patch is not None
    assert patch["webhooks"] == [hook()]


def test_a_new_bundle_changes_nothing_else() -> None:
    theirs = {"name": "theirs.example.org", "clientConfig": {"caBundle": "theirs"}}
    edited = hook() | {"timeoutSeconds": 7}
    current = configuration(edited, theirs)
    assert bundle_of(current) == CA
    assert bundle_change(current, CA) is None
    assert bundle_change(current, "new") == {
        "webhooks": [edited | {"clientConfig": {**edited["clientConfig"], "caBundle": "new"}}, theirs]
    }
    assert bundle_change(configuration(theirs), "new") is None
    assert bundle_of(configuration()) == ""


def test_the_certificate_names_what_the_api_server_calls() -> None:
    assert names_of(Webhook(), "vpa") == ["vpa-webhook.vpa.svc"]
    by_url = Webhook(register_by_url=True, webhook_address="https://10.0.0.7", webhook_service="s")
    assert names_of(by_url, "vpa") == ["s.vpa.svc", "10.0.0.7"]


def test_the_namespace_is_the_one_of_the_environment() -> None:
    assert own_namespace({"NAMESPACE": "vpa"}) == "vpa"
    assert own_namespace({}) == "kube-system"
