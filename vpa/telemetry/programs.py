"""What the three services have in common as processes: arguments, logs, signals, exit status.

Exit status: 0 after SIGTERM or ``--help``, 1 when the service cannot go on, 2 for unusable arguments.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import Any, NoReturn, TypeVar

from vpa.flags import FlagError, HelpRequested, Table
from vpa.process import Logging
from vpa.telemetry import logs

UPSTREAM_VERSION = "1.8.0"
"""The release of upstream whose behaviour ours is compared with."""

GRACE = 9.0
"""Seconds after SIGTERM in which a service must have ended by itself."""

log = logging.getLogger(__name__)

B = TypeVar("B")


class FatalError(Exception):
    """The service cannot go on; the text is one sentence that says what to do."""


def settings_from(args: Sequence[str], *, program: str, bundle: type[B]) -> B:
    """The settings that *args* give, with logs set up; ends the process for ``--help`` and bad arguments."""
    table = Table.of(bundle)
    try:
        parsed = table.parse(args)
    except HelpRequested:
        sys.stdout.write(f"Usage of {program}:\n\n{table.help()}\n")
        raise SystemExit(0) from None
    except FlagError as error:
        sys.stderr.write(f"{program}: {error}\nRun {program} --help for all flags.\n")
        raise SystemExit(2) from None
    logs.configure(parsed.get(Logging))
    log.info("%s %s, as Vertical Pod Autoscaler %s", program, version("vpa"), UPSTREAM_VERSION)
    for line in parsed.lines():
        log.log(logs.V2, line)
    for notice in parsed.notices():
        log.warning(notice)
    return parsed.fill(bundle)


def run(service: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> NoReturn:
    """Run *service* until it ends; SIGTERM and SIGINT set the event it is given and start its grace time."""
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_supervised(service))
    except FatalError as error:
        log.critical("%s", error)
        raise SystemExit(1) from None
    raise SystemExit(0)


async def _supervised(service: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _asked_to_stop, number, stop)
    main = asyncio.create_task(service(stop), name="service")
    stopping = asyncio.create_task(stop.wait(), name="waiting for a signal")
    try:
        await asyncio.wait((main, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not main.done():
            await asyncio.wait((main,), timeout=GRACE)
        if not main.done():
            main.cancel()
            raise FatalError(f"the service did not end within {GRACE:g} s after the signal and was cut off")
        await main
    finally:
        stopping.cancel()


def _asked_to_stop(number: int, stop: asyncio.Event) -> None:
    log.info("Received %s, ending", signal.Signals(number).name)
    stop.set()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
