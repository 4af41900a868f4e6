"""``vpa history``: what Prometheus knows of the past, what it costs to ask, and the same as usage lines."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table as Shown

from vpa import settings, times
from vpa.cli.app import TAKES_FLAGS, parse
from vpa.cli.moments import moment
from vpa.cli.objects import InputError, Objects, read
from vpa.cli.workloads import Workloads
from vpa.flags import Parsed, Table
from vpa.matching import TargetKey, target_key
from vpa.metrics.history.attribution import Workload
from vpa.metrics.history.batches import COMPLETE, HistoryBatch
from vpa.metrics.history.grids import history_grid
from vpa.metrics.history.loading import HistoryError, HistoryLoader, Past, Progress
from vpa.metrics.history.planning import CPU, MEMORY, Piece, Plan, Target, plan
from vpa.metrics.prometheus import names as naming
from vpa.metrics.prometheus.access import Access, AccessError
from vpa.metrics.prometheus.client import Client
from vpa.metrics.prometheus.names import Names
from vpa.metrics.settings import History
from vpa.objects import workloads
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.rules import Rules

TABLE = Table(settings.Behaviour, Rules, settings.Selection, History)

PATIENCE = 3
"""A Prometheus that does not answer is asked so often before the command gives up."""

ROLLOUTS = 2
"""A guess: each container had a predecessor within the time asked for."""


def register(app: typer.Typer) -> None:
    """Add the command to *app*."""
    app.command(
        "history",
        context_settings=TAKES_FLAGS,
        epilog="Flags of the recommender for Prometheus and history are accepted under their own names.",
    )(command)


def command(
    context: typer.Context,
    objects: Annotated[
        list[str],
        typer.Option(
            "--filename",
            "-f",
            help="VPAs, workloads and pods as kubectl prints them; - is standard input. "
            "Without VPAs the history of all workloads is meant.",
        ),
    ],
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Send nothing; show queries, points and bytes.")
    ] = False,
    now: Annotated[
        str, typer.Option("--now", help="End of the history (RFC 3339); default: the clock.")
    ] = "",
    output: Annotated[
        str,
        typer.Option("--output", "-o", help="table, json, or usage: lines for vpa recommend --usage."),
    ] = "table",
) -> None:
    """Show what Prometheus knows of the past of workloads, or what asking for it would cost."""
    if output not in ("table", "json", "usage") or (only_plan and output == "usage"):
        raise typer.BadParameter("use table, json or, without --plan, usage", param_hint="-o")
    parsed = parse(TABLE, context)
    if parsed.rest:
        raise typer.BadParameter(f"unexpected argument {parsed.rest[0]}")
    request = request_of(read(objects), parsed, moment(now) / times.SECOND if now else time.time())
    if only_plan:
        _show_plan(request, output)
    else:
        _load(request, output)


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    targets: tuple[Target, ...]
    past: Past
    plan: Plan
    names: Names
    history: History
    rules: Rules


def request_of(found: Objects, parsed: Parsed, now: float) -> Request:
    """What the objects and flags ask for; *parsed* is of a table with the groups of `TABLE`."""
    history = parsed.get(History)
    selection = parsed.get(settings.Selection)
    targets = tuple(one for one in targets_of(found) if selection.handles(one.namespace))
    if not targets:
        raise InputError("there is neither a VPA with a target nor a workload among the objects")
    grid = history_grid(
        now=now,
        length=int(history.history_length.seconds),
        step=int(history.history_resolution.seconds),
    )
    return Request(
        targets=targets,
        past=past_of(found),
        plan=plan(targets, grid),
        names=naming.from_flags(history, parsed.given),
        history=history,
        rules=parsed.get(Rules),
    )


def targets_of(found: Objects) -> list[Target]:
    """The targets of the VPAs among *found*, or all its workloads that nobody else controls."""
    controllers = Workloads(found)
    keys = {target_key(vpa) for vpa in found.of(VerticalPodAutoscaler)} - {None}
    if not keys:
        items = (item for item in found.items if item.kind in workloads.WELL_KNOWN)
        keys = {
            key
            for item in items
            if controllers.parent(key := TargetKey(item.namespace, item.kind, item.name)) is None
        }
    present: Counter[TargetKey | None] = Counter()
    for pod in found.of(Pod):
        present[controllers.topmost(pod)] += len(pod.spec.containers or ())
    targets = []
    for key in sorted(key for key in keys if key is not None):
        template = controllers.template(key)
        containers = len(template.spec.containers or ()) if template is not None else 1
        series = max(present[key], containers, 1) * ROLLOUTS
        targets.append(Target(namespace=key.namespace, kind=key.kind, name=key.name, series=series))
    return targets


def past_of(found: Objects) -> Past:
    """What the objects tell about pods of the present and owners of the past."""
    controllers = Workloads(found)
    live, started = {}, {}
    for pod in found.of(Pod):
        where = (pod.metadata.namespace, pod.metadata.name)
        key = controllers.topmost(pod)
        if key is not None:
            live[where] = (key.kind, key.name)
        if pod.status.phase == "Running" and pod.status.start_time is not None:
            started[where] = pod.status.start_time.timestamp()
    known = tuple(
        Workload(item.namespace, item.kind, item.name, item.object.spec.selector)
        for item in found.items
        if isinstance(item.object, workloads.Workload)
    ) + tuple(
        Workload(item.namespace, item.kind, item.name)
        for item in found.items
        if isinstance(item.object, workloads.CronJob | workloads.ReplicationController)
    )
    return Past(workloads=known, live=live, started=started)


def _show_plan(request: Request, output: str) -> None:
    pieces = list(request.plan.pieces())
    rows = [_row(piece, request) for piece in pieces]
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n")
        return
    shown = Shown("#", "from", "to", "points", "series", "bytes", "query", box=None)
    for number, row in enumerate(rows, 1):
        cells = (row["start"], row["end"], row["points"], row["series"], _size(row["bytes"]), row["query"])
        shown.add_row(str(number), *map(str, cells))
    console = Console()
    console.print(shown)
    samples = sum(piece.samples for piece in pieces)
    size = _size(sum(piece.expected_bytes for piece in pieces))
    console.print(f"{len(pieces)} queries, {samples} samples, about {size}, newest days first")
    for note in request.plan.notes():
        console.print(note)


def _row(piece: Piece, request: Request) -> dict[str, Any]:
    return {
        "query": piece.text(request.names, peaks=request.rules.history_memory_peaks),
        "start": times.text(piece.grid.start * times.SECOND),
        "end": times.text(piece.grid.end * times.SECOND),
        "step": piece.grid.step,
        "points": piece.grid.points,
        "series": piece.series,
        "samples": piece.samples,
        "bytes": piece.expected_bytes,
    }


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def load(request: Request) -> tuple[list[HistoryBatch], Progress]:
    """Load all with a progress bar; an `InputError` when it cannot be had."""
    try:
        return asyncio.run(loaded(request))
    except (AccessError, HistoryError) as error:
        raise InputError(str(error)) from None


def _load(request: Request, output: str) -> None:
    batches, progress = load(request)
    for note in notices(batches, progress):
        print(f"vpa: {note}", file=sys.stderr)
    if output == "usage":
        for line in usage_lines(batches):
            sys.stdout.buffer.write(line + b"\n")
    elif output == "json":
        rows = list(_found(batches))
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n")
    else:
        _show(batches)


async def loaded(request: Request) -> tuple[list[HistoryBatch], Progress]:
    """Load all; gives up when nobody answers for a while."""
    batches: list[HistoryBatch] = []
    seen = Progress()
    columns = (TextColumn("reading history"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    access = Access.from_flags(request.history)
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("history", total=None)

        def watch(progress: Progress) -> None:
            nonlocal seen
            seen = progress
            bar.update(task, completed=progress.done, total=progress.pieces)

        async def wait(seconds: float) -> None:
            if seen.tries >= PATIENCE:
                raise InputError(seen.problems[-1])
            await asyncio.sleep(seconds)

        async def deliver(batch: HistoryBatch) -> None:
            if batch.stage == COMPLETE:
                batches.append(batch)

        timeout = request.history.prometheus_query_timeout.seconds
        concurrency = request.history.prometheus_query_concurrency
        async with Client(access, timeout=timeout, concurrency=concurrency) as client:
            loader = HistoryLoader(
                client=client,
                names=request.names,
                rules=request.rules,
                concurrency=concurrency,
                sleep=wait,
                watch=watch,
            )
            grid = request.plan.grid
            progress = await loader.load(request.targets, grid, past=request.past, deliver=deliver)
    return batches, progress


def notices(batches: list[HistoryBatch], progress: Progress) -> Iterator[str]:
    """What the user should know of a load, one line each."""
    yield from progress.notes
    yield from progress.problems
    if progress.lost:
        yield f"{progress.lost} of {progress.pieces} queries were given up: what they ask for is missing"
    words = progress.counts.words()
    if words:
        yield f"points left out: {words}"
    if gaps := sum(batch.counts.gaps for batch in batches):
        yield f"{gaps} points are missing between the first and the last ones of their containers"
    doubts = progress.doubts
    for text, count in doubts.said.items():
        yield f"{count} answers were incomplete ({text}); of all such, {doubts.mended} were mended"
    if unknown := sum(batch.unknown_pods for batch in batches):
        yield f"{unknown} pods belong to none of the workloads asked for"


def _found(batches: Iterable[HistoryBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for (namespace, kind, name), one in sorted(batch.loaded().items()):
            hows = list(one.pods.values())
            yield {
                "namespace": namespace,
                "kind": kind,
                "name": name,
                "pods": len(hows),
                "knownBy": {how: hows.count(how) for how in sorted(set(hows))},
                "cpuPoints": one.points[CPU],
                "memoryPoints": one.points[MEMORY],
                "from": times.text(one.first) if one.pods else None,
                "to": times.text(one.last) if one.pods else None,
            }


def _show(batches: list[HistoryBatch]) -> None:
    shown = Shown(
        "namespace", "workload", "pods", "known by", "CPU points", "memory points", "from", "to", box=None
    )
    for row in _found(batches):
        known = ", ".join(f"{how} {count}" for how, count in row["knownBy"].items())
        cells = (row["namespace"], f"{row['kind']}/{row['name']}", row["pods"], known, row["cpuPoints"])
        shown.add_row(*map(str, (*cells, row["memoryPoints"], row["from"] or "-", row["to"] or "-")))
    Console().print(shown)


def usage_lines(batches: Iterable[HistoryBatch]) -> Iterator[bytes]:
    """The points as lines for ``vpa recommend --usage``, in the order of time."""
    rows: dict[tuple[int, int, int], dict[str, Any]] = {}
    for place, batch in enumerate(batches):
        for resource, points in ((CPU, batch.cpu), (MEMORY, batch.memory)):
            arrays = (points.times.tolist(), points.index.tolist(), points.values.tolist())
            for at, index, value in zip(*arrays, strict=True):
                key = (at, place, index)
                if key not in rows:
                    one = batch.containers[index]
                    rows[key] = {
                        "time": at // times.SECOND,
                        "namespace": one.namespace,
                        "pod": one.pod,
                        "container": one.name,
                        "owner": {"kind": one.kind, "name": one.controller},
                    }
                rows[key][resource] = value / 1000 if resource == CPU else value
    for key in sorted(rows):
        yield msgspec.json.encode(rows[key])
