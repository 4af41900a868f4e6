"""What ours require is within what upstream and Deckhouse grant."""

from __future__ import annotations

import pytest

from tests.cluster import roles
from tests.cluster.rendering import COMPONENTS

# Aggregated events are patched; without that permission each is written once.
ONLY_FOR_REPEATED_EVENTS = {("", "events", "", "patch"), ("", "events", "", "update")}
# Deckhouse renders the webhook configuration itself and says --register-webhook=false.
ONLY_TO_REGISTER = {("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "patch")}
# Deckhouse names its lease vpa-recommender.
LEASE = {("coordination.k8s.io", "leases", "vpa-recommender-lease", verb) for verb in [*roles.READ, "update"]}


@pytest.mark.parametrize("component", COMPONENTS)
def test_upstreams_roles_cover_all_that_ours_require(component: str) -> None:
    required = roles.ours(component, optional=False).permissions()
    assert len(required) > 10
    assert required - roles.upstream(component).permissions() == set()


@pytest.mark.parametrize("component", COMPONENTS)
def test_deckhouses_roles_cover_all_that_ours_require_under_its_flags(component: str) -> None:
    missing = roles.ours(component, optional=False).permissions() - roles.deckhouse(component).permissions()
    assert missing <= ONLY_FOR_REPEATED_EVENTS | ONLY_TO_REGISTER | LEASE


@pytest.mark.parametrize("component", COMPONENTS)
def test_optional_permissions_are_not_required_too(component: str) -> None:
    required = roles.ours(component, optional=False).permissions()
    assert required < roles.ours(component).permissions()


def test_nobody_may_read_secrets_but_the_one_that_holds_the_certificates() -> None:
    for component in COMPONENTS:
        secrets = {each for each in roles.ours(component).permissions() if each[1] == "secrets"}
        readable = {name for _, _, name, verb in secrets if verb != "create"}
        assert readable == ({"vpa-tls-certs"} if component == "admission-controller" else set())
