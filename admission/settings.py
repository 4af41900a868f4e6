"""All flags of the admission controller: upstream's 1.8 and ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vpa import process, settings
from vpa.durations import Duration
from vpa.flags import Group, Table, flag, one_of
from vpa.rules import Rules


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificates(Group):
    """TLS."""

    tls_cert_file: str = flag("/etc/tls-certs/serverCert.pem", "Certificate of the webhook.")
    tls_private_key: str = flag("/etc/tls-certs/serverKey.pem", "Its key.")
    client_ca_file: str = flag(
        "/etc/tls-certs/caCert.pem", "Certificate of the CA that the API server verifies the webhook by."
    )
    reload_cert: bool = flag(False, "Read the certificate again when its files change.")
    generate_certificates: bool = flag(
        False, "Make a CA and a certificate, keep them in a Secret and renew them in time."
    )
    certificates_secret: str = flag("vpa-tls-certs", "That Secret, in the namespace of the service.")
    min_tls_version: str = flag("tls1_2", "Oldest TLS version.", kind=one_of("", "tls1_2", "tls1_3"))
    tls_ciphers: str = flag(
        "", "Comma- or colon-separated cipher suites by their Go names; empty: the usual."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook(Group):
    """The webhook and how the API server is told of it."""

    port: int = flag(8000, "Port of the webhook.")
    register_webhook: bool = flag(True, "Create the MutatingWebhookConfiguration and keep it up to date.")
    webhook_configuration: str = flag(
        "vpa-webhook-config",
        "Its name. One that somebody else made (--register-webhook=false) gets the CA of "
        "--generate-certificates.",
    )
    webhook_service: str = flag("vpa-webhook", "Service of the webhook.")
    register_by_url: bool = flag(False, "Register an address in place of the Service.")
    webhook_address: str = flag("", "That address, with https://.")
    webhook_port: str = flag("", "That address' port.")
    webhook_timeout_seconds: int = flag(30, "Time after which the API server stops waiting for an answer.")
    webhook_failure_policy_fail: bool = flag(
        False, "Let the API server refuse pods while the webhook does not answer."
    )
    webhook_labels: str = flag("", "Labels of the configuration: comma-separated name:value pairs.")

    def problems(self) -> Iterator[str]:
        if not 0 < self.port < 65536:
            yield f"--port must be between 1 and 65535, not {self.port}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusLease(Group):
    """The lease that tells the updater that admission runs."""

    status_lease_name: str = flag("vpa-admission-controller", "Name of the lease.")
    status_lease_namespace: str = flag(
        "", "Its namespace; empty: that of the environment's NAMESPACE, else kube-system."
    )
    status_lease_update_interval: Duration = flag(Duration.of(seconds=10), "Time between two renewals.")

    def problems(self) -> Iterator[str]:
        if self.status_lease_update_interval <= 0:
            yield "--status-lease-update-interval must be longer than 0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving(process.Serving):
    """Metrics and health."""

    address: str = flag(":8944", "Where /metrics and /health-check are served.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the admission controller is told at start."""

    behaviour: settings.Behaviour
    rules: Rules
    selection: settings.Selection
    sizing: settings.Sizing
    boosting: settings.Boosting
    webhook: Webhook
    certificates: Certificates
    status_lease: StatusLease
    connection: process.Connection
    serving: Serving
    logging: process.Logging


TABLE = Table.of(Settings)
