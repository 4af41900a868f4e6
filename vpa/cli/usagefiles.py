"""Usage from files: one JSON object a line, a million lines in seconds.

Lines are decoded in blocks straight into small structs and go into the banks as arrays, in file order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from vpa import times
from vpa.cli.objects import InputError
from vpa.numerics import Floats, Ints
from vpa.quantities import Quantity, QuantityError, cpu_millis, memory_bytes
from vpa.usage import OOMOutcome, Usage

MISSING = -(2**62)
"""Stands for an absent amount; a negative amount that a line really says is less far down."""

_BLOCK = 8 << 20  # bytes decoded at once
_LARGEST_EXACT = 2.0**53


class OOM(msgspec.Struct, gc=False):
    """The container was OOM-killed; the memory request, or use, at that moment."""

    memory: float | str


class Owner(msgspec.Struct, gc=False):
    """The controller of a pod of the past."""

    kind: str
    name: str


class Line(msgspec.Struct, gc=False):
    """One line of a usage file."""

    time: float | str
    pod: str
    container: str
    namespace: str = "default"
    cpu: float | str | None = None
    memory: float | str | None = None
    oom: OOM | None = None
    labels: dict[str, str] | None = None
    owner: Owner | None = None


Where = tuple[int, ...]
"""The instances that one pod's container feeds, usually one; none for a container that is left out."""

Locate = Callable[[Line], Where]
"""Finds a line's instances; asked once for each container of a pod."""


class Feeder:
    """Feeds usage files into the state of all rows and counts what became of the lines."""

    def __init__(self, usage: Usage, locate: Locate, progress: Callable[[int], None]) -> None:
        self.usage = usage
        self.lines = 0
        self.rejected = 0
        self.newest: int | None = None
        self._locate = locate
        self._progress = progress
        self._known: dict[tuple[str, str, str], Where] = {}

    def feed(self, path: str) -> None:
        """Feed one file (``-`` is standard input); an :class:`InputError` names file and line."""
        try:
            with sys.stdin.buffer if path == "-" else Path(path).open("rb") as file:
                for number, block in _blocks(file):
                    self._feed_block(decode(block, path, number), path, number)
                    self._progress(len(block))
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error

    def _feed_block(self, lines: list[Line], path: str, number: int) -> None:
        where = [self._instances(line) for line in lines]
        self.lines += len(lines)
        try:
            moments = _times([line.time for line in lines])
            cpu = _amounts([line.cpu for line in lines], 1000, cpu_millis)
            memory = _amounts([line.memory for line in lines], 1, memory_bytes)
            _amounts([line.oom.memory for line in lines if line.oom is not None], 1, memory_bytes)
        except (ValueError, QuantityError):
            raise _first_error(lines, path, number) from None
        if len(lines):
            newest = int(moments.max())
            self.newest = newest if self.newest is None else max(self.newest, newest)
        for layer in range(max(map(len, where), default=0)):
            instances = np.array([w[layer] if layer < len(w) else -1 for w in where], dtype=np.int64)
            self._feed_arrays(lines, instances, moments, cpu, memory)

    def _instances(self, line: Line) -> Where:
        key = (line.namespace, line.pod, line.container)
        found = self._known.get(key)
        if found is None or line.labels is not None or line.owner is not None:
            found = self._known[key] = self._locate(line)
        return found

    def _feed_arrays(
        self, lines: list[Line], instances: Ints, moments: Ints, cpu: Ints, memory: Ints
    ) -> None:
        known = instances >= 0
        self._add(self.usage.add_cpu, known & (cpu != MISSING), instances, moments, cpu)
        start = 0
        for at in [i for i, line in enumerate(lines) if line.oom is not None and known[i]]:
            self._add_memory(slice(start, at + 1), known, instances, moments, memory)
            start = at + 1
            oom = lines[at].oom
            assert oom is not None
            amount = int(_amounts([oom.memory], 1, memory_bytes)[0])
            outcome = self.usage.record_oom(int(instances[at]), int(moments[at]), amount)
            self.rejected += outcome is not OOMOutcome.RECORDED
        self._add_memory(slice(start, None), known, instances, moments, memory)

    def _add_memory(self, part: slice, known: Any, instances: Ints, moments: Ints, memory: Ints) -> None:
        fed = known[part] & (memory[part] != MISSING)
        self._add(self.usage.add_memory, fed, instances[part], moments[part], memory[part])

    def _add(self, add: Any, fed: Any, instances: Ints, moments: Ints, amounts: Ints) -> None:
        if fed.any():
            accepted = add(instances[fed], moments[fed], amounts[fed])
            self.rejected += int((~accepted).sum())


def decode(block: bytes, path: str, number: int) -> list[Line]:
    """The lines of a block that starts at line *number*; an :class:`InputError` names the first bad one."""
    try:
        return _decoder.decode_lines(block)
    except (msgspec.DecodeError, UnicodeDecodeError):
        for offset, text in enumerate(block.split(b"\n")):
            if not text.strip():
                continue
            try:
                _line_decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise InputError(f"{path}, line {number + offset}: {error}") from None
        raise


_decoder = msgspec.json.Decoder(Line)
_line_decoder = _decoder


def _blocks(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, whole lines) of a file."""
    number, rest = 1, b""
    while block := file.read(_BLOCK):
        whole, newline, tail = (rest + block).rpartition(b"\n")
        rest = tail
        if newline:
            yield number, whole + newline
            number += whole.count(b"\n") + 1
    if rest.strip():
        yield number, rest


def _first_error(lines: list[Line], path: str, number: int) -> InputError:
    """The sentence about the first line whose time or amount means nothing."""
    for offset, line in enumerate(lines):
        name = "time"
        try:
            _times([line.time])
            name = "cpu"
            _amounts([line.cpu], 1000, cpu_millis)
            name = "memory"
            _amounts([line.memory], 1, memory_bytes)
            name = "oom.memory"
            _amounts([line.oom.memory if line.oom is not None else None], 1, memory_bytes)
        except (ValueError, QuantityError) as error:
            return InputError(f"{path}, line {number + offset}: {name}: {error}")
    return InputError(f"{path}: a line from {number} on cannot be read")


def _times(values: list[float | str]) -> Ints:
    """Nanoseconds; numbers are seconds since the epoch, kept to the microsecond."""
    if any(type(value) is str for value in values):
        values = [_parse_time(value) / times.SECOND if type(value) is str else value for value in values]
    seconds = np.array(values, dtype=np.float64)
    if not (np.abs(seconds) < 4e9).all():
        raise ValueError("a time is seconds since 1970, or RFC 3339 text such as 2026-08-01T00:00:00Z")
    return np.rint(seconds * 1e6).astype(np.int64) * 1000


@lru_cache(maxsize=1 << 12)
def _parse_time(text: str) -> int:
    return times.parse(text)


def _amounts(values: list[float | str | None], unit: int, parse: Callable[[Quantity], int]) -> Ints:
    """Whole millicores (unit 1000) or bytes (unit 1), rounded up as a Quantity is; MISSING where absent."""
    if any(type(value) is str for value in values):
        return np.array([_amount(value, unit, parse) for value in values], dtype=np.int64)
    numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    absent = np.isnan(numbers)
    numbers[absent] = 0.0
    if np.abs(numbers).max(initial=0.0) * unit >= _LARGEST_EXACT:
        return np.array([_amount(value, unit, parse) for value in values], dtype=np.int64)
    result = _round_up(numbers, unit)
    result[absent] = MISSING
    return result


def _round_up(numbers: Floats, unit: int) -> Ints:
    """``ceil(number × unit)`` of the decimal text that a float was read from, away from zero.

    The nearest whole amount is right when its decimal text reads as the very same float; otherwise the text
    lies on one side of it.
    """
    size = np.abs(numbers)
    whole = np.rint(size * unit)
    nearest = whole / unit
    whole += size > nearest
    result: Ints = np.copysign(whole, numbers).astype(np.int64)
    return result


def _amount(value: float | str | None, unit: int, parse: Callable[[Quantity], int]) -> int:
    if value is None:
        return MISSING
    text = value if isinstance(value, str) else repr(value)
    amount = parse(Quantity.parse(text))
    if not -(2**61) < amount < 2**61:
        raise ValueError(f"{text} is out of range")
    return amount
