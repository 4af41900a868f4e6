"""The MutatingWebhookConfiguration that replicas keep, without ever leaving the API server without one."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import pytest

from tests.cluster import roles
from tests.cluster.webhooks import NAME, Webhook
from tests.testbed import builds
from tests.testbed.accounts import ServiceAccount
from tests.testbed.api import ApiNotFoundError, Json
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts

pytestmark = pytest.mark.builds("upstream-vpa")


@pytest.fixture
def account(cluster: Cluster) -> Iterator[ServiceAccount]:
    found = cluster.service_account("kube-system", "vpa-admission-controller")
    roles.ours("admission-controller").grant_to(found)
    yield found
    cluster.api.delete("MutatingWebhookConfiguration", NAME)


class Watch:
    """Looks at the configuration all the time; *gaps* are the looks that found none."""

    def __init__(self, cluster: Cluster) -> None:
        self.looks = self.gaps = 0
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            self.looks += 1
            try:
                self._cluster.api.get("MutatingWebhookConfiguration", NAME)
            except ApiNotFoundError:
                self.gaps += 1


def our_hook(configuration: Json) -> Json:
    found: list[Json] = [one for one in configuration["webhooks"] if one["name"] == "vpa.k8s.io"]
    assert len(found) == 1
    return found[0]


def test_the_webhook_is_registered_as_upstream_registers_its_own(
    cluster: Cluster, account: ServiceAccount
) -> None:
    flags = ["--webhook-labels=team:infra, tier : a", "--webhook-timeout-seconds=17"]
    with Webhook(cluster=cluster, account=account, name="ours", flags=flags) as webhook:
        ours = webhook.configured()
    upstream_account = cluster.service_account("kube-system", "upstream-admission-controller")
    roles.upstream("admission-controller").grant_to(upstream_account)
    with Webhook(
        cluster=cluster,
        account=upstream_account,
        name="peer",
        program=[builds.binary("upstream-admission-controller")],
        flags=flags,
        authority=webhook.authority,
        certificate=webhook.certificate,
        port=webhook.port,
    ) as peer:
        theirs = peer.configured()
    assert ours["metadata"]["labels"] == theirs["metadata"]["labels"] == {"team": "infra", "tier": "a"}
    expected, found = our_hook(theirs), our_hook(ours)
    # Upstream selects all namespaces whose name is not empty: all of them.
    assert expected.pop("namespaceSelector")["matchExpressions"][0]["values"] == [""]
    assert found.pop("namespaceSelector") == {}
    assert found == expected


@pytest.mark.parametrize(
    ("flag", "operator"),
    [("--ignored-vpa-object-namespaces=one,two", "NotIn"), ("--vpa-object-namespace=one", "In")],
)
def test_the_api_server_calls_only_for_namespaces_that_the_flags_leave(
    cluster: Cluster, account: ServiceAccount, flag: str, operator: str
) -> None:
    with Webhook(cluster=cluster, account=account, name="selective", flags=[flag]) as webhook:
        (expression,) = our_hook(webhook.configured())["namespaceSelector"]["matchExpressions"]
    assert expression["operator"] == operator
    assert expression["values"] == flag.partition("=")[2].split(",")


def test_a_configuration_that_is_there_is_changed_in_place(cluster: Cluster, account: ServiceAccount) -> None:
    stranger: dict[str, Any] = {
        "name": "stranger.example.org",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "rules": [
            {"apiGroups": ["none"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["none"]}
        ],
    }
    old = stranger | {"name": "vpa.k8s.io", "timeoutSeconds": 1, "matchPolicy": "Exact"}
    made = cluster.api.create(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": NAME, "labels": {"kept": "yes"}},
            "webhooks": [stranger, old],
        }
    )
    with Webhook(cluster=cluster, account=account, name="in-place") as webhook, Watch(cluster) as watch:
        changed = webhook.configured()
        webhook.process.kill()
        webhook.process.start()
        webhook.wait()
        unchanged = webhook.configured()
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    assert changed["metadata"]["labels"] == {"kept": "yes"}
    assert our_hook(changed)["timeoutSeconds"] == 30
    assert our_hook(changed)["matchPolicy"] == "Equivalent"
    assert [one["name"] for one in changed["webhooks"]] == ["vpa.k8s.io", "stranger.example.org"]
    assert unchanged["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]
    assert watch.looks > 50
    assert watch.gaps == 0


def test_replicas_that_start_together_agree(cluster: Cluster, account: ServiceAccount) -> None:
    first = Webhook(cluster=cluster, account=account, name="together-0")
    with ExitStack() as stack:
        replicas = [first] + [
            Webhook(
                cluster=cluster,
                account=account,
                name=f"together-{number}",
                authority=first.authority,
                certificate=first.certificate,
                flags=[f"--webhook-port={first.port}"],
            )
            for number in (1, 2, 3)
        ]
        for one in replicas:
            one.process = cluster.spawn(one.name, one.command(), NAMESPACE="kube-system")
            stack.enter_context(one.process)
        for one in replicas:
            for _ in attempts(60, f"{one.name} to register", one.process):
                if re.search("Registered the webhook|is registered as it should be", one.process.logs()):
                    break
        assert sum("Registered the webhook" in one.process.logs() for one in replicas) == 1
        assert our_hook(first.configured())["clientConfig"]["url"].endswith(f":{first.port}")
    cluster.api.delete("MutatingWebhookConfiguration", NAME)


def test_the_lease_tells_the_updater_that_the_webhook_runs(cluster: Cluster, account: ServiceAccount) -> None:
    cluster.api.delete("Lease", "alive", "kube-system")
    flags = ["--status-lease-name=alive", "--status-lease-update-interval=1s"]
    with Webhook(cluster=cluster, account=account, name="alive", flags=flags) as webhook:
        renewals = set()
        for _ in attempts(30, "three renewals", webhook.process):
            try:
                spec = cluster.api.get("Lease", "alive", "kube-system")["spec"]
            except ApiNotFoundError:
                continue
            assert spec["leaseDurationSeconds"] == 1
            renewals.add(spec.get("renewTime"))
            if len(renewals) > 3:
                return
