"""Log lines that a person and a machine can read."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from vpa.process import Logging
from vpa.telemetry import logs

log = logging.getLogger("example")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    for name in ("example", "aiohttp.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def written(settings: Logging) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(settings, stream=stream)
    return stream


def test_a_text_line_has_severity_time_process_place_message_and_facts() -> None:
    stream = written(Logging())
    log.info("Wrote the status of %d VPAs", 3, extra={"vpa": "shop/cart", "seconds": 0.5, "said": 'a "b"'})
    assert re.fullmatch(
        r"I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ test_telemetry_logs\.py:\d+\] "
        r'Wrote the status of 3 VPAs vpa="shop/cart" seconds=0\.5 said="a \\"b\\""\n',
        stream.getvalue(),
    )


@pytest.mark.parametrize(
    ("level", "letter"),
    [
        (logging.INFO, "I"),
        (logs.V4, "I"),
        (logging.WARNING, "W"),
        (logging.ERROR, "E"),
        (logging.CRITICAL, "F"),
    ],
)
def test_the_first_letter_is_the_severity(level: int, letter: str) -> None:
    stream = written(Logging())
    log.log(level, "x")
    assert stream.getvalue()[0] == letter


@pytest.mark.parametrize(
    ("verbosity", "shown"),
    [(0, "I"), (-1, "I"), (1, "I1"), (2, "I12"), (3, "I123"), (4, "I1234"), (5, "I1234D"), (9, "I1234D")],
)
def test_verbosity_decides_what_is_shown(verbosity: int, shown: str) -> None:
    stream = written(Logging(v=verbosity, skip_headers=True))
    log.info("I")
    for level, text in ((logs.V1, "1"), (logs.V2, "2"), (logs.V3, "3"), (logs.V4, "4"), (logging.DEBUG, "D")):
        log.log(level, text)
    assert stream.getvalue().replace("\n", "") == shown


def test_one_module_may_be_more_talkative() -> None:
    stream = written(Logging(v=0, vmodule="example=2, nonsense, other=x", skip_headers=True))
    log.log(logs.V2, "seen")
    logging.getLogger("another").log(logs.V2, "unseen")
    assert stream.getvalue() == "seen\n"


def test_each_request_of_the_http_library_is_not_a_line() -> None:
    stream = written(Logging())
    logging.getLogger("aiohttp.access").info("GET /metrics")
    assert stream.getvalue() == ""


def test_a_message_is_one_line_and_a_traceback_follows() -> None:
    stream = written(Logging(skip_headers=True))
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("two\nlines")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "two\\nlines"
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "KeyError: 'x'"


def test_a_json_line_is_one_object_with_the_facts_as_keys() -> None:
    stream = written(Logging(log_format="json", v=5))
    log.log(logs.V2, "Skipped %s", "it", extra={"vpa": "shop/cart"})
    log.debug("detail")
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("Failed")
    skipped, detail, failed = (json.loads(line) for line in stream.getvalue().splitlines())
    assert skipped.pop("ts") > 1.7e9
    assert skipped.pop("source").startswith("test_telemetry_logs.py:")
    assert skipped == {
        "severity": "INFO",
        "v": 2,
        "logger": "example",
        "msg": "Skipped it",
        "vpa": "shop/cart",
    }
    assert detail["v"] == 5
    assert failed["severity"] == "ERROR"
    assert failed["v"] == 0
    assert failed["traceback"].endswith("KeyError: 'x'")


def test_no_fact_of_a_line_has_a_name_that_the_library_keeps_for_itself() -> None:
    """`logging` raises a KeyError for these, in the middle of whatever was to be told."""
    reserved = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    facts = [
        (f"{path.name}:{call.lineno}", key.value)
        for folder in ("vpa", "recommender", "updater", "admission")
        for path in (ROOT / folder).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "extra"
        for given in ast.walk(keyword.value)
        if isinstance(given, ast.Dict)
        for key in given.keys
        if isinstance(key, ast.Constant)
    ]
    assert len(facts) > 30
    assert [where for where, name in facts if name in reserved] == []
