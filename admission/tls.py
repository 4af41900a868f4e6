"""The webhook's TLS: versions and ciphers by Go's names, and key pairs that are replaced while it serves."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from admission.settings import Certificates

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSIONS: Final = {
    "": ssl.TLSVersion.TLSv1_2,
    "tls1_2": ssl.TLSVersion.TLSv1_2,
    "tls1_3": ssl.TLSVersion.TLSv1_3,
}
_CIPHERS: Final = {
    f"TLS_ECDHE_{auth}_WITH_{go}": f"ECDHE-{auth}-{openssl}"
    for auth in ("ECDSA", "RSA")
    for go, openssl in {
        "AES_128_CBC_SHA": "AES128-SHA",
        "AES_256_CBC_SHA": "AES256-SHA",
        "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
        "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
        "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    }.items()
}
"""Go's names of what TLS 1.2 can use → OpenSSL's. Those of TLS 1.3 cannot be chosen, in Go neither."""


class CertificateError(Exception):
    """A certificate that cannot be served; the text is one sentence."""


def server_context(settings: Certificates) -> ssl.SSLContext:
    """A context without a certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_tls_version]
    context.set_alpn_protocols(["http/1.1"])
    context.num_tickets = 0  # API servers do not resume sessions
    names = [_CIPHERS[name] for name in re.split("[,:]", settings.tls_ciphers) if name in _CIPHERS]
    if names:
        context.set_ciphers(":".join(names))
    return context


def load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Serve *certificate* (a chain, PEM) from the next handshake on; open connections keep theirs.

    `CertificateError` if the pair is not sound; then *context* is as before.
    """
    # A context that refused the key would already serve the certificate: another one tries both first.
    for target in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        with _file(certificate) as certificate_file, _file(key) as key_file:
            try:
                target.load_cert_chain(certificate_file, key_file, password=_no_password)
            except (ssl.SSLError, ValueError) as error:
                raise CertificateError(
                    f"certificate and key are no pair that can be served: {error}"
                ) from error


def _no_password() -> str:
    raise ValueError("the key is encrypted")


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """OpenSSL reads files only. This one is in memory where the system can, since keys belong on no disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name
