"""From one reading of present usage to samples: whose it is, may it count, what became of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recommender.tracking import Tracker
from vpa.metrics.usage import Usage as Reading
from vpa.numerics import Ints
from vpa.rules import Rules
from vpa.times import SECOND

AHEAD = 600 * SECOND
"""How far ahead of our clock a sample may be stamped: its container takes no older one after it."""

UNKNOWN = -1
INIT = -2


@dataclass(frozen=True, slots=True)
class Fed:
    """What became of a reading. *cpu* and *memory*: (rows, amounts) of accepted samples."""

    cpu: tuple[Ints, Ints]
    memory: tuple[Ints, Ints]
    unknown: int
    """Containers that nobody tracks."""
    ahead: int
    """Containers whose sample lies in the future."""


def join(tracker: Tracker, reading: Reading) -> Ints:
    """The instance of each container of a reading, `UNKNOWN` or `INIT`; ``int64[n]``."""
    found = [UNKNOWN] * len(reading)
    pods = tracker.pods
    key = ("", "")
    tracked = None
    for place, (namespace, pod, container) in enumerate(
        zip(reading.namespaces, reading.pods, reading.containers, strict=True)
    ):
        if pod != key[1] or namespace != key[0]:
            key = (namespace, pod)
            tracked = pods.get(key)
        if tracked is None:
            continue
        shape = tracked.record.shape
        at = shape.index.get(container)
        if at is not None:
            found[place] = tracked.instances[at]
        elif container in shape.init:
            found[place] = INIT
    return np.array(found, dtype=np.int64)


def feed(tracker: Tracker, reading: Reading, *, now: int, rules: Rules) -> Fed:
    """Add a reading's samples to the rows. *now*: our wall clock in nanoseconds."""
    instances = join(tracker, reading)
    usable = instances >= 0
    ahead = np.zeros(len(instances), dtype=np.bool_)
    if rules.plausible_times:
        ahead = usable & (reading.times > now + AHEAD)
        usable &= ~ahead
    return Fed(
        cpu=_add(tracker, reading.cpu, instances, reading.times, usable, memory=False),
        memory=_add(tracker, reading.memory, instances, reading.times, usable, memory=True),
        unknown=int(np.count_nonzero(instances == UNKNOWN)),
        ahead=int(np.count_nonzero(ahead)),
    )


def _add(
    tracker: Tracker,
    amounts: Ints,
    instances: Ints,
    times: Ints,
    usable: NDArray[np.bool_],
    *,
    memory: bool,
) -> tuple[Ints, Ints]:
    chosen = usable & (amounts >= 0)
    instances, amounts = instances[chosen], amounts[chosen]
    add = tracker.usage.add_memory if memory else tracker.usage.add_cpu
    accepted = add(instances, times[chosen], amounts)
    return tracker.usage.row[instances[accepted]], amounts[accepted]
