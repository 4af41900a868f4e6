"""A CA and certificates of our own: what has to be done about them now, and doing it. The time is given.

The API server must know a CA before anybody serves a certificate of it, and know the old one for as long as
anybody may serve one of that. So a new CA first joins the old one in the bundle; `OVERLAP` later a
certificate is issued by it; another `OVERLAP` later the old CA goes. Between two steps every replica has read
the Secret several times and the bundle is at the API server.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE: Final = timedelta(days=3650)
AUTHORITY_RENEWAL: Final = timedelta(days=730)
"""Time before its end at which a CA gets a successor; longer than any certificate of it lives."""
LIFE: Final = timedelta(days=365)
RENEWAL: Final = timedelta(days=120)
"""Time before its end at which a certificate is renewed."""
BACKDATED: Final = timedelta(hours=1)
"""Validity begins so long before the issue: not every clock is right."""
OVERLAP: Final = timedelta(minutes=10)
"""Time for all replicas and the API server to learn of a step."""
AUTHORITY_NAME: Final = "vpa_webhook_ca"


class Step(Enum):
    """What is to be done."""

    NOTHING = "nothing"
    CREATE = "create a CA and a certificate"
    ADD_AUTHORITY = "add a new CA beside the old one"
    ISSUE = "issue a new certificate"
    DROP_AUTHORITIES = "drop the CAs that are not needed any more"


@dataclass(frozen=True, slots=True)
class Material:
    """All of it as PEM. *authorities* may be several certificates; *authority_key* is that of the newest."""

    authorities: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class _Parsed:
    authorities: list[x509.Certificate]
    signer: x509.Certificate | None
    """The CA that we have the key of."""
    leaf: x509.Certificate | None
    """The certificate, if it and its key are a pair."""
    issuer: x509.Certificate | None
    """The CA that issued it."""


def next_step(material: Material | None, names: Sequence[str], now: datetime) -> Step:
    """What has to be done about *material* for a webhook that is called by *names* (DNS names, addresses)."""
    if material is None:
        return Step.CREATE
    parsed = _parse(material)
    leaf = parsed.leaf
    sound = _is_sound(parsed, names, now)
    if parsed.signer is None or parsed.signer.not_valid_after_utc - now < AUTHORITY_RENEWAL:
        return Step.ADD_AUTHORITY if sound else Step.CREATE
    if leaf is None or not sound:
        return Step.ISSUE
    known_long_enough = now - _issued(parsed.signer) >= OVERLAP
    if parsed.issuer != parsed.signer:
        return Step.ISSUE if known_long_enough else Step.NOTHING
    if leaf.not_valid_after_utc - now < RENEWAL:
        return Step.ISSUE
    if len(parsed.authorities) > 1 and now - _issued(leaf) >= OVERLAP:
        return Step.DROP_AUTHORITIES
    return Step.NOTHING


def advance(material: Material | None, step: Step, names: Sequence[str], now: datetime) -> Material:
    """*material* after *step*."""
    if material is None or step is Step.CREATE:
        key, authority = _new_authority(now)
        fresh = Material(_pem(authority), _key_pem(key), b"", b"")
        return _issue(fresh, authority, key, names, now)
    if step is Step.ADD_AUTHORITY:
        return add_authority(material, now)
    if step is Step.NOTHING:
        return material
    parsed = _parse(material)
    if parsed.signer is None:
        raise ValueError(f"{step.name} needs the CA that belongs to the CA's key")
    if step is Step.DROP_AUTHORITIES:
        return replace(material, authorities=_pem(parsed.signer))
    return _issue(material, parsed.signer, _signing_key(material.authority_key), names, now)


def add_authority(material: Material, now: datetime) -> Material:
    """*material* with a new CA in front of the old ones; the certificate stays for now."""
    key, authority = _new_authority(now)
    return replace(material, authorities=_pem(authority) + material.authorities, authority_key=_key_pem(key))


def expiry(material: Material) -> datetime | None:
    """When the certificate ends."""
    leaf = _parse(material).leaf
    return None if leaf is None else leaf.not_valid_after_utc


def changes_issuer(material: Material, names: Sequence[str], now: datetime) -> bool:
    """Is there a certificate that is good, and will the next one be of another CA?"""
    parsed = _parse(material)
    return parsed.issuer != parsed.signer and _is_sound(parsed, names, now)


def _parse(material: Material) -> _Parsed:
    try:
        authorities = x509.load_pem_x509_certificates(material.authorities)
    except ValueError:
        authorities = []
    leaf: x509.Certificate | None = None
    try:
        leaf = x509.load_pem_x509_certificates(material.certificate)[0]
        if _public(_private(material.key)) != _public(leaf):
            leaf = None
    except (ValueError, TypeError):
        leaf = None
    signer = None
    try:
        own = _public(_private(material.authority_key))
        signer = next((each for each in authorities if _public(each) == own), None)
    except (ValueError, TypeError):
        signer = None
    issuer = None if leaf is None else next((each for each in authorities if _signed(leaf, each)), None)
    return _Parsed(authorities, signer, leaf, issuer)


def _is_sound(parsed: _Parsed, names: Sequence[str], now: datetime) -> bool:
    """Can the certificate be served, and will who knows the bundle accept it?"""
    leaf = parsed.leaf
    return leaf is not None and parsed.issuer is not None and _is_valid(leaf, now) and _covers(leaf, names)


def _signed(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except Exception:  # of several kinds: the name, the algorithm or the signature is another
        return False
    return True


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _issued(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_before_utc + BACKDATED


def _covers(leaf: x509.Certificate, names: Sequence[str]) -> bool:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return all(_general_name(name) in found for name in names)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _new_authority(now: datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    # Two CAs of one bundle need different names, or the wrong one may be tried.
    name = _name(f"{AUTHORITY_NAME}_{now:%Y%m%d%H%M%S}")
    certificate = (
        _builder(name, name, now, AUTHORITY_LIFE)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def _issue(
    material: Material,
    authority: x509.Certificate,
    signing: CertificateIssuerPrivateKeyTypes,
    names: Sequence[str],
    now: datetime,
) -> Material:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    certificate = (
        _builder(_name(names[0][:64]), authority.subject, now, LIFE)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(signing, hashes.SHA256())
    )
    return replace(material, certificate=_pem(certificate), key=_key_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
    )


def _usage(**allowed: bool) -> x509.KeyUsage:
    usages = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{usage: allowed.get(usage, False) for usage in usages})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _private(pem: bytes) -> CertificateIssuerPrivateKeyTypes:
    key: CertificateIssuerPrivateKeyTypes = serialization.load_pem_private_key(pem, password=None)  # type: ignore[assignment]
    return key


_signing_key = _private


def _public(of: x509.Certificate | CertificateIssuerPrivateKeyTypes) -> bytes:
    return of.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
