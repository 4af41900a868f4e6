"""What each permission is for, by service and resource (with its verbs where a resource has two rules)."""

from __future__ import annotations

_TARGETS = {
    "*/scale": "targets of kinds that are not built in: their selector",
    "replicationcontrollers": "owners of pods and targets of VPAs",
    "daemonsets": "owners of pods and targets of VPAs",
    "deployments": "owners of pods and targets of VPAs",
    "replicasets": "owners of pods, between them and their Deployment",
    "statefulsets": "owners of pods and targets of VPAs",
    "jobs": "owners of pods and targets of VPAs",
    "cronjobs": "owners of Jobs and targets of VPAs",
}
_READERS = {
    "tokenreviews": "`--authenticate-metrics`: who reads metrics",
    "subjectaccessreviews": "`--authenticate-metrics`: whether he may",
}
_LEADER = {
    "leases:create": "`--leader-elect`: the first lease",
    "leases:get,update": "`--leader-elect`: its renewal and take-over",
}

PURPOSES: dict[str, dict[str, str]] = {
    "recommender": {
        **_TARGETS,
        **_READERS,
        **_LEADER,
        "pods:list": "usage, from the Metrics API",
        "pods:list,watch": "which pods there are, their requests, their kills",
        "limitranges": "the condition Capped",
        "events:create,patch": "events about VPAs, repeated ones counted",
        "events:list,watch": "evictions for lack of memory",
        "verticalpodautoscalers": "VPAs; single ones again after a conflict, and before their checkpoints go",
        "verticalpodautoscalers/status": "recommendations and conditions",
        "verticalpodautoscalercheckpoints": "history across restarts; single ones again after a conflict",
        "nodes": "`spec.scope`: the labels of nodes",
    },
    "updater": {
        **_TARGETS,
        **_READERS,
        **_LEADER,
        "pods:list,watch": "which pods there are, and what they request",
        "pods:patch": "marks on resized pods; the end of a startup boost",
        "pods/resize": "resizes in place",
        "pods/eviction": "evictions",
        "limitranges": "sizes that a LimitRange admits",
        "events:create,patch": "events about pods and VPAs, repeated ones counted",
        "verticalpodautoscalers": "VPAs; single ones again after a conflict",
        "leases:get": "the admission controller's sign of life",
        "nodes": "`NoNodeFits`, `--cap-to-node`; `spec.scope`: the labels of nodes",
        "resourcequotas": "`QuotaExceeded`",
        "poddisruptionbudgets": "`DisruptionBudgetBlocked` foreseen, not tried",
        "horizontalpodautoscalers": "`HPAConflict`",
        "pods:list": "`LimitBelowUsage`: memory in use, from the Metrics API",
        "verticalpodautoscalers/status": "conditions that say why pods are left alone",
    },
    "admission-controller": {
        **_TARGETS,
        **_READERS,
        "limitranges": "sizes that a LimitRange admits",
        "verticalpodautoscalers": "VPAs and their recommendations",
        "mutatingwebhookconfigurations": "`--register-webhook`, and the CA of `--generate-certificates`",
        "leases": "the sign of life that the updater looks at",
        "nodes": "`--cap-to-node`: how large nodes are; `spec.scope`: their labels",
        "pods": "`--cap-to-node`: what DaemonSets take of nodes",
        "secrets:create": "`--generate-certificates`: the Secret, the first time",
        "secrets:get,patch": "`--generate-certificates`: the Secret, shared by all replicas and renewed",
    },
}

_OWNERS = "cluster/test_owners.py::test_a_copy_that_has_not_heard_of_a_new_replica_set_yet_is_helped_out_once"
_CONFLICT = "cluster/test_writes.py::test_after_a_conflict_the_change_is_computed_anew_from_what_is_there"

SELDOM = {
    **{f"{kind}:get": _OWNERS for kind in _TARGETS if kind != "*/scale"},
    "verticalpodautoscalers:get": _CONFLICT,
    "verticalpodautoscalercheckpoints:get": (
        "cluster/test_recommender_checkpoints.py::"
        "test_a_checkpoint_is_never_overwritten_by_one_that_knows_less"
    ),
    "events:patch": "cluster/test_events.py::test_the_same_event_again_raises_the_count_after_a_while",
    "mutatingwebhookconfigurations:create": (
        "cluster/test_admission_registration.py::test_the_webhook_is_registered_as_upstream_registers_its_own"
    ),
    "secrets:patch": (
        "cluster/test_admission_certificates.py::test_a_secret_that_others_made_is_completed_and_not_replaced"
    ),
    "nodes:get": "core/test_admission_scopes.py::test_a_node_that_is_too_new_for_the_copy_is_asked_for",
}
"""Verbs for which the trials may have no occasion, and a test that has."""
