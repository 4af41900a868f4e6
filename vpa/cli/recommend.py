"""``vpa recommend``: the status that a recommender would write, from objects and a file of usage."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from vpa import settings, statuses, times
from vpa.cli import history, past, reports
from vpa.cli.app import TAKES_FLAGS, parse
from vpa.cli.live import read_cluster
from vpa.cli.moments import moment
from vpa.cli.objects import InputError, Objects, read
from vpa.cli.scenes import Options, Scene
from vpa.cli.usagefiles import Feeder
from vpa.flags import Group, Table, flag
from vpa.metrics.history.batches import HistoryBatch
from vpa.metrics.settings import History
from vpa.objects.autoscalers import Status
from vpa.rules import Rules


@dataclass(frozen=True, kw_only=True, slots=True)
class Naming(Group):
    """Which recommender this is."""

    recommender_name: str = flag(settings.DEFAULT_RECOMMENDER, "Handle VPAs that name this recommender.")


TABLE = Table(
    settings.Behaviour,
    Rules,
    Naming,
    settings.Selection,
    settings.Estimation,
    settings.Aggregation,
    History,
)


def register(app: typer.Typer) -> None:
    """Add the command to *app*."""
    app.command(
        "recommend",
        context_settings=TAKES_FLAGS,
        epilog="Flags of the recommender that change a number are accepted under their own names.",
    )(command)


def command(
    context: typer.Context,
    objects: Annotated[
        list[str] | None,
        typer.Option(
            "--filename",
            "-f",
            help="Objects as kubectl prints them; - is standard input. "
            "With --prometheus and without -f the cluster is read.",
        ),
    ] = None,
    usage: Annotated[
        list[str] | None, typer.Option("--usage", help="Usage, one JSON object a line; - is standard input.")
    ] = None,
    prometheus: Annotated[
        str,
        typer.Option(
            "--prometheus",
            help="URL of a Prometheus to read history from. Without a VPA all workloads are shown.",
        ),
    ] = "",
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Namespace of the cluster to read; default: all."),
    ] = None,
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", help="How to reach the cluster.")] = "",
    kube_context: Annotated[str, typer.Option("--context", help="Context of the kubeconfig.")] = "",
    now: Annotated[str, typer.Option("--now", help="Time of the tick; default: the last sample.")] = "",
    output: Annotated[str, typer.Option("--output", "-o", help="table, yaml, json or csv.")] = "table",
    explain: Annotated[bool, typer.Option("--explain", help="Show the steps behind each number.")] = False,
) -> None:
    """Show what a recommender would write into the status of each VPA."""
    if output not in ("table", "yaml", "json", "csv"):
        raise typer.BadParameter("use table, yaml or json, or csv", param_hint="-o")
    if prometheus and usage:
        raise typer.BadParameter("give either --usage or --prometheus", param_hint="--usage")
    if prometheus:
        context.args.append(f"--prometheus-address={prometheus}")
    parsed = parse(TABLE, context)
    options = Options(
        behaviour=parsed.get(settings.Behaviour),
        rules=parsed.get(Rules),
        selection=parsed.get(settings.Selection),
        estimation=parsed.get(settings.Estimation),
        aggregation=parsed.get(settings.Aggregation),
        recommender_name=parsed.get(Naming).recommender_name,
    )
    at = moment(now) if now else None
    if objects or parsed.rest:
        found = read([*(objects or ()), *parsed.rest])
    elif prometheus:
        reading = read_cluster(kubeconfig=kubeconfig, context=kube_context, namespaces=namespace or ())
        found = asyncio.run(reading)
    else:
        raise typer.BadParameter("give files of objects, or --prometheus", param_hint="-f")
    batches: list[HistoryBatch] = []
    if prometheus:
        found = past.with_autoscalers(found.within(namespace or ()))
        end = time.time() if at is None else at / times.SECOND
        batches, progress = history.load(history.request_of(found, parsed, end))
        for notice in history.notices(batches, progress):
            print(f"vpa: {notice}", file=sys.stderr)
    scene, result = recommend(found, usage or [], batches, now=at, options=options)
    for notice in _notices(found, scene, result):
        print(f"vpa: {notice}", file=sys.stderr)
    if output == "table":
        reports.show(scene, result.statuses, Console(), explain=explain)
    elif output == "csv":
        reports.write_csv(scene, result.statuses, sys.stdout)
    else:
        _print(output, found, result.statuses)
        if explain:
            reports.show(scene, result.statuses, Console(stderr=True), explain=True)


@dataclass(frozen=True)
class Result:
    """What one tick gave: VPA (namespace, name) → status, and what became of the usage lines."""

    statuses: dict[tuple[str, str], Status]
    lines: int
    rejected: int


def recommend(
    objects: Objects,
    usage: list[str],
    batches: Iterable[HistoryBatch] = (),
    *,
    now: int | None = None,
    options: Options | None = None,
) -> tuple[Scene, Result]:
    """Feed history and all usage files in order, then make one tick at *now* (nanoseconds; default: the last
    sample)."""
    scene = Scene(objects, options or Options())
    newest = past.feed(scene, batches)
    with _progress(usage) as advance:
        feeder = Feeder(scene.usage, scene.locate, advance)
        for path in usage:
            feeder.feed(path)
    newest = max((one for one in (newest, feeder.newest) if one is not None), default=None)
    if now is None:
        now = time.time_ns() if newest is None else newest
    run = scene.run()
    written = times.to_datetime(now)
    found = {entry.key: scene.status(entry, run, written) for entry in scene.entries}
    return scene, Result(found, feeder.lines, feeder.rejected)


def _notices(objects: Objects, scene: Scene, result: Result) -> Iterator[str]:
    yield from scene.notices
    if objects.ignored:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(objects.ignored.items()))
        yield f"objects of other kinds are left out: {kinds}"
    if scene.unknown:
        names = list(scene.unknown)
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        yield f"usage of unknown pods is left out: {', '.join(names[:5])}{more}"
    if result.rejected:
        yield f"{result.rejected} samples are rejected: negative, out of order or too old"


def _print(output: str, objects: Objects, written: dict[tuple[str, str], Status]) -> None:
    items: list[dict[str, Any]] = []
    for item in objects.of_kind("VerticalPodAutoscaler"):
        status = written.get((item.namespace, item.name))
        items.append(item.data if status is None else {**item.data, "status": statuses.as_data(status)})
    listed = {"apiVersion": "v1", "kind": "List", "items": items, "metadata": {"resourceVersion": ""}}
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(listed), indent=4).decode() + "\n")
    else:
        yaml.dump(listed, sys.stdout, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)


@contextmanager
def _progress(usage: list[str]) -> Iterator[Callable[[int], None]]:
    """A progress bar on the terminal, from the moment that feeding takes over a second."""
    total = sum(Path(path).stat().st_size for path in usage if path != "-" and Path(path).is_file())
    columns = (TextColumn("feeding usage"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("usage", total=total or None)
    start = time.monotonic()

    def advance(size: int) -> None:
        bar.advance(task, size)
        if time.monotonic() - start > 1 and not bar.live.is_started:
            bar.start()

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()


__all__ = ["InputError", "recommend", "register"]
