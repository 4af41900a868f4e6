"""Pods of the past belong to workloads of today, and it is said how that is known."""

from __future__ import annotations

import numpy as np
import pytest

from vpa.metrics.history.attribution import (
    CLUSTER,
    LABELS,
    NAME,
    OWNER,
    Attribution,
    Verdict,
    Workload,
    spellings,
)
from vpa.metrics.prometheus.decoding import Labels, Matrix
from vpa.metrics.prometheus.names import Names
from vpa.objects.meta import LabelSelector, LabelSelectorRequirement

KSM = Names()


def vector(*labels: Labels) -> Matrix:
    count = len(labels)
    return Matrix(
        labels=list(labels), ends=np.arange(1, count + 1), times=np.zeros(count), values=np.ones(count)
    )


def owned(pod: str, kind: str, name: str, **more: str) -> Labels:
    return {"namespace": "n", "pod": pod, "owner_kind": kind, "owner_name": name, **more}


def workload(kind: str, name: str, **labels: str) -> Workload:
    return Workload("n", kind, name, LabelSelector(match_labels=labels) if labels else None)


def test_a_pod_that_exists_is_known_from_the_cluster() -> None:
    attribution = Attribution(live={("n", "p"): ("Deployment", "web")})
    attribution.learn_owners(vector(owned("p", "DaemonSet", "other")), kind="Pod", name_label="pod")
    assert attribution.of("n", "p") == Verdict(("Deployment", "web"), CLUSTER)


def test_owner_metrics_lead_from_the_pod_to_its_top_most_controller() -> None:
    attribution = Attribution()
    attribution.learn_owners(
        vector(
            owned("web-1-x", "ReplicaSet", "web-1"),
            owned("db-0", "StatefulSet", "db"),
            owned("job-9-x", "Job", "job-9"),
        ),
        kind="Pod",
        name_label="pod",
    )
    attribution.learn_owners(
        vector({"namespace": "n", "replicaset": "web-1", "owner_kind": "Deployment", "owner_name": "web"}),
        kind="ReplicaSet",
        name_label="replicaset",
    )
    attribution.learn_owners(
        vector({"namespace": "n", "job_name": "job-9", "owner_kind": "CronJob", "owner_name": "job"}),
        kind="Job",
        name_label="job_name",
    )
    assert attribution.of("n", "web-1-x") == Verdict(("Deployment", "web"), OWNER)
    assert attribution.of("n", "db-0") == Verdict(("StatefulSet", "db"), OWNER)
    assert attribution.of("n", "job-9-x") == Verdict(("CronJob", "job"), OWNER)


def test_the_labels_of_kube_state_metrics_itself_are_not_taken_for_the_pods() -> None:
    labels = owned("ksm-0", "ReplicaSet", "web-1", exported_namespace="app", exported_pod="web-1-x")
    attribution = Attribution()
    attribution.learn_owners(vector(labels), kind="Pod", name_label="pod")
    assert attribution.owners == {("app", "web-1-x"): ("ReplicaSet", "web-1")}


def test_a_replicaset_without_a_trace_of_its_owner_is_part_of_the_deployment_of_its_name() -> None:
    attribution = Attribution(workloads=[workload("Deployment", "web"), workload("CronJob", "tick")])
    attribution.learn_owners(
        vector(
            owned("web-6d4cf56db6-x", "ReplicaSet", "web-6d4cf56db6"), owned("tick-28-x", "Job", "tick-28")
        ),
        kind="Pod",
        name_label="pod",
    )
    assert attribution.of("n", "web-6d4cf56db6-x").controller == ("Deployment", "web")
    assert attribution.of("n", "tick-28-x").controller == ("CronJob", "tick")


def test_a_replicaset_that_is_known_to_stand_alone_stays_alone() -> None:
    attribution = Attribution(workloads=[workload("Deployment", "web")])
    attribution.learn_owners(vector(owned("web-1-x", "ReplicaSet", "web-1")), kind="Pod", name_label="pod")
    attribution.learn_owners(
        vector({"namespace": "n", "replicaset": "web-1", "owner_kind": "<none>", "owner_name": "<none>"}),
        kind="ReplicaSet",
        name_label="replicaset",
    )
    assert attribution.of("n", "web-1-x").controller == ("ReplicaSet", "web-1")


@pytest.mark.parametrize(
    "labels",
    [
        owned("p", "<none>", "<none>"),
        owned("p", "Node", "n1"),
        owned("p", "Thing", "x", owner_is_controller="false"),
    ],
)
def test_owners_that_are_no_controllers_do_not_count(labels: Labels) -> None:
    attribution = Attribution()
    attribution.learn_owners(vector(labels), kind="Pod", name_label="pod")
    assert attribution.of("n", "p").controller is None


def test_labels_decide_where_owners_are_unknown() -> None:
    attribution = Attribution(
        workloads=[
            workload("Deployment", "web", **{"app.kubernetes.io/name": "web"}),
            workload("Deployment", "api", app="api"),
        ]
    )
    attribution.learn_labels(
        vector({"namespace": "n", "pod": "p1", "label_app_kubernetes_io_name": "web"}), KSM
    )
    assert attribution.of("n", "p1") == Verdict(("Deployment", "web"), LABELS)


def test_two_workloads_with_the_same_labels_are_told_apart_by_owner_or_name() -> None:
    attribution = Attribution(
        workloads=[workload("StatefulSet", "s0", app="s"), workload("StatefulSet", "s1", app="s")]
    )
    attribution.learn_labels(
        vector(
            {"namespace": "n", "pod": "s0-0", "label_app": "s"},
            {"namespace": "n", "pod": "s1-0", "label_app": "s"},
            {"namespace": "n", "pod": "s1-1", "label_app": "s"},
        ),
        KSM,
    )
    attribution.learn_owners(vector(owned("s1-0", "StatefulSet", "s1")), kind="Pod", name_label="pod")
    assert attribution.of("n", "s0-0") == Verdict(("StatefulSet", "s0"), NAME)
    assert attribution.of("n", "s1-0") == Verdict(("StatefulSet", "s1"), OWNER)
    assert attribution.of("n", "s1-1") == Verdict(("StatefulSet", "s1"), NAME)


@pytest.mark.parametrize(
    ("kind", "name", "pod"),
    [
        ("Deployment", "web", "web-6d4cf56db6-x2x4z"),
        ("StatefulSet", "db", "db-12"),
        ("DaemonSet", "agent", "agent-x2x4z"),
        ("ReplicationController", "rc", "rc-x2x4z"),
        ("Job", "batch", "batch-x2x4z"),
        ("Job", "indexed", "indexed-3-x2x4z"),
        ("CronJob", "tick", "tick-29384756-x2x4z"),
        ("Rollout", "canary", "canary-anything-at-all"),
        ("Deployment", "d" * 60, "d" * 52 + "-6d4cfx2x4z"),
    ],
)
def test_the_name_is_the_last_resort(kind: str, name: str, pod: str) -> None:
    attribution = Attribution(workloads=[workload(kind, name), workload("StatefulSet", "unlike")])
    assert attribution.of("n", pod) == Verdict((kind, name), NAME)


@pytest.mark.parametrize("pod", ["db", "db-x", "db-0-x2x4z", "mydb-0", "other"])
def test_names_that_are_not_as_a_workloads_pods_are_called_belong_to_nobody(pod: str) -> None:
    assert Attribution(workloads=[workload("StatefulSet", "db")]).of("n", pod) == Verdict(None)


def test_of_two_names_that_fit_the_longer_one_says_more() -> None:
    attribution = Attribution(workloads=[workload("Rollout", "web"), workload("Deployment", "web-canary")])
    assert attribution.of("n", "web-canary-6d4cf56db6-x2x4z").controller == ("Deployment", "web-canary")


def test_other_namespaces_do_not_matter() -> None:
    assert Attribution(workloads=[workload("StatefulSet", "db")]).of("other", "db-0").controller is None


def test_a_selector_with_expressions_is_understood() -> None:
    selector = LabelSelector(
        match_expressions=[
            LabelSelectorRequirement(key="tier", operator="In", values=["a", "b"]),
            LabelSelectorRequirement(key="old", operator="DoesNotExist"),
            LabelSelectorRequirement(key="app", operator="Exists"),
            LabelSelectorRequirement(key="zone", operator="NotIn", values=["z"]),
        ]
    )
    attribution = Attribution(workloads=[Workload("n", "Thing", "x", selector)])
    cases = {
        "good": {"label_tier": "a", "label_app": "1"},
        "old": {"label_tier": "a", "label_app": "1", "label_old": ""},
        "tier": {"label_tier": "c", "label_app": "1"},
        "zone": {"label_tier": "a", "label_app": "1", "label_zone": "z"},
    }
    attribution.learn_labels(
        vector(*({"namespace": "n", "pod": pod, **labels} for pod, labels in cases.items())), KSM
    )
    assert {pod for pod in cases if attribution.of("n", pod).controller} == {"good"}


def test_a_label_has_two_spellings_in_prometheus() -> None:
    assert spellings("app.kubernetes.io/partOf") == ("app_kubernetes_io_partOf", "app_kubernetes_io_part_of")
