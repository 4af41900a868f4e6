"""Log lines on stderr with verbosities as Kubernetes' programs have them, as text or as JSON.

``log.info`` is verbosity 0, ``log.log(V2, …)`` is 2, ``log.debug`` is 5; ``-v=4`` shows all up to 4.
Facts go into ``extra`` and appear as ``key="value"`` at the end of the line:
``log.info("Wrote the status", extra={"vpa": "shop/cart"})``.
A text line begins with severity, month, day, time, process and place.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import time
from typing import Any, TextIO

from vpa.process import Logging

V1, V2, V3, V4 = (logging.INFO - verbosity for verbosity in (1, 2, 3, 4))

_DEBUG_VERBOSITY = 5

# What every record has; anything else came in by ``extra``.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_SEVERITIES = (
    (logging.CRITICAL, "FATAL"),
    (logging.ERROR, "ERROR"),
    (logging.WARNING, "WARNING"),
    (0, "INFO"),
)


def level(verbosity: int) -> int:
    """The level of ``logging`` from which lines are shown with ``-v=verbosity``."""
    if verbosity < _DEBUG_VERBOSITY:
        return logging.INFO - max(verbosity, 0)
    return max(logging.DEBUG - (verbosity - _DEBUG_VERBOSITY), 1)


def configure(settings: Logging, *, stream: TextIO | None = None) -> logging.Handler:
    """Send all logs of the process to *stream* (stderr) as *settings* say; returns the new handler."""
    handler = logging.StreamHandler(stream or sys.stderr)
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter(headers=not settings.skip_headers))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level(settings.v))
    for name, verbosity in _by_module(settings.vmodule):
        logging.getLogger(name).setLevel(level(verbosity))
    # What they report at INFO (each request, each connection) is detail to us.
    for chatty in ("aiohttp.access", "asyncio"):
        logging.getLogger(chatty).setLevel(max(level(settings.v), logging.WARNING))
    return handler


class TextFormatter(logging.Formatter):
    """``I1130 20:07:12.123456    4711 service.py:12] Wrote the status vpa="shop/cart"``."""

    def __init__(self, *, headers: bool = True) -> None:
        super().__init__()
        self._headers = headers

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback follows on lines of its own."""
        out = io.StringIO()
        if self._headers:
            when = time.localtime(record.created)
            micros = int(record.created % 1 * 1_000_000)
            out.write(
                f"{severity(record)[0]}{time.strftime('%m%d %H:%M:%S', when)}.{micros:06d} "
                f"{record.process or os.getpid():7d} {record.filename}:{record.lineno}] "
            )
        out.write(record.getMessage().replace("\n", "\\n"))
        for key, value in _extras(record).items():
            out.write(f" {key}={json.dumps(value if isinstance(value, int | float) else str(value))}")
        if record.exc_info:
            out.write("\n" + self.formatException(record.exc_info))
        return out.getvalue()


class JsonFormatter(logging.Formatter):
    """One object a line: ``ts`` (Unix seconds), ``severity``, ``v``, ``logger``, ``source``, ``msg``…"""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "ts": round(record.created, 6),
            "severity": severity(record),
            "v": _verbosity(record),
            "logger": record.name,
            "source": f"{record.filename}:{record.lineno}",
            "msg": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def severity(record: logging.LogRecord) -> str:
    """INFO, WARNING, ERROR or FATAL."""
    return next(name for least, name in _SEVERITIES if record.levelno >= least)


def _verbosity(record: logging.LogRecord) -> int:
    if record.levelno >= logging.INFO:
        return 0
    return min(logging.INFO - record.levelno, _DEBUG_VERBOSITY)


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _OWN}


def _by_module(text: str) -> list[tuple[str, int]]:
    """``name=N`` pairs; what has another form is left out, as a log line must not stop a service."""
    pairs = []
    for part in text.split(","):
        name, _, verbosity = part.strip().partition("=")
        if name and verbosity.isdecimal():
            pairs.append((name, int(verbosity)))
    return pairs
