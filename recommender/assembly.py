"""Puts the recommender together, runs it, and takes it down in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from recommender import history, sources
from recommender.decisions import OWNED, UPSTREAM_OWNED
from recommender.engine import Engine
from recommender.history import HistoryReader
from recommender.lifetimes import Known
from recommender.loading import Loader
from recommender.metrics import AllMetrics
from recommender.mirrors import Mirrors
from recommender.news import News
from recommender.placement import Placement
from recommender.publisher import Publisher
from recommender.saving import Saver
from recommender.service import Clocks, Recommender
from recommender.settings import Settings
from recommender.upkeep import Upkeep
from vpa.cluster.connection import Connection
from vpa.cluster.discovery import Discovery
from vpa.cluster.errors import ConfigurationError
from vpa.cluster.events import WARNING, Recorder, Reference
from vpa.cluster.leases import LeadershipLostError
from vpa.cluster.owners import Owners
from vpa.cluster.resources import VERTICAL_AUTOSCALERS
from vpa.cluster.reviews import Reviews
from vpa.cluster.scales import Scales
from vpa.cluster.startup import connect, leading
from vpa.cluster.targets import Targets
from vpa.cluster.workloads import Workloads
from vpa.durations import SECOND, Duration
from vpa.matching import TargetKey
from vpa.metrics.prometheus.access import AccessError
from vpa.metrics.prometheus.client import Client
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.telemetry.endpoints import AddressError, new_registry, serving
from vpa.telemetry.health import Health
from vpa.telemetry.programs import FatalError

log = logging.getLogger(__name__)

COMPONENT = "vpa-recommender"
MISSED_TICKS = 5
"""Ticks without a sign of life after which the service is unhealthy."""
LAST_SAVES = 7.0
"""Seconds for saving all checkpoints at the end, out of the ten until the process is killed."""
LAST_WRITERS = 50
"""Checkpoints that are written at the same time then: other clients' limits are not ours any more."""


@dataclass(kw_only=True, slots=True)
class Parts:
    """What runs."""

    recommender: Recommender
    mirrors: Mirrors
    news: News
    publisher: Publisher
    loader: Loader
    history: HistoryReader
    saver: Saver
    recorder: Recorder
    engine: Engine


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run until *stop* is set. Raises `FatalError` when it cannot go on."""
    registry = new_registry()
    metrics = AllMetrics(registry)
    health = Health(Duration(MISSED_TICKS * settings.loop.recommender_interval))
    try:
        async with contextlib.AsyncExitStack() as stack:
            connection = await stack.enter_async_context(await connect(settings.connection, COMPONENT))
            served = serving(
                address=settings.serving.address,
                registry=registry,
                health=health,
                profile=settings.serving.profiling,
                guard=Reviews(connection) if settings.serving.authenticate_metrics else None,
            )
            await stack.enter_async_context(served)
            await _until(stop, _lead(settings, connection, stop, metrics, health))
    except (AddressError, AccessError) as error:
        raise FatalError(str(error)) from error
    except ConfigurationError as error:
        raise FatalError(f"the API server cannot be used: {error}") from error
    except LeadershipLostError as error:
        raise FatalError(f"lost master: {error}") from error


async def _lead(
    settings: Settings,
    connection: Connection,
    stop: asyncio.Event,
    metrics: AllMetrics,
    health: Health,
) -> None:
    """Work, while holding the lease if that is asked for."""
    async with leading(connection, settings.lease):
        await _work(settings, connection, stop, metrics, health)


async def _work(
    settings: Settings,
    connection: Connection,
    stop: asyncio.Event,
    metrics: AllMetrics,
    health: Health,
) -> None:
    clocks = Clocks()
    mirrors = Mirrors(connection, namespace=settings.selection.vpa_object_namespace, rules=settings.rules)
    engine = Engine(
        settings,
        metrics=metrics,
        ranges=mirrors.ranges,
        controller=lambda target: _known(mirrors, target),
    )
    opened = sources.opened(
        settings, connection, engine.autoscalers, metrics.loop, lambda: clocks.now() / SECOND
    )
    async with opened as source, history.opened(settings, metrics.loop) as prometheus:
        parts = assemble(settings, connection, mirrors, engine, source, prometheus, clocks)
        try:
            await _run(settings, parts, health)
        finally:
            parts.recommender.give_up()
            if settings.writes_checkpoints and stop.is_set():
                await _save_all(settings, connection, parts.saver)


def assemble(
    settings: Settings,
    connection: Connection,
    mirrors: Mirrors,
    engine: Engine,
    source: sources.Source,
    prometheus: Client | None,
    clocks: Clocks,
) -> Parts:
    """All parts, joined."""
    rules = settings.rules
    tracker, autoscalers = engine.tracker, engine.autoscalers
    recorder = Recorder(connection, component=COMPONENT)

    def emit(vpa: VerticalPodAutoscaler, reason: str, message: str, kind: str) -> None:
        recorder.emit(Reference.of(VERTICAL_AUTOSCALERS, vpa.metadata), reason, message, type=kind)

    def report(vpa: VerticalPodAutoscaler, reason: str, message: str) -> None:
        emit(vpa, reason, message, WARNING)

    scales = Scales(connection, Discovery(connection))
    workloads = Workloads(mirrors.workloads, connection=connection, by_group=rules.kinds_by_group)
    owners = Owners(workloads, scales, parents_need_selectors=rules.parents_need_selectors)
    placement = Placement(
        tracker,
        autoscalers,
        owners,
        rules=rules,
        memory_saver=settings.loop.memory_saver,
        node_labels=mirrors.node_labels,
        nodes_known=lambda: mirrors.nodes_known,
        now=clocks.now,
    )
    loader = Loader(
        connection,
        tracker,
        autoscalers,
        rules=rules,
        namespace=settings.selection.vpa_object_namespace,
        now=clocks.now,
        report=report,
    )
    saver = Saver(
        connection,
        tracker,
        autoscalers,
        loader.stored,
        rules=rules,
        workers=settings.loop.update_worker_count,
        timeout=settings.loop.checkpoints_timeout / SECOND,
        clock=clocks.monotonic,
        now=clocks.now,
    )
    publisher = Publisher(
        connection,
        lambda key: autoscalers.served[key].vpa if key in autoscalers.served else None,
        owned=OWNED if rules.more_conditions else UPSTREAM_OWNED,
        workers=settings.loop.update_worker_count,
        rules=rules,
        clock=clocks.monotonic,
        now=lambda: datetime.fromtimestamp(clocks.now() / SECOND, UTC),
        foreign=lambda vpa: report(vpa, "OtherWriter", _OTHER_WRITER.format(settings.loop.recommender_name)),
    )
    reader = HistoryReader(
        settings, prometheus, engine, mirrors, emit=emit, now=clocks.now, clock=clocks.monotonic
    )
    news = News(
        mirrors,
        engine,
        placement,
        loader=loader,
        saver=saver,
        publisher=publisher,
        history=reader,
        with_checkpoints=settings.writes_checkpoints,
    )
    upkeep = Upkeep(
        settings, connection, mirrors, engine, loader=loader, saver=saver, clock=clocks.monotonic()
    )
    targets = Targets(workloads, scales, owners, selectors_of_children=rules.parents_need_selectors)
    recommender = Recommender(
        settings,
        connection=connection,
        mirrors=mirrors,
        placement=placement,
        targets=targets,
        engine=engine,
        news=news,
        upkeep=upkeep,
        history=reader,
        saver=saver,
        publisher=publisher,
        recorder=recorder,
        source=source,
        clocks=clocks,
    )
    return Parts(
        recommender=recommender,
        mirrors=mirrors,
        news=news,
        publisher=publisher,
        loader=loader,
        history=reader,
        saver=saver,
        recorder=recorder,
        engine=engine,
    )


_OTHER_WRITER = (
    "Somebody else wrote this recommendation or its conditions. If a second recommender with the name {} "
    "runs, stop it or give both --leader-elect; until then this status is written once a minute at most"
)


async def _run(settings: Settings, parts: Parts, health: Health) -> None:
    async with parts.mirrors.running(), _background(_tasks(settings, parts)):
        parts.news.begin()
        gc.collect()
        gc.freeze()  # what was read at the start stays, and need not be searched again and again
        health.start()
        log.info(
            "Recommending",
            extra={"vpas": len(parts.engine.autoscalers.served), "pods": len(parts.mirrors.pods)},
        )
        await _tick_for_ever(settings, parts, health)


def _tasks(settings: Settings, parts: Parts) -> list[Coroutine[Any, Any, None]]:
    tasks = [parts.publisher.run(), parts.recorder.run(), parts.recommender.act_on_kills()]
    tasks.append(parts.history.run(parts.recommender.show))
    if settings.writes_checkpoints and settings.rules.spread_checkpoints:
        tasks.append(parts.saver.run())
    return tasks


@contextlib.asynccontextmanager
async def _background(work: list[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run *work* beside the block; what fails there fails the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        yield
        for task in tasks:
            task.cancel()


async def _tick_for_ever(settings: Settings, parts: Parts, health: Health) -> None:
    interval = settings.loop.recommender_interval / SECOND
    loop = asyncio.get_running_loop()
    due = loop.time() + (0.0 if settings.rules.first_tick_at_once else interval)
    while True:
        await asyncio.sleep(max(0.0, due - loop.time()))
        started = loop.time()
        try:
            await parts.recommender.tick()
        except Exception:
            log.exception("A tick failed; the next one comes as usual")
        else:
            health.alive()
        _figures(parts)
        took = loop.time() - started
        if took > interval:
            log.warning("A tick took %.1f s, longer than --recommender-interval; some are left out", took)
        due = max(due + interval, loop.time())


def _figures(parts: Parts) -> None:
    """What the writers counted, as metrics."""
    own, engine = parts.engine.own, parts.engine
    for counter, results in (
        (own.status_writes, parts.publisher.results),
        (own.checkpoint_writes, parts.saver.results),
        (own.checkpoint_loads, parts.loader.results),
    ):
        for result, count in results.items():
            counter.inc(count - counter.value(result=result), result=result)
    sources_read = parts.mirrors.records.sources
    for source, count in sources_read.items():
        engine.metrics.resources_read.inc(
            count - engine.metrics.resources_read.value(source=source), source=source
        )


async def _save_all(settings: Settings, connection: Connection, saver: Saver) -> None:
    """The last thing: checkpoints of all that has changed since they were written."""
    async with await connect(settings.connection, COMPONENT, limited=False) as unlimited:
        unlimited.fence = connection.fence
        left = await saver.save_all(unlimited, concurrency=LAST_WRITERS, within=LAST_SAVES)
    if left:
        log.warning(
            "%d checkpoints stay as they were written up to ten minutes ago: saving all took longer than "
            "%g s",
            left,
            LAST_SAVES,
        )
    else:
        log.info("Saved all checkpoints", extra=dict(saver.results))


def _known(mirrors: Mirrors, target: TargetKey) -> Known:
    mirror = mirrors.workloads.get(target.kind)
    if mirror is None or not mirror.synced:
        return Known(gone=False, template=None)
    record = mirror.get((target.namespace, target.name))
    if record is None:
        return Known(gone=True, template=None)
    containers = record.regular_containers
    return Known(gone=False, template=None if containers is None else frozenset(containers))


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run *work*, and cancel it when *stop* is set."""
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            return
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
