"""Small objects for the tests of the updater's core, and a plan over them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from vpa import disruptions
from vpa.disruptions import Decision, Managed, Memory, Options, Plan, Surroundings
from vpa.gates import FeatureGates
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.nodes import Node
from vpa.objects.pods import Pod
from vpa.rules import Rules, preset
from vpa.settings import Behaviour, Sizing, Updating
from vpa.updates.budgets import GroupKey, group_of

NOW: datetime = meta.convert("2026-08-01T12:00:00Z", datetime)
HOUR = timedelta(hours=1)
SAFE, UPSTREAM = preset("safe"), preset("upstream")


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def make_vpa(
    mode: str | None = "Recreate",
    *,
    target: Mapping[str, str] | None = None,
    lower: Mapping[str, str] | None = None,
    upper: Mapping[str, str] | None = None,
    conditions: Mapping[str, str] | None = None,
    policy: Mapping[str, Any] | None = None,
    containers: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> VerticalPodAutoscaler:
    """A VPA of Deployment ``web`` that wants cpu 200m and memory 400Mi for container ``main``."""
    target = {"cpu": "200m", "memory": "400Mi"} if target is None else target
    entry: dict[str, Any] = {"containerName": "main", "target": target}
    entry["lowerBound"] = target if lower is None else lower
    entry["upperBound"] = target if upper is None else upper
    update = {**({"updateMode": mode} if mode else {}), **(policy or {})}
    return meta.convert(
        {
            "metadata": {"name": "v", "namespace": "n", "creationTimestamp": stamp(NOW - 1000 * HOUR)},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "updatePolicy": update,
                **spec,
            },
            "status": {
                "recommendation": {"containerRecommendations": [entry] if containers is None else containers},
                "conditions": [
                    {"type": kind, "status": status} for kind, status in (conditions or {}).items()
                ],
            },
        },
        VerticalPodAutoscaler,
    )


def make_pod(
    name: str,
    *,
    requests: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    owner: tuple[str, str] | None = ("ReplicaSet", "web-1"),
    age: timedelta = 24 * HOUR,
    ready: bool | None = True,
    phase: str = "Running",
    conditions: list[dict[str, Any]] | None = None,
    annotations: Mapping[str, str] | None = None,
    containers: list[dict[str, Any]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
) -> Pod:
    """A pod with one container ``main`` that requests cpu 100m and memory 200Mi."""
    resources: dict[str, Any] = {
        "requests": {"cpu": "100m", "memory": "200Mi"} if requests is None else dict(requests)
    }
    if limits is not None:
        resources["limits"] = dict(limits)
    stated = list(conditions or ())
    if ready is not None:
        stated.append(
            {"type": "Ready", "status": str(ready), "lastTransitionTime": stamp(NOW - age + HOUR / 60)}
        )
    owners = [] if owner is None else [{"kind": owner[0], "name": owner[1], "controller": True, "uid": "o"}]
    return meta.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "n",
                "uid": f"uid-{name}",
                "generation": 1,
                "labels": {"app": "web"},
                "ownerReferences": owners,
                **({"annotations": dict(annotations)} if annotations is not None else {}),
                **(metadata or {}),
            },
            "spec": {
                "containers": containers or [{"name": "main", "resources": resources}],
                "nodeName": "node-1",
                **(spec or {}),
            },
            "status": {
                "phase": phase,
                "startTime": stamp(NOW - age),
                "conditions": stated,
                **(status or {}),
            },
        },
        Pod,
    )


def make_pods(count: int, **fields: Any) -> list[Pod]:
    return [make_pod(f"p{index}", **fields) for index in range(count)]


def make_node(
    name: str = "node-1",
    *,
    cpu: str = "4",
    memory: str = "16Gi",
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Node:
    return meta.convert(
        {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": spec,
            "status": {"allocatable": {"cpu": cpu, "memory": memory}},
        },
        Node,
    )


def make_options(
    rules: Rules = SAFE,
    *,
    gates: str = "",
    cap_to_node: bool = False,
    mode: str = "Recreate",
    **updating: Any,
) -> Options:
    return Options(
        behaviour=Behaviour(feature_gates=FeatureGates.parse(gates), default_update_mode=mode),
        updating=Updating(**updating),
        sizing=Sizing(cap_to_node=cap_to_node),
        rules=rules,
    )


def trusting() -> Memory:
    """A memory that knows the webhook to work."""
    memory = Memory()
    memory.breakers.proven = NOW
    return memory


def make_plan(
    vpa: VerticalPodAutoscaler,
    pods: list[Pod],
    *,
    options: Options | None = None,
    memory: Memory | None = None,
    replicas: int | None = None,
    now: datetime = NOW,
    rivals: tuple[str, ...] = (),
    **around: Any,
) -> Plan:
    """Plan for one VPA; its groups want as many pods as there are, unless *replicas* says otherwise."""
    groups: dict[GroupKey, int] = {}
    for pod in pods:
        groups[group_of(pod)] = groups.get(group_of(pod), 0) + 1
    if replicas is not None:
        groups = dict.fromkeys(groups, replicas)
    return disruptions.plan(
        [Managed(vpa=vpa, pods=pods, rivals=rivals)],
        Surroundings(replicas=groups, **around),
        memory or trusting(),
        now=now,
        options=options or make_options(),
    )


def outcome(plan: Plan) -> dict[str, tuple[str, str]]:
    """Pod → (action, reason)."""
    decisions: list[Decision] = [*plan.acted, *plan.others()]
    return {one.pod.metadata.name: (one.action.value, one.reason.value) for one in decisions}


def only(plan: Plan) -> Decision:
    """The decision about the only pod."""
    (decision,) = [*plan.acted, *plan.others()]
    return decision


EVICT = ("evict", "OutsideBounds")
RESIZE = ("resize", "OutsideBounds")
ALONE = make_options(min_replicas=1)


def without(rule: str, **more: Any) -> Any:
    """Options of ``safe`` with one rule switched off."""
    return make_options(Rules(**{rule: False}), **more)
