"""When certificates are made, renewed and dropped, over years that pass at once."""

from __future__ import annotations

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
import trustme
from cryptography import x509
from cryptography.x509 import verification

from admission import issuing, tls
from admission.certificates import data_of, material_of
from admission.issuing import Material, Step, advance, next_step
from admission.settings import Certificates

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["vpa-webhook.kube-system.svc"]
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def created() -> Material:
    assert next_step(None, NAMES, START) is Step.CREATE
    return advance(None, Step.CREATE, NAMES, START)


def leaf(material: Material) -> x509.Certificate:
    return x509.load_pem_x509_certificate(material.certificate)


def accepted(material: Material, bundle: bytes, now: datetime, name: str = NAMES[0]) -> bool:
    """Does who knows *bundle* accept the certificate at that time?"""
    store = verification.Store(x509.load_pem_x509_certificates(bundle))
    verifier = verification.PolicyBuilder().store(store).time(now)
    try:
        verifier.build_server_verifier(x509.DNSName(name)).verify(leaf(material), [])
    except verification.VerificationError:
        return False
    return True


def step(material: Material, now: datetime) -> Material:
    return advance(material, next_step(material, NAMES, now), NAMES, now)


def test_a_fresh_certificate_is_accepted_for_its_names_and_needs_nothing() -> None:
    material = created()
    assert next_step(material, NAMES, START) is Step.NOTHING
    assert accepted(material, material.authorities, START)
    assert accepted(material, material.authorities, START - 30 * MINUTE)  # clocks differ
    assert not accepted(material, material.authorities, START, name="other.kube-system.svc")


def test_addresses_are_names_too() -> None:
    material = advance(None, Step.CREATE, [*NAMES, "10.0.0.7"], START)
    names = leaf(material).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.7")]


def test_a_certificate_is_renewed_in_time_by_the_same_ca() -> None:
    material = created()
    due = START + issuing.LIFE - issuing.RENEWAL
    assert next_step(material, NAMES, due - DAY) is Step.NOTHING
    assert next_step(material, NAMES, due + DAY) is Step.ISSUE
    renewed = advance(material, Step.ISSUE, NAMES, due + DAY)
    assert renewed.authorities == material.authorities
    assert renewed.certificate != material.certificate
    assert next_step(renewed, NAMES, due + DAY) is Step.NOTHING
    assert accepted(renewed, material.authorities, due + 2 * DAY)


def test_another_name_needs_another_certificate() -> None:
    assert next_step(created(), [*NAMES, "more.example.org"], START) is Step.ISSUE


def test_a_new_ca_is_known_before_it_signs_and_the_old_one_as_long_as_it_may_be_needed() -> None:
    old = created()
    now = START + issuing.AUTHORITY_LIFE - issuing.AUTHORITY_RENEWAL + DAY
    old = advance(old, Step.ISSUE, NAMES, now)  # the leaf is young, the CA is not
    assert next_step(old, NAMES, now) is Step.ADD_AUTHORITY

    added = step(old, now)
    assert added.certificate == old.certificate
    assert added.authorities.endswith(old.authorities)
    assert accepted(added, added.authorities, now)
    assert next_step(added, NAMES, now + MINUTE) is Step.NOTHING

    later = now + issuing.OVERLAP
    assert next_step(added, NAMES, later) is Step.ISSUE
    issued = step(added, later)
    assert issued.authorities == added.authorities
    assert accepted(issued, added.authorities, later)
    assert accepted(old, issued.authorities, later)  # of a replica that has not read the Secret yet
    assert not accepted(issued, old.authorities, later)
    assert next_step(issued, NAMES, later + MINUTE) is Step.NOTHING

    last = later + issuing.OVERLAP
    assert next_step(issued, NAMES, last) is Step.DROP_AUTHORITIES
    done = step(issued, last)
    assert accepted(done, done.authorities, last)
    assert not accepted(old, done.authorities, last)
    assert next_step(done, NAMES, last) is Step.NOTHING


def test_over_thirty_years_of_hourly_looks_no_bundle_ever_lacks_the_ca_of_what_is_served() -> None:
    material, now, steps = created(), START, 0
    while now < START + timedelta(days=30 * 365):
        step_now = next_step(material, NAMES, now)
        if step_now is not Step.NOTHING:
            steps += 1
            after = advance(material, step_now, NAMES, now)
            assert accepted(material, after.authorities, now)
            assert accepted(after, after.authorities, now)
            if step_now is Step.ISSUE:
                assert accepted(after, material.authorities, now)
            material = after
            now += issuing.OVERLAP
        else:
            now += 30 * DAY
    assert steps < 150


def test_an_expired_certificate_is_replaced_at_once_by_a_ca_that_is_still_good() -> None:
    material = created()
    late = START + issuing.LIFE + DAY
    assert next_step(material, NAMES, late) is Step.ISSUE
    assert not issuing.changes_issuer(material, NAMES, late)
    assert accepted(step(material, late), material.authorities, late)


@pytest.mark.parametrize(
    "damage",
    [
        {"authorities": b"", "authority_key": b""},
        {"authorities": b"no PEM"},
        {"authority_key": b"", "certificate": b"no PEM"},
        {"authority_key": b"", "key": b"no PEM"},
    ],
)
def test_what_cannot_be_used_is_made_anew(damage: dict[str, bytes]) -> None:
    assert next_step(replace(created(), **damage), NAMES, START) is Step.CREATE


def test_a_good_certificate_is_kept_though_the_key_of_its_ca_is_lost() -> None:
    material = replace(created(), authority_key=b"")
    assert next_step(material, NAMES, START) is Step.ADD_AUTHORITY
    added = step(material, START)
    assert added.certificate == material.certificate
    assert issuing.changes_issuer(added, NAMES, START)
    assert next_step(added, NAMES, START + issuing.OVERLAP) is Step.ISSUE


def test_a_key_that_is_not_the_certificates_is_noticed() -> None:
    material = replace(created(), key=created().key)
    assert next_step(material, NAMES, START) is Step.ISSUE
    assert issuing.expiry(material) is None


def test_certificates_of_others_are_adopted_with_keys_of_any_kind() -> None:
    for kind in trustme.KeyType:
        authority = trustme.CA(key_type=kind)
        issued = authority.issue_cert(*NAMES, key_type=kind)
        material = Material(
            authorities=authority.cert_pem.bytes(),
            authority_key=authority.private_key_pem.bytes(),
            certificate=b"".join(blob.bytes() for blob in issued.cert_chain_pems),
            key=issued.private_key_pem.bytes(),
        )
        now = datetime.now(UTC)
        assert next_step(material, NAMES, now) is Step.NOTHING
        renewed = advance(material, Step.ISSUE, NAMES, now)
        assert next_step(renewed, NAMES, now) is Step.NOTHING


def test_a_secret_holds_the_material_under_the_names_of_upstreams_script() -> None:
    material = created()
    data = data_of(material)
    assert set(data) == {"caCert.pem", "caKey.pem", "serverCert.pem", "serverKey.pem"}
    assert material_of(data) == material
    assert material_of(None) is None
    assert material_of({**data, "caKey.pem": "no base64!"}) is None
    assert material_of({key: value for key, value in data.items() if key != "caKey.pem"}) is None


def test_openssl_serves_what_is_issued() -> None:
    material = created()
    context = tls.server_context(Certificates())
    tls.load(context, material.certificate, material.key)
    client = ssl.create_default_context(cadata=material.authorities.decode())
    assert len(client.get_ca_certs()) == 1
