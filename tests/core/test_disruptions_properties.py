"""Whatever pods, settings and answers come: the budget holds, each pod has one outcome, patches apply."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from tests.core.updater_kit import NOW, UPSTREAM, make_options, make_plan, make_pod, make_vpa
from vpa.disruptions import Action, Decision, Plan
from vpa.objects import meta
from vpa.objects.pods import Pod
from vpa.quantities import Quantity
from vpa.rules import Rules
from vpa.sizes.fitting import Sizes
from vpa.updates.answers import Answer
from vpa.updates.budgets import is_pending, is_unready
from vpa.updates.resize_patches import NothingToPatch, resize_patch

ANSWERS = [
    Answer(code=403, causes=("NodeCapacity",)),
    Answer(code=404),
    Answer(code=409),
    Answer(code=422, message="invalid"),
    Answer(code=429, causes=("DisruptionBudget",)),
    Answer(code=429, retry_after=3),
    Answer(code=500, message="broken"),
    Answer(code=0),
]


@st.composite
def groups(draw: st.DrawFn) -> list[Pod]:
    """Pods of one or two groups in every state."""
    result = []
    for index in range(draw(st.integers(1, 12))):
        state = draw(st.sampled_from(["ready", "unready", "pending", "ended", "deferred", "resizing"]))
        conditions = {
            "deferred": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
            "resizing": [{"type": "PodResizeInProgress", "status": "True"}],
        }.get(state)
        result.append(
            make_pod(
                f"p{index}",
                requests={"cpu": draw(st.sampled_from(["50m", "200m", "1"])), "memory": "400Mi"},
                owner=("ReplicaSet", draw(st.sampled_from(["one", "one", "two"]))),
                phase={"pending": "Pending", "ended": "Succeeded"}.get(state, "Running"),
                ready=None if state == "pending" else state != "unready",
                conditions=conditions,
            )
        )
    return result


def carry_out(plan: Plan, answers: Any) -> list[Decision]:
    """Send all that is handed out and answer as drawn; returns what happened, or may have happened."""
    happened = []
    queue = list(plan.acted)
    while queue:
        decision = queue.pop(0)
        answer = answers(decision)
        if answer is None:
            plan.accepted(decision, NOW)
            happened.append(decision)
            continue
        if answer.code == 0 or answer.code in (404, 409, 500):
            happened.append(decision)
        queue += plan.refused(decision, answer, NOW)
    return happened


@given(
    pods=groups(),
    mode=st.sampled_from(["Recreate", "InPlaceOrRecreate", "InPlace"]),
    tolerance=st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]),
    missing=st.integers(0, 3),
    data=st.data(),
)
def test_no_more_of_a_group_is_down_than_its_tolerance(
    pods: list[Pod], mode: str, tolerance: float, missing: int, data: st.DataObject
) -> None:
    options = make_options(gates="InPlace=true", min_replicas=1, eviction_tolerance=tolerance)
    owners = Counter(pod.metadata.owner_references[0].name for pod in pods if pod.metadata.owner_references)
    replicas = max(owners.values()) + missing
    plan = make_plan(make_vpa(mode), pods, options=options, replicas=replicas)
    choices = st.sampled_from([None, None, None, *ANSWERS])
    happened = carry_out(plan, lambda _: data.draw(choices))

    allowed = int(replicas * tolerance)
    for owner in owners:
        live = [
            pod
            for pod in pods
            if pod.metadata.owner_references
            and pod.metadata.owner_references[0].name == owner
            and pod.status.phase in ("Running", "Pending")
        ]
        serving = [pod for pod in live if not is_pending(pod) and not is_unready(pod)]
        touched = [one.pod for one in happened if one.pod in serving]
        if not touched:
            continue
        if allowed == 0:
            assert len(touched) == 1
            assert len(serving) == replicas
        else:
            assert len(serving) - len(touched) >= replicas - allowed


@given(pods=groups(), mode=st.sampled_from(["Recreate", "InPlaceOrRecreate", "InPlace"]), data=st.data())
def test_each_pod_has_one_outcome_and_its_reason(pods: list[Pod], mode: str, data: st.DataObject) -> None:
    options = make_options(gates="InPlace=true", min_replicas=1)
    plan = make_plan(make_vpa(mode), pods, options=options)
    names = [one.pod.metadata.name for one in [*plan.acted, *plan.others()]]
    assert sorted(names) == sorted(pod.metadata.name for pod in pods)
    happened = carry_out(plan, lambda _: data.draw(st.sampled_from([None, *ANSWERS])))
    others = list(plan.others())
    assert all(one.message and one.action is Action.NONE for one in others)
    if mode == "InPlace":
        assert all(one.action is Action.RESIZE for one in happened)
    if mode == "Recreate":
        assert all(one.action is Action.EVICT for one in happened)
    accepted = Counter(one.pod.metadata.name for one in happened if one.action is Action.RESIZE)
    assert all(count == 1 for count in accepted.values())


quantities = st.integers(1, 10**12).map(lambda nanos: Quantity(nanos * 1_000_000))
lists = st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/gpu~x"]), quantities, max_size=3)
maybe = st.one_of(st.none(), lists)


@given(
    containers=st.lists(st.tuples(st.booleans(), maybe, maybe), min_size=1, max_size=3),
    sizes=st.lists(st.tuples(lists, lists), min_size=3, max_size=3),
    rules=st.sampled_from([Rules(), UPSTREAM]),
    annotated=st.booleans(),
)
def test_a_resize_patch_gives_the_pod_exactly_its_sizes(
    containers: list[tuple[bool, Any, Any]],
    sizes: list[tuple[dict[str, Quantity], dict[str, Quantity]]],
    rules: Rules,
    annotated: bool,
) -> None:
    def shown(listed: dict[str, Quantity]) -> dict[str, str]:
        return {name: str(quantity) for name, quantity in listed.items()}

    spec: list[dict[str, Any]] = []
    for index, (has_resources, requests, limits) in enumerate(containers):
        container: dict[str, Any] = {"name": f"c{index}"}
        if has_resources:
            container["resources"] = {
                kind: shown(listed)
                for kind, listed in (("requests", requests), ("limits", limits))
                if listed is not None
            }
        spec.append(container)
    pod = make_pod("p", containers=spec, annotations={} if annotated else None)
    wanted = [Sizes(f"c{index}", *sizes[index], []) for index in range(len(spec))]
    try:
        patch = resize_patch(pod, wanted, rules=rules)
    except NothingToPatch:
        if rules == UPSTREAM:
            assert all(not one.requests and not one.limits for one in wanted)
        return
    metadata: dict[str, Any] = {"annotations": {}} if annotated else {}
    before = {"metadata": metadata, "spec": {"containers": spec}}
    after = jsonpatch.apply_patch(jsonpatch.apply_patch(before, patch.resize), patch.annotations)
    assert after["metadata"]["annotations"]["vpaInPlaceUpdated"] == "true"
    for old, new, size in zip(spec, after["spec"]["containers"], wanted, strict=True):
        resources = new.get("resources", {})
        had = old.get("resources", {})
        for kind, listed in (("requests", size.requests), ("limits", size.limits)):
            expected = {**had.get(kind, {}), **shown(listed)}
            values = {name: Quantity.parse(text) for name, text in resources.get(kind, {}).items()}
            assert values == {name: Quantity.parse(text) for name, text in expected.items()}
    for name, resources in patch.wanted.items():
        index = int(name[1:])
        new = after["spec"]["containers"][index]["resources"]
        plain = meta.to_builtins(resources)
        assert {kind: new.get(kind, {}) for kind in ("requests", "limits")} == {
            kind: plain.get(kind) or {} for kind in ("requests", "limits")
        }
