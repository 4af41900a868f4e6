"""The core alone: one tick over many containers, in CPU seconds of one core.

50,000 VPAs × 2 containers by default. After the warm-up each tick brings every container a new CPU sample and
a new memory sample with times of their own, through the same calls as the service makes:

* ``add_s``: both resources into the banks (rejection, peaks, counts);
* ``recommend_s``: final integers of target, bounds and uncapped target of every container;
* ``render_s``: the status text of the VPAs whose numbers changed.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from vpa.numerics import Ints
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.recommendations import Roster
from vpa.settings import Estimation
from vpa.usage import Usage

SECOND = 10**9
WARM_UP = 40
MEASURED = 5


class Load:
    """Seeded usage: log-normal levels per container, noise per tick, a scrape time of its own for each."""

    def __init__(self, containers: int) -> None:
        self.random = np.random.default_rng(1)
        self.cpu_level = self.random.lognormal(np.log(100), 1.0, containers)
        self.memory_level = self.random.lognormal(np.log(200 * 2**20), 0.8, containers)

    def tick(self, number: int) -> tuple[Ints, Ints, Ints]:
        """(times, millicores, bytes) of one tick, a minute after the one before."""
        count = len(self.cpu_level)
        start = 1_785_542_400 * SECOND + number * 60 * SECOND
        times = start + self.random.integers(0, 30 * SECOND, count)
        cpu = self.cpu_level * self.random.lognormal(0, 0.4, count)
        memory = self.memory_level * self.random.lognormal(0, 0.05, count)
        return times, cpu.astype(np.int64), memory.astype(np.int64)


def build(containers: int) -> tuple[Usage, Roster, Ints]:
    """Rows, instances and VPAs of two containers each."""
    usage = Usage(capacity=containers)
    rows = usage.new_rows(containers, 0)
    roster = Roster(usage, Estimation(), capacity=containers)
    policy = {"containerPolicies": [{"containerName": "*", "maxAllowed": {"cpu": "4", "memory": "8Gi"}}]}
    vpa = meta.convert({"metadata": {"name": "v"}, "spec": {"resourcePolicy": policy}}, VerticalPodAutoscaler)
    for number in range(containers // 2):
        roster.put(number, vpa, {"app": int(rows[2 * number]), "proxy": int(rows[2 * number + 1])})
    return usage, roster, usage.new_instances(rows)


def measure(containers: int) -> dict[str, float]:
    """Median CPU seconds per tick of each part, and the process' peak memory."""
    usage, roster, instances = build(containers)
    load = Load(containers)
    add, recommend, render = [], [], []
    for number in range(WARM_UP + MEASURED):
        times, cpu, memory = load.tick(number)
        t0 = time.process_time()
        usage.add_cpu(instances, times, cpu)
        usage.add_memory(instances, times, memory)
        t1 = time.process_time()
        run = roster.run()
        t2 = time.process_time()
        if number < WARM_UP - 1:
            continue
        clearly, slightly = roster.moved(run, 0.01)
        for key in clearly | slightly:
            meta.encoder.encode(roster.recommendation(key, run))
            roster.mark_published(key, run)
        t3 = time.process_time()
        if number >= WARM_UP:
            add.append(t1 - t0)
            recommend.append(t2 - t1)
            render.append(t3 - t2)
    return {
        "containers": containers,
        "add_s": round(float(np.median(add)), 5),
        "recommend_s": round(float(np.median(recommend)), 5),
        "render_s": round(float(np.median(render)), 5),
        "rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--containers", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    result = measure(options.containers)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:12} {value}")


if __name__ == "__main__":
    main()
