"""`vpa recommend` on a long usage file: CPU seconds from the first byte to the status.

A million lines by default, of 100 pods with two containers each, sampled every 15 seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

from vpa.cli.objects import read
from vpa.cli.recommend import recommend

PODS = 100
START = 1_785_542_400


def write(folder: Path, lines: int, pods: int) -> tuple[Path, Path]:
    """(objects, usage) files of one Deployment."""
    containers = [{"name": "app"}, {"name": "proxy"}]
    labels = {"labels": {"app": "web"}}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    template = {"metadata": labels, "spec": {"containers": containers}}
    objects = [
        {
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
        },
        {"kind": "VerticalPodAutoscaler", "metadata": {"name": "web"}, "spec": {"targetRef": target}},
        *(
            {"kind": "Pod", "metadata": {"name": f"web-{n}", **labels}, "spec": {"containers": containers}}
            for n in range(pods)
        ),
    ]
    (folder / "objects.json").write_text(json.dumps({"kind": "List", "items": objects}))
    source = random.Random(1)
    with (folder / "usage.jsonl").open("w") as file:
        for n in range(lines):
            pod, container = n % (2 * pods) // 2, ("app", "proxy")[n % 2]
            time_ = START + n // (2 * pods) * 15
            place = f'"namespace": "default", "pod": "web-{pod}", "container": "{container}"'
            usage = f'"cpu": {source.random():.4f}, "memory": {source.randrange(10**8, 10**9)}'
            file.write(f'{{"time": {time_}, {place}, {usage}}}\n')
    return folder / "objects.json", folder / "usage.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--pods", type=int, default=PODS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        objects, usage = write(Path(folder), options.lines, options.pods)
        start, cpu = time.perf_counter(), time.process_time()
        _, result = recommend(read([str(objects)]), [str(usage)])
        spent, used = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"lines": result.lines, "wall_s": round(spent, 2), "cpu_s": round(used, 2)}))


if __name__ == "__main__":
    main()
