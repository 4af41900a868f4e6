"""Puts the webhook together, runs it, and takes it down so that no pod waits for an answer in vain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from admission import tls
from admission.autoscalers import Autoscalers
from admission.choosing import Chooser
from admission.files import CertificateFiles
from admission.handler import Handler
from admission.health import READ_PATIENCE, WebhookHealth
from admission.metrics import AdmissionMetrics, OwnMetrics
from admission.mirrors import Mirrors
from admission.pods import Pods
from admission.registration import Registration
from admission.server import PortError, Server
from admission.settings import Settings, Webhook
from admission.tls import CertificateError
from vpa.cluster.connection import Connection
from vpa.cluster.errors import ConfigurationError
from vpa.cluster.heartbeats import Heartbeat
from vpa.cluster.reviews import Reviews
from vpa.cluster.startup import connect
from vpa.durations import SECOND
from vpa.sizes.patches import Terms
from vpa.telemetry.endpoints import AddressError, new_registry, serving
from vpa.telemetry.programs import FatalError

log = logging.getLogger(__name__)

COMPONENT: Final = "vpa-admission-controller"
FALLBACK_NAMESPACE: Final = "kube-system"
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
NEW_OBJECTS: Final = 50_000
"""New objects after which the garbage collector looks for cycles; a review leaves none behind."""


class CertificateSource(Protocol):
    """Where the certificate comes from: files, or a Secret of our own."""

    @property
    def bundle(self) -> str: ...

    async def obtain(self) -> None: ...

    async def keep(self, publish: Callable[[str], Awaitable[bool]] | None) -> None: ...


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run until *stop* is set. Raises `FatalError` when it cannot go on."""
    registry = new_registry()
    metrics = AdmissionMetrics(registry)
    health = WebhookHealth()
    try:
        async with contextlib.AsyncExitStack() as stack:
            connection = await stack.enter_async_context(await connect(settings.connection, COMPONENT))
            served = serving(
                address=settings.serving.address,
                registry=registry,
                health=health,
                profile=settings.serving.profiling,
                guard=Reviews(connection) if settings.serving.authenticate_metrics else None,
            )
            await stack.enter_async_context(served)
            await Service(settings, connection, metrics, OwnMetrics(registry), health).run(stop)
    except Exception as error:
        why = _fatal(error)
        if why is None:
            raise
        raise FatalError(why) from error


def _fatal(error: Exception) -> str | None:
    """What to tell of an error that is nobody's bug; None for others."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AddressError | PortError | CertificateError):
        return str(error)
    if isinstance(error, ConfigurationError):
        return f"the API server cannot be used: {error}"
    return None


class Service:
    """One running admission controller."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        metrics: AdmissionMetrics,
        own: OwnMetrics,
        health: WebhookHealth,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._health = health
        self._namespace = own_namespace()
        self._mirrors = Mirrors(
            connection,
            selection=settings.selection,
            rules=settings.rules,
            cap_to_node=settings.sizing.cap_to_node,
        )
        context = tls.server_context(settings.certificates)
        handler = _handler(settings, connection, self._mirrors, metrics, own)
        self._server = Server(handler, metrics=metrics, context=context)
        self._registration = Registration(
            connection, settings.webhook, settings.selection, namespace=self._namespace
        )
        self._certificates: CertificateSource
        if settings.certificates.generate_certificates:
            # Imported here, since cryptography takes 8 MiB that those who bring their files need not have.
            from admission.certificates import GeneratedCertificates

            self._certificates = GeneratedCertificates(
                connection,
                context,
                self._registration,
                namespace=self._namespace,
                name=settings.certificates.certificates_secret,
                names=names_of(settings.webhook, self._namespace),
            )
        else:
            self._certificates = CertificateFiles(settings.certificates, context)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until *stop* is set, and until the last call is answered."""
        async with self._mirrors.running():
            self._health.waiting_for = "a certificate"
            if not await _before(stop, self._certificates.obtain()):
                return
            port = self._settings.webhook.port
            async with self._server.serving(port):
                log.info("Serving the webhook", extra={"port": port})
                await _before(stop, self._work(port))

    async def _work(self, port: int) -> None:
        """Everything beside answering calls."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._health.watch(port), name="health")
            await self._ready()
            await self._mirrors.wait()
            webhook = self._settings.webhook
            if webhook.register_webhook:
                await self._registration.ensure(self._certificates.bundle)
                group.create_task(self._registration.guard(lambda: self._certificates.bundle))
            ours = webhook.register_webhook or self._settings.certificates.generate_certificates
            publish = self._registration.publish if ours else None
            group.create_task(self._certificates.keep(publish), name="certificates")
            group.create_task(self._heartbeat().run(), name="status lease")

    async def _ready(self) -> None:
        """Wait until all is read that reviews need, but not for ever; then calls may come."""
        self._health.waiting_for = "the first lists of the API server"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_PATIENCE):
                await self._mirrors.wait()
        self._health.waiting_for = None
        gc.collect()
        gc.freeze()  # what was read at the start stays, and need not be searched again and again
        gc.set_threshold(NEW_OBJECTS)
        log.info("Ready", extra={"vpas": len(self._mirrors.index), "owners": len(self._mirrors.lineage)})

    def _heartbeat(self) -> Heartbeat:
        settings = self._settings.status_lease
        return Heartbeat(
            self._connection,
            namespace=settings.status_lease_namespace or self._namespace,
            name=settings.status_lease_name,
            holder=socket.gethostname(),
            interval=settings.status_lease_update_interval / SECOND,
        )


def _handler(
    settings: Settings,
    connection: Connection,
    mirrors: Mirrors,
    metrics: AdmissionMetrics,
    own: OwnMetrics,
) -> Handler:
    behaviour, rules = settings.behaviour, settings.rules
    gates, mode = behaviour.feature_gates, behaviour.default_update_mode
    terms = Terms(
        rules=rules,
        gates=gates,
        default_mode=mode,
        most_boost=settings.boosting.max_allowed_cpu_boost,
    )
    chooser = Chooser(
        mirrors,
        connection,
        rules=rules,
        gates=gates,
        default_mode=mode,
        asked=own.owner_requests.inc,
    )
    return Handler(
        Pods(mirrors, chooser, terms=terms),
        Autoscalers(rules=rules, gates=gates, default_mode=mode),
        metrics=metrics,
        own=own,
        rules=rules,
    )


def own_namespace(environ: Mapping[str, str] = os.environ) -> str:
    """Where the Service, the Secret and the status lease are."""
    named = environ.get("NAMESPACE", "")
    if named:
        return named
    try:
        return NAMESPACE_FILE.read_text().strip() or FALLBACK_NAMESPACE
    except OSError:
        return FALLBACK_NAMESPACE


def names_of(webhook: Webhook, namespace: str) -> list[str]:
    """What the API server calls the webhook by: the Service's name, and the host of a registered address."""
    names = [f"{webhook.webhook_service}.{namespace}.svc"]
    host = urlsplit(webhook.webhook_address).hostname if webhook.register_by_url else None
    if host:
        names.append(host)
    return names


async def _before(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Run *work* until it is done (True), or until *stop* is set and it is cancelled (False)."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            return True
        return False
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
