"""``vpa plan``: what the updater would do to each pod in one pass, and why it leaves the others alone."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from vpa import disruptions, settings, times
from vpa.cli.app import TAKES_FLAGS, parse
from vpa.cli.moments import moment
from vpa.cli.objects import Objects, read
from vpa.cli.workloads import Workloads
from vpa.disruptions import Action, Decision, Managed, Memory, Options, Surroundings
from vpa.flags import Table
from vpa.matching import UPDATER
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import (
    HorizontalPodAutoscaler,
    LimitRange,
    PodDisruptionBudget,
    ResourceQuota,
)
from vpa.objects.nodes import Node
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.sizes.limit_ranges import ranges_by_namespace
from vpa.sizes.nodes_fit import Rooms
from vpa.updates.pdbs import DisruptionBudgets
from vpa.updates.quotas import Quotas


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """The flags that change a decision of the updater."""

    behaviour: settings.Behaviour
    rules: Rules
    selection: settings.Selection
    updating: settings.Updating
    sizing: settings.Sizing


TABLE = Table.of(Flags)


def register(app: typer.Typer) -> None:
    """Add the command to *app*."""
    app.command(
        "plan",
        context_settings=TAKES_FLAGS,
        epilog="Flags of the updater that change a decision are accepted under their own names.",
    )(command)


def command(
    context: typer.Context,
    objects: Annotated[
        list[str],
        typer.Option("--filename", "-f", help="Objects as kubectl prints them; - is standard input."),
    ],
    now: Annotated[str, typer.Option("--now", help="The time to plan for; default: now.")] = "",
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
    no_in_place: Annotated[
        bool, typer.Option("--no-in-place", help="Plan for a cluster that cannot resize pods.")
    ] = False,
) -> None:
    """Show what the updater would do to each pod, and why it leaves the others alone."""
    if output not in ("table", "json"):
        raise typer.BadParameter("use table or json", param_hint="-o")
    parsed = parse(TABLE, context)
    options = Options(
        behaviour=parsed.get(settings.Behaviour),
        updating=parsed.get(settings.Updating),
        sizing=parsed.get(settings.Sizing),
        rules=parsed.get(Rules),
    )
    found = read([*objects, *parsed.rest])
    rows = plan(
        found,
        now=times.to_datetime(moment(now)) if now else datetime.now(UTC),
        options=options,
        selection=parsed.get(settings.Selection),
        can_resize=not no_in_place,
    )
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n")
    else:
        _print_table(rows)


def plan(
    objects: Objects,
    *,
    now: datetime,
    options: Options,
    selection: settings.Selection | None = None,
    can_resize: bool = True,
) -> list[dict[str, Any]]:
    """One pass of the updater over *objects*: acted pods in order of execution, then the others as given."""
    pods = objects.of(Pod)
    workloads = Workloads(objects)
    chosen, alone = _by_vpa(pods, workloads, options, selection or settings.Selection())
    memory = Memory()
    memory.breakers.proven = now  # the admission controller is taken to work
    result = disruptions.plan(
        chosen,
        surroundings(objects, workloads, pods, options=options, can_resize=can_resize),
        memory,
        now=now,
        options=options,
    )
    acted = [_row(decision) for decision in result.acted]
    others = alone | {id(decision.pod): _row(decision) for decision in result.others()}
    return acted + [others[id(pod)] for pod in pods if id(pod) in others]


def surroundings(
    objects: Objects, workloads: Workloads, pods: Sequence[Pod], *, options: Options, can_resize: bool
) -> Surroundings:
    """What the objects at hand say about the cluster; kinds that are not among them check nothing."""
    rules = options.rules
    hpas: dict[str, list[HorizontalPodAutoscaler]] = {}
    for hpa in objects.of(HorizontalPodAutoscaler):
        hpas.setdefault(hpa.metadata.namespace, []).append(hpa)
    nodes, quotas = objects.of(Node), objects.of(ResourceQuota)
    budgets = objects.of(PodDisruptionBudget)
    return Surroundings(
        replicas=workloads.replicas(pods, rules=rules),
        ranges=ranges_by_namespace(objects.of(LimitRange), rules=rules),
        rooms=Rooms(nodes, pods) if nodes else None,
        nodes={node.metadata.name: node.metadata.labels or {} for node in nodes},
        disruption_budgets=DisruptionBudgets(budgets, pods) if budgets else None,
        quotas=Quotas(quotas, pods) if quotas else None,
        hpas=hpas,
        can_resize=can_resize,
    )


def _by_vpa(
    pods: Sequence[Pod], workloads: Workloads, options: Options, selection: settings.Selection
) -> tuple[list[Managed], dict[int, dict[str, Any]]]:
    """The VPAs with their pods, and the rows of the pods that have none."""
    behaviour = options.behaviour
    vpas: dict[tuple[str, str], VerticalPodAutoscaler] = {}
    members: dict[tuple[str, str], list[Pod]] = {}
    rivals: dict[tuple[str, str], tuple[str, ...]] = {}
    alone: dict[int, dict[str, Any]] = {}
    for pod in pods:
        choice = workloads.choice(
            pod,
            service=UPDATER,
            rules=options.rules,
            gates=behaviour.feature_gates,
            default_mode=behaviour.default_update_mode,
        )
        namespace = pod.metadata.namespace
        if not selection.handles(namespace):
            why = Refusal(Reason.NO_VPA, f"namespace {namespace} is left out by the flags")
            alone[id(pod)] = _lonely_row(pod, why)
            continue
        if choice is None:
            alone[id(pod)] = _lonely_row(pod, workloads.no_vpa(pod))
            continue
        key = choice.vpa.metadata.namespace, choice.vpa.metadata.name
        vpas[key] = choice.vpa
        members.setdefault(key, []).append(pod)
        rivals[key] = choice.rivals
    managed = [Managed(vpa=vpas[key], pods=found, rivals=rivals[key]) for key, found in members.items()]
    return managed, alone


def _row(decision: Decision) -> dict[str, Any]:
    priority = decision.priority
    return {
        "namespace": decision.pod.metadata.namespace,
        "name": decision.pod.metadata.name,
        "vpa": decision.vpa.metadata.name,
        "action": decision.action.value,
        "reason": decision.reason.value,
        "message": decision.message,
        "priority": None
        if priority is None
        else {
            "scaleUp": priority.scale_up,
            "resourceDiff": priority.resource_diff,
            "outsideRecommendedRange": priority.outside_recommended_range,
        },
        "patch": decision.patch.resize if decision.patch is not None else None,
    }


def _lonely_row(pod: Pod, refusal: Refusal) -> dict[str, Any]:
    return {
        "namespace": pod.metadata.namespace,
        "name": pod.metadata.name,
        "vpa": None,
        "action": Action.NONE.value,
        "reason": refusal.reason.value,
        "message": refusal.message,
        "priority": None,
        "patch": None,
    }


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Two lines or more for each pod: what, and below it why or what would have to change."""
    console = Console(highlight=False, soft_wrap=True)
    width = max((len(f"{row['namespace']}/{row['name']}") for row in rows), default=0)
    for row in rows:
        pod = f"{row['namespace']}/{row['name']}"
        vpa = f"  (VPA {row['vpa']})" if row["vpa"] else ""
        style = "dim" if row["action"] == Action.NONE else "bold"
        console.print(f"{row['action']:6}  {pod:{width}}  {row['reason']}{vpa}", style=style, markup=False)
        indent = " " * 8
        text = textwrap.fill(row["message"], console.width, initial_indent=indent, subsequent_indent=indent)
        console.print(text, markup=False)
    counted = Counter(row["action"] for row in rows)
    console.print(
        f"{len(rows)} pods: {counted[Action.RESIZE]} resized, {counted[Action.EVICT]} evicted, "
        f"{counted[Action.NONE]} left alone"
    )
