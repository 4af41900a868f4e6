"""The HTTP server of ``/metrics``, ``/health-check`` and, when asked for, ``/debug/pprof/``."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from vpa.telemetry import exposition, profiling
from vpa.telemetry.health import Health

HEALTH_CHECK = "/health-check"

Guard = Callable[[str, str], Awaitable[HTTPStatus]]
"""Bearer token (or empty) and path → 200 when that path may be served, else the status of the refusal."""


class AddressError(Exception):
    """The address cannot be listened on."""


def new_registry() -> CollectorRegistry:
    """A registry with figures of the process itself: CPU, memory, open files, garbage collection."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


@asynccontextmanager
async def serving(
    *,
    address: str,
    registry: CollectorRegistry,
    health: Health,
    profile: bool = False,
    guard: Guard | None = None,
) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port. `AddressError` if *address* (``host:port``) is not free."""
    host, port = parse_address(address)
    app = application(registry=registry, health=health, profile=profile, guard=guard)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise AddressError(f"cannot listen on {address}: {error.strerror or error}") from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def application(
    *, registry: CollectorRegistry, health: Health, profile: bool = False, guard: Guard | None = None
) -> web.Application:
    """The routes; with a *guard* only ``/health-check`` is open to everybody."""

    async def metrics(request: web.Request) -> web.Response:
        response = web.Response(
            body=exposition.render(registry).encode(), headers={"Content-Type": exposition.CONTENT_TYPE}
        )
        response.enable_compression()
        return response

    async def health_check(request: web.Request) -> web.Response:
        error = health.error()
        return web.Response(text=error or "OK", status=500 if error else 200)

    app = web.Application(middlewares=[] if guard is None else [_guarded(guard)])
    app.router.add_get("/metrics", metrics)
    app.router.add_get(HEALTH_CHECK, health_check)
    if profile:
        app.router.add_get("/debug/pprof/", _index)
        app.router.add_get("/debug/pprof/cmdline", _cmdline)
        app.router.add_get("/debug/pprof/profile", _profile)
        app.router.add_get("/debug/pprof/tasks", _tasks)
    return app


def parse_address(address: str) -> tuple[str | None, int]:
    """Go's ``host:port``, ``:port`` (all interfaces, None) or ``[::1]:port``."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise AddressError(f'the address "{address}" must be host:port or :port')
    return host.strip("[]") or None, int(port)


def _guarded(guard: Guard) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != HEALTH_CHECK:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            status = await guard(token.strip() if scheme.lower() == "bearer" else "", request.path)
            if status is not HTTPStatus.OK:
                return web.Response(status=status, text=f"{status.phrase}\n")
        return await handler(request)

    return middleware


async def _index(request: web.Request) -> web.Response:
    return web.Response(
        text="profile?seconds=N  where the time goes: folded stacks for flamegraph.pl or speedscope.app\n"
        "tasks              every task and where it waits\n"
        "cmdline            the arguments of this process\n"
    )


async def _cmdline(request: web.Request) -> web.Response:
    return web.Response(text="\0".join(without_secrets(sys.argv)))


async def _profile(request: web.Request) -> web.Response:
    try:
        seconds = float(request.query.get("seconds", "30"))
    except ValueError:
        raise web.HTTPBadRequest(text="seconds must be a number\n") from None
    return web.Response(text=await profiling.profile(seconds=seconds))


async def _tasks(request: web.Request) -> web.Response:
    return web.Response(text=profiling.tasks())


def without_secrets(argv: Sequence[str]) -> list[str]:
    """The arguments with the values of passwords, tokens and headers blotted out."""
    shown = []
    hide = False
    for arg in argv:
        name, equals, _ = arg.partition("=")
        secret = name.startswith("--") and name.endswith(("password", "token", "headers"))
        shown.append("***" if hide else f"{name}=***" if secret and equals else arg)
        hide = secret and not equals
    return shown
