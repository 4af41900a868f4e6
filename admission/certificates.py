"""``--generate-certificates``: the Secret that all replicas share, renewed by whichever comes first."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from admission import issuing, tls
from admission.issuing import Material, Step
from admission.registration import Registration
from vpa.cluster import reads, writes
from vpa.cluster.connection import Connection
from vpa.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from vpa.cluster.pacing import Backoff
from vpa.cluster.resources import SECRETS
from vpa.objects.meta import Obj, ObjectMeta, PartialObject
from vpa.telemetry import logs

log = logging.getLogger(__name__)

PERIOD: Final = 60.0
"""Seconds between two looks at the Secret."""
KEYS: Final = {
    "authorities": "caCert.pem",
    "authority_key": "caKey.pem",
    "certificate": "serverCert.pem",
    "key": "serverKey.pem",
}
"""Where upstream's script puts them too."""


class Secret(Obj, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


def material_of(data: Mapping[str, str] | None) -> Material | None:
    """What a Secret holds; None if a part of it is missing or no base64."""
    try:
        parts = {part: base64.b64decode((data or {})[key], validate=True) for part, key in KEYS.items()}
    except (KeyError, binascii.Error):
        return None
    return Material(**parts)


def data_of(material: Material) -> dict[str, str]:
    """The same as a Secret holds it."""
    return {key: _encoded(getattr(material, part)) for part, key in KEYS.items()}


def _encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


class GeneratedCertificates:
    """Reads the Secret, does what is to be done, serves what it finds, and tells the API server of the CA."""

    def __init__(
        self,
        connection: Connection,
        context: ssl.SSLContext,
        registration: Registration,
        *,
        namespace: str,
        name: str,
        names: Sequence[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """*names*: what the webhook is called by, the first one being its common name."""
        self._connection = connection
        self._context = context
        self._registration = registration
        self._namespace = namespace
        self._name = name
        self._names = names
        self._now = now
        self._material: Material | None = None

    @property
    def bundle(self) -> str:
        """The CA bundle as objects of the API want it."""
        material = self._material
        return "" if material is None else _encoded(material.authorities)

    async def obtain(self) -> None:
        """Have a certificate to serve, however long that takes."""
        backoff = Backoff(base=0.5, cap=15.0)
        problem = ""
        while self._material is None:
            try:
                await self.step()
            except ClusterError as error:
                if problem != str(error):
                    log.error("There is no certificate to serve: %s", error)
                problem = str(error)
                await asyncio.sleep(backoff.delay())

    async def keep(self, publish: Callable[[str], Awaitable[bool]] | None) -> None:
        """Until cancelled, follow and renew the Secret, and *publish* its CAs."""
        published = ""
        while True:
            if publish is not None and self.bundle != published and await publish(self.bundle):
                published = self.bundle
            due = publish is not None and self.bundle != published
            await asyncio.sleep(PERIOD / 10 if due else PERIOD)
            try:
                await self.step()
            except ClusterError as error:
                log.warning("The certificates cannot be looked after: %s", error)

    async def step(self) -> Step:
        """Read the Secret, do the next thing if there is one, serve the result. Raises a `ClusterError`."""
        try:
            secret = await reads.get(
                self._connection, SECRETS, self._name, kind=Secret, namespace=self._namespace
            )
        except NotFound:
            return await self._create()
        material = material_of(secret.data)
        step = issuing.next_step(material, self._names, self._now())
        if material is not None and step is not Step.CREATE:
            self._serve(material)  # first, since we may be able to read and not to write
            changes = issuing.changes_issuer(material, self._names, self._now())
            if step is Step.ISSUE and changes and not await self._is_known(material):
                return Step.NOTHING
        if step is not Step.NOTHING:
            material = issuing.advance(material, step, self._names, self._now())
            try:
                await self._write(material, secret.metadata.resource_version, step)
            except Conflict:
                log.log(logs.V2, "Another replica has just changed the Secret")
                return await self.step()
            self._serve(material)
        return step

    async def _is_known(self, material: Material) -> bool:
        """Has the API server the whole bundle, so that a certificate of the newest CA will be accepted?"""
        bundle = _encoded(material.authorities)
        try:
            known = await self._registration.bundle()
        except ClusterError as error:
            log.warning("The new CA waits, since its publication cannot be checked: %s", error)
            return False
        return known in ("", bundle) or await self._registration.publish(bundle)

    async def _create(self) -> Step:
        """There is no Secret. Others may serve what it held, so that a new CA joins the old one."""
        current = self._material
        step = Step.CREATE if current is None else Step.ADD_AUTHORITY
        material = issuing.advance(current, step, self._names, self._now())
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": SECRETS.kind,
            "metadata": {"name": self._name},
            "type": "Opaque",
            "data": data_of(material),
        }
        try:
            await writes.create(
                self._connection, SECRETS, body, kind=PartialObject, namespace=self._namespace
            )
        except AlreadyExists:  # another replica was quicker; its material is as good
            return await self.step()
        log.info("Created Secret %s/%s: %s", self._namespace, self._name, step.value)
        self._serve(material)
        return step

    async def _write(self, material: Material, version: str, step: Step) -> None:
        """Our four keys; those of others stay."""
        await writes.patch(
            self._connection,
            SECRETS,
            self._name,
            {"data": data_of(material)},
            kind=PartialObject,
            namespace=self._namespace,
            resource_version=version,
        )
        log.info("Changed Secret %s/%s: %s", self._namespace, self._name, step.value)

    def _serve(self, material: Material) -> None:
        """Load the pair if it is another one."""
        current = self._material
        if current is None or (current.certificate, current.key) != (material.certificate, material.key):
            if current is not None:
                log.info("New certificate found, reloading")
            try:
                tls.load(self._context, material.certificate, material.key)
            except tls.CertificateError as error:
                log.error("Secret %s/%s: %s", self._namespace, self._name, error)
                return
            log.log(logs.V2, "Serving a certificate", extra={"until": issuing.expiry(material)})
        self._material = material
