"""One certificate authority per cluster, and what it issues."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

ADDRESS = "127.0.0.1"


@dataclass(frozen=True)
class Certificate:
    """A certificate (its chain) and its private key, as PEM files."""

    chain: Path
    key: Path


class Authority:
    """A certificate authority with its files in *folder*; what it issues is good for servers and clients."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.certificate = folder / "ca.crt"
        self._ca.cert_pem.write_to_path(str(self.certificate))

    @property
    def bundle(self) -> str:
        """The authority's certificate as objects of the API want it in `caBundle`."""
        return base64.b64encode(self.certificate.read_bytes()).decode()

    def issue(self, user: str, *, group: str | None = None, names: tuple[str, ...] = ()) -> Certificate:
        """A certificate for *user* in *group*, valid for 127.0.0.1, localhost and *names* as a server's."""
        leaf = self._ca.issue_cert(
            ADDRESS,
            "localhost",
            *names,
            common_name=user,
            organization_name=group,
            key_type=trustme.KeyType.ECDSA,
        )
        stem = user.replace(":", "-")
        certificate = Certificate(self._folder / f"{stem}.crt", self._folder / f"{stem}.key")
        certificate.chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(str(certificate.key))
        return certificate

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """A bare key pair, private and public file: service account tokens are signed with one."""
        key = ec.generate_private_key(ec.SECP256R1())
        private, public = self._folder / f"{name}.key", self._folder / f"{name}.pub"
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        return private, public
