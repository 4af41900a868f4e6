"""Certificates from files that somebody else renews: read at the start, and again when they have changed."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from admission import tls
from admission.settings import Certificates
from admission.tls import CertificateError

log = logging.getLogger(__name__)

LOOK: Final = 1.0
"""Seconds between two looks at the files: looking through symlinks sees every way to replace them."""

Stamp = tuple[int, int, int] | None


class CertificateFiles:
    """The files of ``--tls-cert-file``, ``--tls-private-key`` and ``--client-ca-file``."""

    def __init__(self, settings: Certificates, context: ssl.SSLContext) -> None:
        self._certificate = Path(settings.tls_cert_file)
        self._key = Path(settings.tls_private_key)
        self._authority = Path(settings.client_ca_file)
        self._reload = settings.reload_cert
        self._context = context

    def load(self) -> None:
        """Read the pair; `CertificateError` if it cannot be served."""
        try:
            certificate, key = self._certificate.read_bytes(), self._key.read_bytes()
        except OSError as error:
            raise CertificateError(
                f"{error.filename} cannot be read ({error.strerror}); mount the certificate there, "
                "or give --generate-certificates"
            ) from error
        tls.load(self._context, certificate, key)

    async def obtain(self) -> None:
        """`load`, at the start."""
        self.load()

    @property
    def bundle(self) -> str:
        """The CA's certificate as objects of the API want it; "" if it cannot be read, which is said."""
        try:
            return base64.b64encode(self._authority.read_bytes()).decode()
        except OSError as error:
            log.error("The CA's certificate cannot be read, the webhook is registered without: %s", error)
            return ""

    async def keep(self, publish: Callable[[str], Awaitable[bool]] | None) -> None:
        """With ``--reload-cert``, until cancelled: load a pair that has changed, *publish* a CA that has.

        *publish* is asked again until it says True.
        """
        if not self._reload:
            return
        pair = self._stamps()
        authority = _stamp(self._authority)
        unpublished = False
        while True:
            await asyncio.sleep(LOOK)
            now = self._stamps()
            if now != pair:
                pair = now
                log.info("New certificate found, reloading")
                try:
                    self.load()
                except CertificateError as error:
                    # The other half of the pair is being written, most likely: that will be a change too.
                    log.warning("The old certificate stays: %s", error)
            if publish is None:
                continue
            found = _stamp(self._authority)
            if found != authority or unpublished:
                authority = found
                bundle = self.bundle
                unpublished = bool(bundle) and not await publish(bundle)

    def _stamps(self) -> tuple[Stamp, Stamp]:
        return _stamp(self._certificate), _stamp(self._key)


def _stamp(path: Path) -> Stamp:
    """What changes when the file does; None while there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
