"""What the services have in common as processes, seen from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

START = """
    import asyncio, sys
    from recommender.settings import Settings
    from vpa.telemetry import programs

    programs.GRACE = 0.5
    settings = programs.settings_from(sys.argv[1:], program="recommender", bundle=Settings)

    async def service(stop):
        print("ready", flush=True)
"""


def start(body: str, *args: str) -> subprocess.Popen[str]:
    program = (
        textwrap.dedent(START) + textwrap.indent(textwrap.dedent(body), "    ") + "\nprograms.run(service)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def signalled(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    return process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_service_end_by_itself_with_status_0(number: signal.Signals) -> None:
    status, errors = signalled(start("await stop.wait()"), number)
    assert status == 0
    assert f"Received {number.name}, ending" in errors


def test_a_service_that_does_not_end_in_time_is_cut_off_with_status_1() -> None:
    status, errors = signalled(start("await asyncio.sleep(60)"), signal.SIGTERM)
    assert status == 1
    assert "the service did not end within 0.5 s after the signal and was cut off" in errors
    assert "Traceback" not in errors


def test_a_fatal_error_is_one_line_and_status_1() -> None:
    process = start('raise programs.FatalError("the port is taken")')
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("F")
    assert errors.splitlines()[-1].endswith("] the port is taken")
    assert "Traceback" not in errors


def test_all_flags_are_logged_at_start_and_notices_are_warnings() -> None:
    process = start("pass", "--password=hunter2", "--feature-gates=InPlaceOrRecreate=true")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "as Vertical Pod Autoscaler 1.8.0" in errors.splitlines()[0]
    assert 'FLAG: --recommender-interval="1m0s"' in errors
    assert "hunter2" not in errors
    warnings = [line for line in errors.splitlines() if line.startswith("W")]
    assert len(warnings) == 1
    assert "InPlaceOrRecreate no longer exists" in warnings[0]


def test_bad_arguments_are_one_sentence_and_status_2() -> None:
    process = start("pass", "--recommender-intervall=1m")
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, "")
    assert errors == (
        "recommender: unknown flag: --recommender-intervall (did you mean --recommender-interval?)\n"
        "Run recommender --help for all flags.\n"
    )


def test_help_is_printed_with_status_0() -> None:
    process = start("pass", "--help")
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert out.startswith("Usage of recommender:\n")
    assert "--target-cpu-percentile float" in out
