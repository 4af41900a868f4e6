"""Certificates that come from files, and certificates that the webhook makes itself."""

from __future__ import annotations

import base64
import contextlib
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography import x509

from tests.cluster import roles
from tests.cluster.hooks import register
from tests.cluster.webhooks import (
    NAME,
    Scene,
    Webhook,
    container,
    recommendation,
    requests,
    resources,
)
from tests.testbed.accounts import ServiceAccount
from tests.testbed.api import ApiNotFoundError
from tests.testbed.certificates import ADDRESS, Authority, Certificate
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts

SECRET = "vpa-tls-certs"
GENERATE = "--generate-certificates"
SMALL = resources("100m", "100Mi")


@pytest.fixture
def account(cluster: Cluster) -> Iterator[ServiceAccount]:
    found = cluster.service_account("kube-system", "vpa-admission-controller")
    roles.ours("admission-controller").grant_to(found)
    yield found
    cluster.api.delete("MutatingWebhookConfiguration", NAME)
    cluster.api.delete("Secret", SECRET, "kube-system")


def served(port: int) -> x509.Certificate:
    """The certificate that a port shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((ADDRESS, port), timeout=5) as plain, context.wrap_socket(plain) as wrapped:
        return x509.load_der_x509_certificate(wrapped.getpeercert(binary_form=True) or b"")


def bundle(webhook: Webhook) -> bytes:
    return base64.b64decode(webhook.configured()["webhooks"][0]["clientConfig"]["caBundle"])


def sizes_a_pod(scene: Scene, name: str) -> bool:
    scene.vpa(name, recommendation("app", "250m", "200Mi"))
    (pod,) = scene.run("Deployment", name, container("app", SMALL))
    return requests(pod) == resources("250m", "200Mi")


class Volume:
    """A Secret as the kubelet mounts it: files are links into a folder that is replaced as a whole."""

    def __init__(self, folder: Path, authority: Authority, certificate: Certificate) -> None:
        self._folder = folder
        self._version = 0
        folder.mkdir()
        self.write(authority, certificate)
        for name in ("caCert.pem", "serverCert.pem", "serverKey.pem"):
            (folder / name).symlink_to(Path("..data") / name)

    def write(self, authority: Authority, certificate: Certificate) -> None:
        """Replace all at once."""
        self._version += 1
        version = self._folder / f"..version-{self._version}"
        version.mkdir()
        shutil.copy(authority.certificate, version / "caCert.pem")
        shutil.copy(certificate.chain, version / "serverCert.pem")
        shutil.copy(certificate.key, version / "serverKey.pem")
        link = self._folder / "..new"
        link.symlink_to(version.name)
        link.rename(self._folder / "..data")

    @property
    def flags(self) -> list[str]:
        return [
            f"--client-ca-file={self._folder}/caCert.pem",
            f"--tls-cert-file={self._folder}/serverCert.pem",
            f"--tls-private-key={self._folder}/serverKey.pem",
        ]


def test_a_new_leaf_and_a_new_ca_in_a_mounted_secret_are_taken_over(
    cluster: Cluster, namespace: str, account: ServiceAccount
) -> None:
    scene = Scene(cluster, namespace)
    old, new = Authority(cluster.folder / "old-ca"), Authority(cluster.folder / "new-ca")
    volume = Volume(cluster.folder / "volume", old, old.issue("webhook"))
    flags = [*volume.flags, "--reload-cert"]
    with Webhook(cluster=cluster, account=account, name="mounted", flags=flags) as webhook:
        assert sizes_a_pod(scene, "before")
        first = served(webhook.port)
        volume.write(old, old.issue("webhook-2"))
        for _ in attempts(20, "the new leaf", webhook.process):
            if served(webhook.port) != first:
                break
        for _ in attempts(20, "the CA to be looked at", webhook.process):
            if "Client CA did not change, skipping patch" in webhook.process.logs():
                break
        assert sizes_a_pod(scene, "new-leaf")
        volume.write(new, new.issue("webhook-3"))
        for _ in attempts(20, "the new CA to be published", webhook.process):
            if bundle(webhook) == new.certificate.read_bytes():
                break
        logs = webhook.process.logs()
        assert "New certificate found, reloading" in logs
        assert "New client CA found, reloading and patching webhook" in logs
        for _ in attempts(20, "the word of success", webhook.process):
            if "Successfully patched webhook with new client CA" in webhook.process.logs():
                break
        assert sizes_a_pod(scene, "new-ca")


def test_replicas_make_one_certificate_and_share_it(
    cluster: Cluster, namespace: str, account: ServiceAccount
) -> None:
    scene = Scene(cluster, namespace)
    with ExitStack() as stack:
        replicas = [
            Webhook(cluster=cluster, account=account, name=f"generating-{number}", flags=[GENERATE])
            for number in (1, 2, 3)
        ]
        for one in replicas:
            one.process = cluster.spawn(one.name, one.command(), NAMESPACE="kube-system")
            stack.callback(one.process.kill)
        for one in replicas:
            for _ in attempts(60, f"{one.name} to be ready", one.process):
                if one.health() == "OK":
                    break
        assert len({served(one.port) for one in replicas}) == 1
        for _ in attempts(30, "the registration", replicas[0].process):
            with contextlib.suppress(ApiNotFoundError):
                replicas[0].configured()
                break
        secret = cluster.api.get("Secret", SECRET, "kube-system")
        assert set(secret["data"]) == {"caCert.pem", "caKey.pem", "serverCert.pem", "serverKey.pem"}
        for _ in attempts(30, "the bundle", replicas[0].process):
            if bundle(replicas[0]) == base64.b64decode(secret["data"]["caCert.pem"]):
                break
        leaf = served(replicas[0].port)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["vpa-webhook.kube-system.svc"]
        assert sizes_a_pod(scene, "web")


def test_a_secret_that_others_made_is_completed_and_not_replaced(
    cluster: Cluster, account: ServiceAccount
) -> None:
    foreign = {"ca": base64.b64encode(b"theirs").decode()}
    cluster.api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "labels": {"of": "others"}},
            "data": foreign,
        },
        "kube-system",
    )
    with Webhook(cluster=cluster, account=account, name="completing", flags=[GENERATE]) as webhook:
        secret = cluster.api.get("Secret", SECRET, "kube-system")
        assert secret["data"]["ca"] == foreign["ca"]
        assert secret["metadata"]["labels"] == {"of": "others"}
        pem = base64.b64decode(secret["data"]["serverCert.pem"])
        assert x509.load_pem_x509_certificate(pem) == served(webhook.port)


def test_certificates_of_upstreams_script_are_served_as_they_are(
    cluster: Cluster, account: ServiceAccount
) -> None:
    authority = Authority(cluster.folder / "script")
    leaf = authority.issue("webhook", names=("vpa-webhook.kube-system.svc",))
    parts = {"caCert.pem": authority.certificate, "serverCert.pem": leaf.chain, "serverKey.pem": leaf.key}
    data = {name: base64.b64encode(path.read_bytes()).decode() for name, path in parts.items()}
    key = base64.b64encode(authority._ca.private_key_pem.bytes()).decode()
    cluster.api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET},
            "data": {**data, "caKey.pem": key},
        },
        "kube-system",
    )
    with Webhook(cluster=cluster, account=account, name="adopting", flags=[GENERATE]) as webhook:
        assert served(webhook.port) == x509.load_pem_x509_certificates(leaf.chain.read_bytes())[0]
        assert (
            cluster.api.get("Secret", SECRET, "kube-system")["data"]["serverCert.pem"]
            == data["serverCert.pem"]
        )


def test_the_bundle_of_a_configuration_that_others_rendered_is_filled_in(
    cluster: Cluster, namespace: str, account: ServiceAccount
) -> None:
    scene = Scene(cluster, namespace)
    url = f"https://{ADDRESS}"
    webhook = Webhook(
        cluster=cluster,
        account=account,
        name="filling",
        register=False,
        configuration="rendered",
        flags=[GENERATE],
    )
    register(cluster, "rendered", "", f"{url}:{webhook.port}/", [namespace], failurePolicy="Ignore")
    try:
        with webhook:
            for _ in attempts(30, "the bundle", webhook.process):
                client = webhook.configured()["webhooks"][0]["clientConfig"]
                if client.get("caBundle"):
                    break
            assert sizes_a_pod(scene, "web")
    finally:
        cluster.api.delete("MutatingWebhookConfiguration", "rendered")


def test_without_a_certificate_the_webhook_says_what_is_missing_and_ends(
    cluster: Cluster, account: ServiceAccount
) -> None:
    webhook = Webhook(
        cluster=cluster,
        account=account,
        name="bare",
        register=False,
        flags=["--tls-cert-file=/nowhere/serverCert.pem"],
    )
    webhook.process = cluster.spawn(webhook.name, webhook.command())
    assert webhook.process.wait(30) == 1
    last = webhook.process.tail(1)
    assert "/nowhere/serverCert.pem cannot be read" in last
    assert "--generate-certificates" in last
