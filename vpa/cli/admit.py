"""``vpa admit``: what the webhook would make of each pod if it were being created now."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console

from vpa import settings
from vpa.cli.app import TAKES_FLAGS, parse
from vpa.cli.objects import Objects, Unreadable, read
from vpa.cli.workloads import Workloads
from vpa.flags import Table
from vpa.matching import ADMISSION, takes_part
from vpa.modes import OFF, update_mode
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.objects.nodes import Node
from vpa.objects.pods import Pod, PodStatus
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.scopes import NodeLabels, for_pod
from vpa.sizes.boosts import ANNOTATION_PREFIX
from vpa.sizes.limit_ranges import NO_RANGES, Ranges, ranges_by_namespace
from vpa.sizes.nodes_fit import Rooms
from vpa.sizes.observed import ANNOTATION as OBSERVED_ANNOTATION
from vpa.sizes.patches import UPDATES_ANNOTATION, Operation, Terms, admit
from vpa.validation import review

IN_PLACE_ANNOTATION: Final = "vpaInPlaceUpdated"

VPA: Final = "VerticalPodAutoscaler"

OURS: Final = frozenset({UPDATES_ANNOTATION, OBSERVED_ANNOTATION, IN_PLACE_ANNOTATION})
"""Annotations that a pod does not have yet when it is created."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """The flags that change what the webhook does."""

    behaviour: settings.Behaviour
    rules: Rules
    selection: settings.Selection
    sizing: settings.Sizing
    boosting: settings.Boosting


TABLE = Table.of(Flags)


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """What pods are seen in."""

    workloads: Workloads
    ranges: Mapping[str, Ranges]
    cap_to: Rooms | None
    nodes: NodeLabels
    unreadable: Mapping[str, Unreadable]
    """Namespace → a VPA there that cannot be read."""


@dataclass(frozen=True, slots=True)
class Row:
    """One pod: the VPA that is its own, the patch, and why it gets no sizes."""

    pod: Pod
    vpa: str | None
    patch: list[Operation]
    refusal: Refusal | None = None

    @property
    def name(self) -> str:
        return self.pod.metadata.name or self.pod.metadata.generate_name

    def data(self) -> dict[str, Any]:
        return {
            "namespace": self.pod.metadata.namespace,
            "name": self.name,
            "vpa": self.vpa,
            "patch": self.patch,
            "reason": None if self.refusal is None else self.refusal.reason.value,
        }


def register(app: typer.Typer) -> None:
    """Add the command to *app*."""
    app.command(
        "admit",
        context_settings=TAKES_FLAGS,
        epilog="Flags of the admission controller that change a patch are accepted under their own names.",
    )(command)


def command(
    context: typer.Context,
    objects: Annotated[
        list[str],
        typer.Option("--filename", "-f", help="Objects as kubectl prints them; - is standard input."),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
) -> None:
    """Show the patch that each pod would get if it were created now, or why it would get none."""
    if output not in ("table", "json"):
        raise typer.BadParameter("use table or json", param_hint="-o")
    parsed = parse(TABLE, context)
    flags = parsed.fill(Flags)
    found = read([*objects, *parsed.rest], spared=(VPA,))
    for warning in refused_vpas(found, flags):
        print(f"vpa: {warning}", file=sys.stderr)
    rows = admissions(found, flags)
    if output == "json":
        data = [row.data() for row in rows]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")
    else:
        _print_table(rows)


def refused_vpas(objects: Objects, flags: Flags) -> list[str]:
    """One sentence for each VPA that cannot be read, or that the webhook would not let in."""
    found = [
        f"VPA {one.namespace}/{one.name} is left out, it cannot be read: {one.problem}"
        for one in objects.unreadable
    ]
    for item in objects.of_kind(VPA):
        verdict = review(item.data, rules=flags.rules, gates=flags.behaviour.feature_gates)
        if not verdict.allowed:
            texts = "; ".join(str(error) for error in verdict.errors)
            found.append(f"VPA {item.namespace}/{item.name} would be refused: {texts}")
    return found


def admissions(objects: Objects, flags: Flags) -> list[Row]:
    """One row for each pod, in input order."""
    nodes, pods = objects.of(Node), objects.of(Pod)
    around = Around(
        workloads=Workloads(objects),
        ranges=ranges_by_namespace(objects.of(LimitRange), rules=flags.rules),
        cap_to=Rooms(nodes, pods) if nodes and flags.sizing.cap_to_node else None,
        nodes={node.metadata.name: node.metadata.labels or {} for node in nodes},
        unreadable={one.namespace: one for one in reversed(objects.unreadable)},
    )
    return [_admission(pod, around, flags) for pod in pods]


def unborn(pod: Pod) -> Pod:
    """The pod as it was before anybody scheduled, ran or changed it."""
    metadata = pod.metadata
    annotations = metadata.annotations
    if annotations is not None:
        kept = {
            key: value
            for key, value in annotations.items()
            if key not in OURS and not key.startswith(ANNOTATION_PREFIX)
        }
        if kept != annotations:
            metadata = msgspec.structs.replace(metadata, annotations=kept or None)
    spec = msgspec.structs.replace(pod.spec, node_name="")
    return msgspec.structs.replace(pod, metadata=metadata, spec=spec, status=PodStatus())


def _admission(existing: Pod, around: Around, flags: Flags) -> Row:
    pod = unborn(existing)
    namespace = pod.metadata.namespace
    behaviour = flags.behaviour
    if not flags.selection.handles(namespace):
        return Row(pod, None, [], Refusal(Reason.NO_VPA, f"namespace {namespace} is left out by the flags"))
    choice = around.workloads.choice(
        pod,
        service=ADMISSION,
        rules=flags.rules,
        gates=behaviour.feature_gates,
        default_mode=behaviour.default_update_mode,
    )
    if choice is None:
        return Row(pod, None, [], _no_vpa(pod, around))
    vpa = for_pod(choice.vpa, existing, around.nodes)
    if not _takes_part(vpa, flags):
        return Row(pod, vpa.metadata.name, [], _idle(vpa, flags))
    terms = Terms(
        rules=flags.rules,
        gates=behaviour.feature_gates,
        default_mode=behaviour.default_update_mode,
        most_boost=flags.boosting.max_allowed_cpu_boost,
    )
    ranges = around.ranges.get(namespace, NO_RANGES)
    done = admit(pod, vpa, ranges, terms=terms, cap_to=around.cap_to)
    return Row(pod, vpa.metadata.name, done.patch, done.reason)


def _no_vpa(pod: Pod, around: Around) -> Refusal:
    """Why no VPA is the pod's; or could it be one that cannot be read?"""
    refusal = around.workloads.no_vpa(pod)
    unreadable = around.unreadable.get(pod.metadata.namespace)
    if unreadable is None or refusal.reason is not Reason.NO_VPA:
        return refusal
    text = f"{refusal.message}; VPA {unreadable.name} is left out, it cannot be read: {unreadable.problem}"
    return Refusal(Reason.INVALID_VPA, text)


def _takes_part(vpa: VerticalPodAutoscaler, flags: Flags) -> bool:
    return takes_part(
        vpa,
        service=ADMISSION,
        rules=flags.rules,
        gates=flags.behaviour.feature_gates,
        default_mode=flags.behaviour.default_update_mode,
    )


def _idle(vpa: VerticalPodAutoscaler, flags: Flags) -> Refusal:
    """Why the only VPA of a pod does not take part."""
    mode = update_mode(vpa, default=flags.behaviour.default_update_mode)
    text = f"VPA {vpa.metadata.name} has update mode {mode}: the recommendation is shown and never applied"
    return Refusal(Reason.MODE_OFF if mode == OFF else Reason.NO_VPA, text)


def _print_table(rows: Sequence[Row]) -> None:
    """The pod and its VPA, below it each changed value or the reason."""
    console = Console(highlight=False, soft_wrap=True)
    for row in rows:
        vpa = f"  (VPA {row.vpa})" if row.vpa else ""
        console.print(f"{row.pod.metadata.namespace}/{row.name}{vpa}", style="bold", markup=False)
        for operation in row.patch:
            if isinstance(operation["value"], str):
                console.print(f"    {operation['path']}  {operation['value']}", markup=False)
        if row.refusal is not None:
            text = f"{row.refusal.reason}: {row.refusal.message}"
            console.print(
                textwrap.fill(text, console.width, initial_indent=" " * 4, subsequent_indent=" " * 4),
                style="dim",
                markup=False,
            )
    sized = sum(row.refusal is None for row in rows)
    console.print(f"{len(rows)} pods: {sized} sized, {len(rows) - sized} left as they are")
