"""Tables for people: recommendations, and the steps behind each number; readable at 80 columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import groupby
from typing import IO

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vpa import traces
from vpa.cli.scenes import Entry, Scene
from vpa.estimators import BOUNDS, MEMORY, RESOURCES
from vpa.objects.autoscalers import ContainerRecommendation, Status
from vpa.objects.meta import ResourceList
from vpa.quantities import Quantity
from vpa.scopes import scope_label

COLUMNS = (
    *("namespace", "vpa", "kind", "workload", "container", "resource"),
    *("request", "lowerBound", "target", "upperBound", "uncappedTarget", "days"),
)
"""Of a CSV file."""

_UNBOUNDED = {"cpu": Quantity.parse("100G"), "memory": Quantity.parse("97656250000Ki")}


def show(scene: Scene, statuses: dict[tuple[str, str], Status], console: Console, *, explain: bool) -> None:
    """Print each VPA's recommendation, and with *explain* how it came about."""
    for entry in scene.entries:
        status = statuses[entry.key]
        console.print(_heading(scene, entry), highlight=False)
        for condition in status.conditions or ():
            if condition.message and condition.status == "True":
                console.print(f"  {condition.type}: {condition.message}", highlight=False, markup=False)
        for part, containers in _parts(entry, status):
            if part is not None:
                console.print(f"  {_value(entry, part)}", highlight=False, markup=False)
            if containers:
                console.print(_numbers(entry, containers))
            for container in scene.roster.containers(entry.part(part)) if explain else ():
                _explain(scene, entry, part, container.name, console)
        console.print()
    if not scene.entries:
        console.print("There is no VerticalPodAutoscaler among the objects.")


def write_csv(scene: Scene, statuses: dict[tuple[str, str], Status], output: IO[str]) -> None:
    """One line for each resource of each container; amounts as Kubernetes writes them."""
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry in scene.entries:
        days = f"{scene.days(entry):.1f}"
        for part, containers in _parts(entry, statuses[entry.key]):
            for one in containers:
                writer.writerows((*line, days) for line in _lines(entry, part, one))


def _lines(entry: Entry, part: str | None, one: ContainerRecommendation) -> Iterator[tuple[object, ...]]:
    kind, name = (entry.target.kind, entry.target.name) if entry.target else ("", "")
    workload = name if part is None else f"{name} [{_value(entry, part)}]"
    for resource in (name for name in RESOURCES if name in (one.target or {})):
        lists = (one.lower_bound, one.target, one.upper_bound, one.uncapped_target)
        amounts = [(values or {}).get(resource, "") for values in lists]
        request = _requested(entry, one.container_name, resource)
        asked = "" if request is None else request
        yield (*entry.key, kind, workload, one.container_name, resource, asked, *amounts)


def _parts(entry: Entry, status: Status) -> list[tuple[str | None, list[ContainerRecommendation]]]:
    """The recommendation of each value of the scope; of one that nothing splits, the value is None."""
    if scope_label(entry.vpa):
        return [(group.scope_value, group.container_recommendations or []) for group in status.groups or ()]
    return [(None, (status.recommendation and status.recommendation.container_recommendations) or [])]


def _value(entry: Entry, part: str) -> str:
    return f"{scope_label(entry.vpa)}={part}"


def _heading(scene: Scene, entry: Entry) -> str:
    target = f" → {entry.target.kind}/{entry.target.name}" if entry.target else ""
    pods = "1 pod" if len(entry.pods) == 1 else f"{len(entry.pods)} pods"
    name = escape(f"{entry.item.namespace}/{entry.item.name}")
    return f"[bold]{name}[/bold]{escape(target)}, {pods}, {scene.days(entry):.1f} days of data"


def _numbers(entry: Entry, containers: list[ContainerRecommendation]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("container", "resource"):
        table.add_column(title)
    for title in ("request", "lower", "target", "upper", "uncapped"):
        table.add_column(title, justify="right")
    for container in containers:
        for resource in RESOURCES:
            if resource in (container.target or {}):
                lists = (
                    container.lower_bound,
                    container.target,
                    container.upper_bound,
                    container.uncapped_target,
                )
                table.add_row(
                    escape(container.container_name),
                    resource,
                    _request(entry, container.container_name, resource),
                    *(_cell(values, resource) for values in lists),
                )
    return table


def _cell(values: ResourceList | None, resource: str) -> str:
    value = (values or {}).get(resource)
    if value is None:
        return "-"
    if value == _UNBOUNDED[resource]:
        return "∞"
    return readable(resource, value)


def readable(resource: str, value: Quantity) -> str:
    """Memory to three digits in the largest unit, other quantities as they are."""
    if resource != MEMORY:
        return str(value)
    size = float(value.value())
    for suffix in ("", "Ki", "Mi", "Gi", "Ti"):
        if size < 1024 or suffix == "Ti":
            return f"{size:.4g}{suffix}"
        size /= 1024
    return str(value)


def _request(entry: Entry, container: str, resource: str) -> str:
    found = _requested(entry, container, resource)
    return "-" if found is None else readable(resource, found)


def _requested(entry: Entry, container: str, resource: str) -> Quantity | None:
    for pod in entry.pods:
        for spec in pod.spec.containers or ():
            if spec.name == container and spec.resources and resource in (spec.resources.requests or {}):
                return (spec.resources.requests or {})[resource]
    return None


def _explain(scene: Scene, entry: Entry, part: str | None, container: str, console: Console) -> None:
    key = entry.part(part)
    steps = traces.explain(scene.roster, key, container)
    row = next(c for c in scene.roster.containers(key) if c.name == container)
    span = traces.history_span(scene.usage, scene.roster.row(row))
    console.print(f"[bold]{escape(container)}[/bold]: {span}", highlight=False)
    for resource, of_resource in groupby(steps, key=lambda step: step.resource):
        table = Table(
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        table.add_column(resource, no_wrap=True)
        for bound in ("lower", "target", "upper"):
            table.add_column(bound, justify="right", no_wrap=True)
        table.add_column("why")
        for name, amounts, why in _by_step(list(of_resource)):
            table.add_row(name, *amounts, why)
        console.print(table)
        evidence = traces.oom_evidence(scene.usage, scene.roster.row(row)) if resource == MEMORY else None
        if evidence:
            console.print(f"  {evidence}", highlight=False)


def _by_step(steps: list[traces.Step]) -> list[tuple[str, tuple[str, ...], str]]:
    """(name, lower/target/upper, why) of each step; reasons that differ by bound stand below each other."""
    rows = []
    for name in dict.fromkeys(step.name for step in steps):
        of_step = {step.bound: step for step in steps if step.name == name}
        if all(step.before == step.after for step in of_step.values()) and name not in _ALWAYS:
            continue
        order = (BOUNDS[1], BOUNDS[0], BOUNDS[2])
        amounts = tuple(_amount(of_step[bound]) for bound in order)
        told = dict.fromkeys(of_step[bound].why for bound in order if _tells(of_step[bound]))
        rows.append((name, amounts, "\n".join(told)))
    return rows


_ALWAYS = ("percentile", "margin", "confidence", "minimum")


def _tells(step: traces.Step) -> bool:
    return not (step.name == "confidence" and step.bound == "target")


def _amount(step: traces.Step) -> str:
    text = traces.shown(step.resource, step.after)
    if text in ("∞", "-") or step.resource != MEMORY:
        return text
    return readable(step.resource, Quantity.from_int(step.after, "BinarySI"))
