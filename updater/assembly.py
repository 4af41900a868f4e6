"""Puts the updater together, runs it, and takes it down in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from updater.acting import Actor
from updater.deciding import Decider
from updater.features import Features
from updater.metrics import AllMetrics
from updater.mirrors import Mirrors
from updater.news import News
from updater.ownership import Ownership, PodIndex
from updater.publishing import Publisher
from updater.reporting import Reports
from updater.service import Updater
from updater.settings import Settings
from updater.surroundings import World
from updater.troubles import Troubles
from vpa.cluster.connection import Connection
from vpa.cluster.discovery import Discovery
from vpa.cluster.errors import ConfigurationError
from vpa.cluster.events import WARNING, Recorder, Reference
from vpa.cluster.leases import LeadershipLostError, utc_now
from vpa.cluster.owners import Owners
from vpa.cluster.reviews import Reviews
from vpa.cluster.scales import Scales
from vpa.cluster.startup import connect, leading
from vpa.cluster.targets import Targets
from vpa.cluster.workloads import Workloads
from vpa.disruptions import Memory
from vpa.durations import Duration
from vpa.telemetry.endpoints import AddressError, new_registry, serving
from vpa.telemetry.health import Health
from vpa.telemetry.programs import FatalError

log = logging.getLogger(__name__)

COMPONENT: Final = "vpa-updater"
MISSED_PASSES: Final = 5
"""Intervals without a finished pass after which the service is unhealthy."""
EVENTS_WAITING: Final = 10_000
"""A large update makes thousands of events, which are written at their own pace."""
LAST_CHANGES: Final = 5.0
"""Seconds in which what was sent is waited for at the end."""
LAST_EVENTS: Final = 1.5


@dataclass(kw_only=True, slots=True)
class Parts:
    """What runs."""

    updater: Updater
    mirrors: Mirrors
    publisher: Publisher
    recorder: Recorder
    metrics: AllMetrics


class Life:
    """From the start to the end of a process."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.working = False
        """Is there anything that should be finished when the end comes?"""


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run until *stop* is set. Raises `FatalError` when it cannot go on."""
    registry = new_registry()
    metrics = AllMetrics(registry)
    health = Health(Duration(MISSED_PASSES * settings.loop.updater_interval))
    try:
        async with contextlib.AsyncExitStack() as stack:
            connection = await stack.enter_async_context(await connect(settings.connection, COMPONENT))
            guard = Reviews(connection) if settings.serving.authenticate_metrics else None
            served = serving(
                address=settings.serving.address,
                registry=registry,
                health=health,
                profile=settings.serving.profiling,
                guard=guard,
            )
            await stack.enter_async_context(served)
            life = Life()
            await _until(stop, life, _lead(settings, connection, life, metrics, health))
    except AddressError as error:
        raise FatalError(str(error)) from error
    except ConfigurationError as error:
        raise FatalError(f"the API server cannot be used: {error}") from error
    except LeadershipLostError as error:
        raise FatalError(f"lost master: {error}") from error


async def _lead(
    settings: Settings, connection: Connection, life: Life, metrics: AllMetrics, health: Health
) -> None:
    """Work, while holding the lease if that is asked for."""
    async with leading(connection, settings.lease):
        await _work(settings, connection, life, metrics, health)


async def _work(
    settings: Settings, connection: Connection, life: Life, metrics: AllMetrics, health: Health
) -> None:
    parts = assemble(settings, connection, metrics=metrics, health=health, stopping=life.stopping)
    async with running(parts):
        gc.collect()
        gc.freeze()  # what was read at the start stays, and need not be searched again and again
        health.start()
        log.info("Updating", extra={"vpas": len(parts.mirrors.vpas), "pods": len(parts.mirrors.pods)})
        life.working = True
        await parts.updater.run()
        await parts.recorder.flush(LAST_EVENTS)


@contextlib.asynccontextmanager
async def running(parts: Parts) -> AsyncIterator[None]:
    """Keep the copies, and all that goes on beside the passes, while the block runs."""
    async with parts.mirrors.running():
        await parts.updater.begin()
        async with _background(
            [
                parts.publisher.run(),
                parts.recorder.run(),
                parts.updater.look_out(),
                parts.updater.act_on_deaths(),
            ]
        ):
            yield


def assemble(
    settings: Settings,
    connection: Connection,
    *,
    metrics: AllMetrics,
    health: Health,
    stopping: asyncio.Event,
    now: Callable[[], datetime] = utc_now,
) -> Parts:
    """All parts, joined."""
    rules = settings.rules
    recorder = Recorder(connection, component=COMPONENT, queue=EVENTS_WAITING)
    troubles = Troubles(_own_events(recorder))
    mirrors = Mirrors(
        connection,
        namespace=settings.selection.vpa_object_namespace,
        rules=rules,
        updating=settings.updating,
        troubles=troubles,
    )
    index = PodIndex(mirrors)
    scales = Scales(connection, Discovery(connection))
    workloads = Workloads(mirrors.workloads, connection=connection, by_group=rules.kinds_by_group)
    owners = Owners(workloads, scales, parents_need_selectors=rules.parents_need_selectors)
    ownership = Ownership(
        mirrors,
        index,
        owners=owners,
        targets=Targets(workloads, scales, owners, selectors_of_children=rules.parents_need_selectors),
        rules=rules,
        behaviour=settings.behaviour,
        selection=settings.selection,
    )
    features = Features(connection)
    lease_namespace = settings.loop.admission_controller_status_lease_namespace
    world = World(
        settings,
        connection,
        mirrors,
        index,
        features,
        troubles,
        lease_namespace=lease_namespace or os.environ.get("NAMESPACE") or "kube-system",
    )
    memory = Memory()
    publisher = Publisher(connection, mirrors, recorder, metrics.own, troubles, now=now)
    reports = Reports(settings, recorder, publisher, metrics, memory, now=now)
    actor = Actor(
        settings,
        connection,
        mirrors,
        index,
        features,
        memory,
        reports,
        now=now,
        stopping=stopping,
    )
    updater = Updater(
        settings,
        mirrors=mirrors,
        ownership=ownership,
        news=News(mirrors),
        world=world,
        features=features,
        decider=Decider(settings, world, memory, now=now),
        actor=actor,
        reports=reports,
        memory=memory,
        metrics=metrics,
        troubles=troubles,
        health=health,
        now=now,
        stopping=stopping,
    )
    return Parts(updater=updater, mirrors=mirrors, publisher=publisher, recorder=recorder, metrics=metrics)


def _own_events(recorder: Recorder) -> Callable[[str], None]:
    """Events about our own pod, where we run in one."""
    namespace, name = os.environ.get("NAMESPACE"), os.environ.get("HOSTNAME")
    if not namespace or not name:
        return lambda text: None
    about = Reference("v1", "Pod", namespace, name, "")
    return lambda text: recorder.emit(about, "Impaired", text, type=WARNING)


@contextlib.asynccontextmanager
async def _background(work: list[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run *work* beside the block; what fails there fails the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        yield
        for task in tasks:
            task.cancel()


async def _until(stop: asyncio.Event, life: Life, work: Coroutine[Any, Any, None]) -> None:
    """Run *work*; when *stop* is set let it finish what it has sent, then cancel it."""
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        life.stopping.set()
        if not task.done() and life.working:
            await asyncio.wait((task,), timeout=LAST_CHANGES)
        if task.done():
            await task
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
