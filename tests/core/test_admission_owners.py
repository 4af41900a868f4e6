"""What is kept of VPAs and owners, and what is told from it without asking anybody."""

from __future__ import annotations

import pytest

from admission.index import Index
from admission.lineage import UNKNOWN, Lineage
from tests.core.pods import Data
from vpa.cluster.workloads import OwnerKey
from vpa.matching import TargetKey
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler

DEPLOYMENT = OwnerKey("shop", "Deployment", "web", "apps/v1")


def vpa(name: str, kind: str = "Deployment", target: str = "web", **more: str) -> VerticalPodAutoscaler:
    ref: Data = {"apiVersion": more.get("api_version", "apps/v1"), "kind": kind, "name": target}
    metadata = {"name": name, "namespace": more.get("namespace", "shop")}
    return meta.convert({"metadata": metadata, "spec": {"targetRef": ref}}, VerticalPodAutoscaler)


def index(*vpas: VerticalPodAutoscaler) -> Index:
    made = Index()
    for one in vpas:
        made.changed(None, one)
    return made


def test_a_namespace_without_vpas_is_not_covered_and_one_whose_last_vpa_goes_no_longer() -> None:
    one, two = vpa("one"), vpa("two", "StatefulSet", "db")
    found = index(one, two)
    assert found.covers("shop")
    assert not found.covers("other")
    found.changed(one, None)
    assert found.covers("shop")
    found.changed(two, None)
    assert not found.covers("shop")
    assert found.kinds() == (frozenset(), frozenset())
    assert len(found) == 0


def test_a_vpa_that_changes_its_target_is_found_at_the_new_one_alone() -> None:
    old, new = vpa("one"), vpa("one", "DaemonSet", "agent")
    found = index(old)
    found.changed(old, new)
    assert found.at(TargetKey("shop", "Deployment", "web")) == []
    assert found.at(TargetKey("shop", "DaemonSet", "agent")) == [new]
    assert found.kinds() == (frozenset({"DaemonSet"}), frozenset())


@pytest.mark.parametrize(
    ("target", "may", "may_not"),
    [
        ("Deployment", {"Deployment", "ReplicaSet"}, {"StatefulSet", "Job", "CronJob", "DaemonSet"}),
        ("CronJob", {"CronJob", "Job"}, {"ReplicaSet", "Deployment"}),
        ("StatefulSet", {"StatefulSet"}, {"ReplicaSet", "Job"}),
        ("Widget", {"ReplicaSet", "StatefulSet", "Job", "Deployment"}, set()),
    ],
)
def test_only_controllers_that_can_lead_to_a_target_are_looked_into(
    target: str, may: set[str], may_not: set[str]
) -> None:
    found = index(vpa("one", target))
    assert all(found.may_lead_to("shop", kind) for kind in may)
    assert not any(found.may_lead_to("shop", kind) for kind in may_not)
    assert not any(found.may_lead_to("other", kind) for kind in may)


def test_a_kind_of_another_group_is_not_the_built_in_one() -> None:
    found = index(vpa("one", "Deployment", api_version="example.org/v1"))
    assert found.is_open("shop")
    assert found.may_lead_to("shop", "Job")


def test_copies_are_kept_of_the_kinds_that_vpas_lead_to_and_of_no_others() -> None:
    found = index(vpa("one"), vpa("two", "StatefulSet", "db"))
    assert found.kinds() == (frozenset({"Deployment", "StatefulSet"}), frozenset({"ReplicaSet"}))
    found.changed(None, vpa("three", "Widget"))
    targeted, between = found.kinds()
    assert between == {"ReplicaSet", "Job"}
    assert targeted == {"Deployment", "StatefulSet", "DaemonSet", "ReplicationController", "CronJob"}


def test_a_vpa_without_a_target_is_nobodys() -> None:
    found = index(meta.convert({"metadata": {"name": "v", "namespace": "shop"}}, VerticalPodAutoscaler))
    assert not found.covers("shop")


UID = "6c1b1d30-8d5c-4f4e-9c39-00000000000{}"


def test_an_owner_is_remembered_by_the_uid_of_what_it_owns() -> None:
    lineage = Lineage(lambda namespace: True)
    assert lineage.owner(UID.format(1)) is UNKNOWN
    lineage.put(UID.format(1), DEPLOYMENT)
    lineage.put(UID.format(2), None)
    lineage.put("not-a-uuid", DEPLOYMENT)
    assert lineage.owner(UID.format(1)) == DEPLOYMENT
    assert lineage.owner(UID.format(2)) is None
    assert lineage.owner("not-a-uuid") == DEPLOYMENT


def test_all_children_of_an_owner_share_one_key() -> None:
    lineage = Lineage(lambda namespace: True)
    for number in range(3):
        lineage.put(UID.format(number), OwnerKey(*DEPLOYMENT))
    keys = {id(lineage.owner(UID.format(number))) for number in range(3)}
    assert len(keys) == 1


def test_the_oldest_are_forgotten_when_there_are_too_many() -> None:
    lineage = Lineage(lambda namespace: True, remembered=100)
    for number in range(1000):
        lineage.put(f"{number:032x}", DEPLOYMENT)
    lineage.put(f"{905:032x}", DEPLOYMENT)  # heard of again
    assert len(lineage) <= 100
    assert lineage.owner(f"{999:032x}") == DEPLOYMENT
    assert lineage.owner(f"{0:032x}") is UNKNOWN
    for number in range(1000, 1050):
        lineage.put(f"{number:032x}", DEPLOYMENT)
    assert lineage.owner(f"{905:032x}") == DEPLOYMENT
