"""Owners and targets in the real cluster: built-in controllers, custom ones with and without ``scale``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cluster.clients import connect, until
from tests.testbed.cluster import Cluster
from vpa.cluster import scales
from vpa.cluster.connection import Connection
from vpa.cluster.owners import OwnerError
from vpa.cluster.reflectors import running
from vpa.cluster.resources import DEPLOYMENTS, REPLICA_SETS
from vpa.cluster.targets import Directory, Target, directory
from vpa.cluster.workloads import OwnerKey, reflector
from vpa.objects.autoscalers import TargetRef
from vpa.objects.meta import ObjectMeta, OwnerReference
from vpa.rules import preset

GROUP = "owners.example.com"
Json = dict[str, Any]
TEMPLATE: Json = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
SELECTOR = {"matchLabels": {"app": "x"}}


def definition(kind: str, plural: str, *, group: str = GROUP, scale: Json | None = None) -> Json:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": anything},
                    "subresources": {"scale": scale} if scale else {},
                }
            ],
        },
    }


REPLICAS = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
DEFINITIONS = [
    definition("Widget", "widgets", scale=REPLICAS | {"labelSelectorPath": ".status.selector"}),
    definition("Bare", "bares", scale=REPLICAS),
    definition("Plain", "plains"),
    definition("Deployment", "deployments", scale=REPLICAS | {"labelSelectorPath": ".status.selector"}),
    definition("DaemonSet", "daemonsets", group="apps.kruise.io"),
]


@pytest.fixture(scope="module")
def kinds(cluster: Cluster) -> None:
    """Widget has a scale, Bare one without a selector, Plain none; two have well-known names."""
    for body in DEFINITIONS:
        cluster.api.create(body)
    for body in DEFINITIONS:
        name = body["metadata"]["name"]
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=120s", f"crd/{name}")


@pytest.fixture
async def connection(cluster: Cluster, kinds: None) -> AsyncIterator[Connection]:
    async with await connect(cluster) as opened:
        yield opened


@pytest.fixture
def lookup(connection: Connection) -> Directory:
    return directory(connection, rules=preset("safe"))


def create(
    cluster: Cluster, namespace: str, kind: str, name: str, spec: Json, owner: Json | None = None, **rest: Any
) -> Json:
    """Create an object of *kind*, controlled by *owner*."""
    api_version = rest.pop("api_version", None) or {
        "Deployment": "apps/v1",
        "StatefulSet": "apps/v1",
        "DaemonSet": "apps/v1",
        "ReplicaSet": "apps/v1",
        "ReplicationController": "v1",
        "Job": "batch/v1",
        "CronJob": "batch/v1",
    }.get(kind, f"{GROUP}/v1alpha1")
    metadata = {
        "name": name,
        "labels": {"app": "x"},
    }  # a controller gives up what its selector does not match
    body = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec, **rest}
    if owner is not None:
        body["metadata"] = metadata | {"ownerReferences": [reference(owner)]}
    group, _, version = api_version.rpartition("/")
    plural = f"{kind.lower()}s"
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    made: Json = cluster.api.request("POST", f"{path}/namespaces/{namespace}/{plural}", body)
    return made


def reference(owner: Json) -> Json:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }


def deployment(cluster: Cluster, namespace: str, name: str = "d", owner: Json | None = None) -> Json:
    spec = {"replicas": 0, "selector": SELECTOR, "template": TEMPLATE}
    return create(cluster, namespace, "Deployment", name, spec, owner)


def replica_set(cluster: Cluster, namespace: str, name: str, owner: Json | None = None) -> Json:
    return create(
        cluster,
        namespace,
        "ReplicaSet",
        name,
        {"replicas": 0, "selector": SELECTOR, "template": TEMPLATE},
        owner,
    )


def widget(cluster: Cluster, namespace: str, name: str = "w", selector: str = "app=x,tier in (a,b)") -> Json:
    status = {"replicas": 1, "selector": selector}
    return create(cluster, namespace, "Widget", name, {"replicas": 1}, status=status)


def ref(kind: str, name: str, api_version: str = "apps/v1") -> TargetRef:
    return TargetRef(api_version=api_version, kind=kind, name=name)


def custom(kind: str, name: str) -> TargetRef:
    return ref(kind, name, f"{GROUP}/v1alpha1")


def selects(target: Target, **labels: str) -> bool:
    return target.selector.matches(labels)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"])
async def test_the_selector_of_a_workload_is_its_spec_s(
    cluster: Cluster, lookup: Directory, namespace: str, kind: str
) -> None:
    spec: Json = {"selector": SELECTOR, "template": TEMPLATE}
    create(cluster, namespace, kind, "t", spec if kind == "DaemonSet" else spec | {"replicas": 0})
    target = await lookup.targets.resolve(namespace, ref(kind, "t"))
    assert (target.problem, target.note) == ("", "")
    assert target.key == OwnerKey(namespace, kind, "t", "apps/v1")
    assert selects(target, app="x", more="y")
    assert not selects(target, app="y")
    assert target.record is not None
    assert target.record.containers == ("c",)


async def test_the_selector_of_a_replication_controller_is_a_map(
    cluster: Cluster, lookup: Directory, namespace: str
) -> None:
    spec = {"replicas": 0, "selector": {"app": "x"}, "template": TEMPLATE}
    create(cluster, namespace, "ReplicationController", "t", spec)
    target = await lookup.targets.resolve(namespace, ref("ReplicationController", "t", "v1"))
    assert selects(target, app="x")
    assert not selects(target, app="y")


async def test_the_selector_of_a_job_is_the_one_that_the_server_gave_it(
    cluster: Cluster, lookup: Directory, namespace: str
) -> None:
    template = {"spec": TEMPLATE["spec"] | {"restartPolicy": "Never"}}
    made = create(cluster, namespace, "Job", "t", {"template": template, "suspend": True})
    target = await lookup.targets.resolve(namespace, ref("Job", "t", "batch/v1"))
    assert target.problem == ""
    assert selects(target, **made["spec"]["selector"]["matchLabels"])
    assert not selects(target, app="x")


@pytest.mark.parametrize(("labels", "selected"), [({"app": "x"}, True), (None, False)])
async def test_the_selector_of_a_cron_job_is_its_template_s_labels(
    cluster: Cluster, lookup: Directory, namespace: str, labels: dict[str, str] | None, selected: bool
) -> None:
    template: Json = {"spec": TEMPLATE["spec"] | {"restartPolicy": "Never"}}
    if labels:
        template["metadata"] = {"labels": labels}
    create(
        cluster,
        namespace,
        "CronJob",
        "t",
        {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}},
    )
    target = await lookup.targets.resolve(namespace, ref("CronJob", "t", "batch/v1"))
    assert target.problem == ""
    assert selects(target, app="x") is selected


async def test_the_selector_of_a_custom_controller_is_its_scale_s(
    cluster: Cluster, lookup: Directory, namespace: str
) -> None:
    widget(cluster, namespace)
    target = await lookup.targets.resolve(namespace, custom("Widget", "w"))
    assert (target.problem, target.note) == ("", "")
    assert selects(target, app="x", tier="b")
    assert not selects(target, app="x", tier="c")


async def test_a_target_that_is_not_defined_says_so(lookup: Directory) -> None:
    target = await lookup.targets.resolve("n", None)
    assert target.problem == (
        "Cannot read targetRef. Reason: targetRef not defined. If this is a v1beta1 object, switch to v1"
    )
    assert not selects(target)


@pytest.mark.parametrize(
    ("target_ref", "reason"),
    [
        (ref("Deployment", "none"), "Deployment NS/none does not exist"),
        (ref("CronJob", "none", "batch/v1"), "CronJob NS/none does not exist"),
        (
            custom("Widget", "none"),
            f"unhandled targetRef {GROUP}/v1alpha1 / Widget / none, last error "
            f'widgets.{GROUP} "none" not found',
        ),
        (
            custom("Nope", "x"),
            f"unhandled targetRef {GROUP}/v1alpha1 / Nope / x, last error "
            f'no matches for kind "Nope" in group "{GROUP}"',
        ),
        (
            ref("Nope", "x", "no.such.group/v1"),
            "unhandled targetRef no.such.group/v1 / Nope / x, last error "
            'no matches for kind "Nope" in group "no.such.group"',
        ),
        (
            ref("Node", "n", "v1"),
            "unhandled targetRef v1 / Node / n, last error the server could not find the requested resource",
        ),
        (ref("Widget", "w", "a/b/c"), "unexpected GroupVersion string: a/b/c"),
    ],
)
async def test_a_target_that_cannot_be_read_says_why(
    lookup: Directory, namespace: str, target_ref: TargetRef, reason: str
) -> None:
    target = await lookup.targets.resolve(namespace, target_ref)
    assert target.problem == "Cannot read targetRef. Reason: " + reason.replace("NS", namespace)
    assert not target.temporary
    assert not selects(target, app="x")


async def test_a_target_without_a_scale_says_so(cluster: Cluster, lookup: Directory, namespace: str) -> None:
    create(cluster, namespace, "Plain", "p", {})
    target = await lookup.targets.resolve(namespace, custom("Plain", "p"))
    assert target.problem.endswith("Plain / p, last error the server could not find the requested resource")


@pytest.mark.parametrize("rules", ["safe", "upstream"])
async def test_a_scale_without_a_selector_says_so(
    cluster: Cluster, connection: Connection, namespace: str, rules: str
) -> None:
    create(cluster, namespace, "Bare", "b", {"replicas": 1})
    target = await directory(connection, rules=preset(rules)).targets.resolve(namespace, custom("Bare", "b"))
    assert target.problem == (
        f"Cannot read targetRef. Reason: unhandled targetRef {GROUP}/v1alpha1 / Bare / b, last error "
        f"resource {namespace}/b has an empty selector for scale sub-resource"
    )


async def test_a_target_that_has_a_parent_is_refused(
    cluster: Cluster, lookup: Directory, namespace: str
) -> None:
    replica_set(cluster, namespace, "r", deployment(cluster, namespace))
    target = await lookup.targets.resolve(namespace, ref("ReplicaSet", "r"))
    assert target.problem == (
        "The target apps/v1.ReplicaSet/r has a parent controller but it should point to a topmost "
        "well-known or scalable controller"
    )
    assert not selects(target, app="x")


async def test_a_parent_that_cannot_be_scaled_does_not_count(
    cluster: Cluster, lookup: Directory, namespace: str
) -> None:
    deployment(cluster, namespace, owner=create(cluster, namespace, "Plain", "p", {}))
    target = await lookup.targets.resolve(namespace, ref("Deployment", "d"))
    assert (target.problem, target.note) == ("", "")
    assert selects(target, app="x")


async def test_a_parent_that_can_be_scaled_counts(
    cluster: Cluster, lookup: Directory, namespace: str
) -> None:
    deployment(cluster, namespace, owner=widget(cluster, namespace))
    target = await lookup.targets.resolve(namespace, ref("Deployment", "d"))
    assert "has a parent controller" in target.problem


async def test_a_parent_whose_scale_has_no_selector_is_passed_over_and_named(
    cluster: Cluster, connection: Connection, lookup: Directory, namespace: str
) -> None:
    deployment(cluster, namespace, owner=create(cluster, namespace, "Bare", "b", {"replicas": 1}))
    target = await lookup.targets.resolve(namespace, ref("Deployment", "d"))
    assert target.problem == ""
    assert target.note == (
        f"its owner Bare {namespace}/b has an empty selector for scale sub-resource and is passed over"
    )
    upstream = directory(connection, rules=preset("upstream"))
    refused = await upstream.targets.resolve(namespace, ref("Deployment", "d"))
    assert "has a parent controller" in refused.problem


async def test_a_target_whose_scale_has_no_selector_lends_that_of_its_only_workload(
    cluster: Cluster, lookup: Directory, namespace: str
) -> None:
    bare = create(cluster, namespace, "Bare", "b", {"replicas": 1})
    deployment(cluster, namespace, owner=bare)
    deployment(cluster, namespace, "somebody-else-s")
    target = await lookup.targets.resolve(namespace, custom("Bare", "b"))
    assert target.problem == ""
    assert target.key == OwnerKey(namespace, "Deployment", "d", "apps/v1")
    assert selects(target, app="x")
    assert target.note == (
        f"resource {namespace}/b has an empty selector for scale sub-resource; "
        f"the pods of its only workload, Deployment {namespace}/d, are taken"
    )
    # … and the pods find the same controller, whichever way the VPA names it
    found = await lookup.owners.topmost(OwnerKey(namespace, "Deployment", "d", "apps/v1"))
    assert found.key == target.key
    deployment(cluster, namespace, "second", owner=bare)
    ambiguous = await lookup.targets.resolve(namespace, custom("Bare", "b"))
    assert "has an empty selector" in ambiguous.problem


async def test_a_kind_that_is_only_named_like_a_built_in_one_is_not_taken_for_it(
    cluster: Cluster, connection: Connection, lookup: Directory, namespace: str
) -> None:
    status = {"replicas": 1, "selector": "app=theirs"}
    create(
        cluster,
        namespace,
        "Deployment",
        "d",
        {"replicas": 1},
        api_version=f"{GROUP}/v1alpha1",
        status=status,
    )
    target = await lookup.targets.resolve(namespace, custom("Deployment", "d"))
    assert target.problem == ""
    assert selects(target, app="theirs")
    upstream = directory(connection, rules=preset("upstream"))
    refused = await upstream.targets.resolve(namespace, custom("Deployment", "d"))
    assert refused.problem == f"Cannot read targetRef. Reason: Deployment {namespace}/d does not exist"


@pytest.mark.parametrize("rules", ["safe", "upstream"])
async def test_openkruise_s_daemon_set_is_as_good_as_the_built_in_one(
    cluster: Cluster, connection: Connection, namespace: str, rules: str
) -> None:
    spec = {"selector": SELECTOR, "template": TEMPLATE}
    create(cluster, namespace, "DaemonSet", "k", spec, api_version="apps.kruise.io/v1alpha1")
    lookup = directory(connection, rules=preset(rules))
    target = await lookup.targets.resolve(namespace, ref("DaemonSet", "k", "apps.kruise.io/v1alpha1"))
    assert target.problem == ""
    assert selects(target, app="x")
    pod = ObjectMeta(
        name="p",
        namespace=namespace,
        owner_references=[
            OwnerReference(api_version="apps.kruise.io/v1alpha1", kind="DaemonSet", name="k", controller=True)
        ],
    )
    assert await lookup.owners.of_pod(pod) == target.key


async def test_a_cycle_of_owners_is_an_error(cluster: Cluster, lookup: Directory, namespace: str) -> None:
    first = replica_set(cluster, namespace, "a")
    second = replica_set(cluster, namespace, "b", first)
    owners = {"metadata": {"ownerReferences": [reference(second)]}}
    cluster.api.patch("ReplicaSet", "a", namespace, body=owners)
    target = await lookup.targets.resolve(namespace, ref("ReplicaSet", "a"))
    assert target.problem == (
        "Error checking if target apps/v1.ReplicaSet/a is a topmost well-known or scalable controller: "
        "cycle detected in ownership chain"
    )


def pod(namespace: str, kind: str = "", name: str = "", api_version: str = "apps/v1") -> ObjectMeta:
    owner = OwnerReference(api_version=api_version, kind=kind, name=name, controller=True)
    return ObjectMeta(name="p", namespace=namespace, owner_references=[owner] if kind else None)


async def test_the_owner_of_a_pod_is_at_the_top_of_its_chain(
    cluster: Cluster, lookup: Directory, namespace: str
) -> None:
    top = deployment(cluster, namespace, owner=widget(cluster, namespace))
    replica_set(cluster, namespace, "r", top)
    found = await lookup.owners.of_pod(pod(namespace, "ReplicaSet", "r"))
    assert found == OwnerKey(namespace, "Widget", "w", f"{GROUP}/v1alpha1")


async def test_a_pod_of_nobody_and_a_pod_of_a_node_have_no_owner(lookup: Directory, namespace: str) -> None:
    assert await lookup.owners.of_pod(pod(namespace)) is None
    assert await lookup.owners.of_pod(pod(namespace, "Node", "node-1", "v1")) is None


async def test_a_pod_of_a_custom_controller_without_scale_has_no_owner(
    cluster: Cluster, lookup: Directory, namespace: str
) -> None:
    create(cluster, namespace, "Plain", "p", {})
    assert await lookup.owners.of_pod(pod(namespace, "Plain", "p", f"{GROUP}/v1alpha1")) is None


async def test_a_pod_whose_controller_is_missing_is_an_error(lookup: Directory, namespace: str) -> None:
    with pytest.raises(OwnerError, match=f"ReplicaSet {namespace}/none does not exist"):
        await lookup.owners.of_pod(pod(namespace, "ReplicaSet", "none"))


async def test_with_copies_nothing_is_asked_for(
    cluster: Cluster, connection: Connection, namespace: str
) -> None:
    replica_set(cluster, namespace, "r", deployment(cluster, namespace))
    copies = {
        resource.kind: reflector(connection, resource, namespace=namespace)
        for resource in (DEPLOYMENTS, REPLICA_SETS)
    }
    lookup = directory(connection, copies=copies, rules=preset("safe"))
    async with running(*copies.values(), timeout=10):
        before = connection.requests.total()
        for _ in range(100):
            found = await lookup.owners.of_pod(pod(namespace, "ReplicaSet", "r"))
            assert found == OwnerKey(namespace, "Deployment", "d", "apps/v1")
            assert (await lookup.targets.resolve(namespace, ref("Deployment", "d"))).problem == ""
        assert connection.requests.total() == before


async def test_a_copy_that_has_not_heard_of_a_new_replica_set_yet_is_helped_out_once(
    cluster: Cluster, connection: Connection, namespace: str
) -> None:
    empty = reflector(connection, REPLICA_SETS, namespace=namespace, label_selector="no=such")
    lookup = directory(connection, copies={"ReplicaSet": empty}, rules=preset("safe"))
    async with running(empty, timeout=10):
        replica_set(cluster, namespace, "r")
        before = connection.requests["GET", 200]
        pods = [lookup.owners.of_pod(pod(namespace, "ReplicaSet", "r")) for _ in range(50)]
        found = await asyncio.gather(*pods)
        assert set(found) == {OwnerKey(namespace, "ReplicaSet", "r", "apps/v1")}
        assert connection.requests["GET", 200] == before + 1


async def test_without_copies_or_questions_nothing_is_known(
    cluster: Cluster, connection: Connection, namespace: str
) -> None:
    deployment(cluster, namespace)
    lookup = directory(connection, ask=False, rules=preset("safe"))
    target = await lookup.targets.resolve(namespace, ref("Deployment", "d"))
    assert target.problem == f"Cannot read targetRef. Reason: Deployment {namespace}/d does not exist"


class Time:
    """A clock that only moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_scale_is_asked_for_once_and_again_after_ten_to_twenty_minutes(
    cluster: Cluster, connection: Connection, namespace: str
) -> None:
    widget(cluster, namespace, selector="app=old")
    time = Time()
    lookup = directory(connection, rules=preset("safe"), clock=time)
    path = custom("Widget", "w")
    await lookup.targets.resolve(namespace, path)
    cluster.api.patch(f"Widget.{GROUP}", "w", namespace, body={"status": {"selector": "app=new"}})
    before = connection.requests.total()
    time.now += 290.0  # discovery is good for five minutes
    assert selects(await lookup.targets.resolve(namespace, path), app="old")
    assert connection.requests.total() == before
    time.now += 2 * scales.REFRESH
    assert selects(await lookup.targets.resolve(namespace, path), app="new")


async def test_an_absent_scale_is_asked_for_again_after_a_minute(
    cluster: Cluster, connection: Connection, namespace: str
) -> None:
    time = Time()
    lookup = directory(connection, rules=preset("safe"), clock=time)
    path = custom("Widget", "w")
    assert "not found" in (await lookup.targets.resolve(namespace, path)).problem
    widget(cluster, namespace)
    assert "not found" in (await lookup.targets.resolve(namespace, path)).problem
    time.now += scales.FRESH_ABSENCE
    assert (await lookup.targets.resolve(namespace, path)).problem == ""


async def test_an_outage_does_not_make_a_known_target_unknown_and_an_unknown_one_is_only_temporarily_so(
    cluster: Cluster, namespace: str, kinds: None
) -> None:
    widget(cluster, namespace)
    time = Time()
    with cluster.fault_proxy() as proxy:
        async with await connect(cluster, proxy.url) as connection:
            lookup = directory(connection, rules=preset("safe"), clock=time)
            known, unknown = custom("Widget", "w"), custom("Widget", "other")
            await lookup.targets.resolve(namespace, known)
            proxy.answer(403, path="*/scale")
            time.now += 2 * scales.REFRESH
            assert (await lookup.targets.resolve(namespace, known)).problem == ""
            proxy.heal()
            proxy.answer(429, retry_after=3600)
            time.now += 2 * scales.REFRESH
            assert (await lookup.targets.resolve(namespace, known)).problem == ""
            target = await lookup.targets.resolve(namespace, unknown)
            assert target.problem.startswith("Cannot read targetRef. Reason: unhandled targetRef")
            assert target.temporary
            proxy.heal()
            time.now += scales.FRESH_ERROR
            target = await lookup.targets.resolve(namespace, unknown)
            assert not target.temporary


async def test_scales_that_nobody_asks_for_are_forgotten(
    cluster: Cluster, connection: Connection, namespace: str
) -> None:
    widget(cluster, namespace)
    time = Time()
    lookup = directory(connection, rules=preset("safe"), clock=time)
    await lookup.targets.resolve(namespace, custom("Widget", "w"))
    assert len(lookup.scales._known) == 1
    time.now += 2 * scales.LIFETIME
    await lookup.targets.resolve(namespace, custom("Widget", "x"))
    assert [key[3] for key in lookup.scales._known] == ["x"]


async def test_a_custom_controller_deleted_and_made_anew_is_followed(
    cluster: Cluster, connection: Connection, namespace: str
) -> None:
    """A copy of Deployments follows what happens; nothing has to be restarted."""
    copy = reflector(connection, DEPLOYMENTS, namespace=namespace)
    lookup = directory(connection, copies={"Deployment": copy}, ask=False, rules=preset("safe"))
    async with running(copy, timeout=10):
        deployment(cluster, namespace)
        await until(lambda: len(copy) == 1, "the Deployment")
        assert (await lookup.targets.resolve(namespace, ref("Deployment", "d"))).problem == ""
        cluster.api.delete("Deployment", "d", namespace)
        await until(lambda: not copy, "its end")
        assert "does not exist" in (await lookup.targets.resolve(namespace, ref("Deployment", "d"))).problem
