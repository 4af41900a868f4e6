"""Present usage of containers, wherever it was read: flat lists and arrays, one entry a container."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ABSENT = -1
"""Stands in the arrays for a resource that was not reported: no sample, which is not a sample of 0."""

Get = Callable[[str, Mapping[str, str]], Awaitable[bytes]]
"""How the services read from the API server: path and query parameters → body."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Entry *i* is one container: ``namespaces[i]``, ``pods[i]``, ``containers[i]``.

    ``times`` int64 nanoseconds since the epoch, ``cpu`` int64 millicores or `ABSENT`, ``memory`` int64 bytes
    or `ABSENT`.
    """

    namespaces: list[str]
    pods: list[str]
    containers: list[str]
    times: NDArray[np.int64]
    cpu: NDArray[np.int64]
    memory: NDArray[np.int64]
    skipped: int = 0
    """Entries that could not be read."""

    def __len__(self) -> int:
        return len(self.containers)


@dataclass(slots=True)
class UsageBuilder:
    """Collects entries for a `Usage`."""

    namespaces: list[str] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)
    containers: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    cpu: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    skipped: int = 0

    def add(self, namespace: str, pod: str, container: str, time: int, cpu: int, memory: int) -> None:
        """One container."""
        self.namespaces.append(namespace)
        self.pods.append(pod)
        self.containers.append(container)
        self.times.append(time)
        self.cpu.append(cpu)
        self.memory.append(memory)

    def build(self) -> Usage:
        """All entries so far."""
        return Usage(
            namespaces=self.namespaces,
            pods=self.pods,
            containers=self.containers,
            times=np.array(self.times, np.int64),
            cpu=np.array(self.cpu, np.int64),
            memory=np.array(self.memory, np.int64),
            skipped=self.skipped,
        )
