"""Files of ``deploy/`` that stand in two places; ``python -m tests.tools.deploy_copies`` renews the copies.

A chart cannot refer to files outside its folder, nor can kustomize put a file into another's field.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "chart" / "vertical-pod-autoscaler"
OBSERVABILITY = DEPLOY / "observability"

RULE = """\
# A copy of alerts.yaml as an object of the Prometheus operator (`make pages`).
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: vertical-pod-autoscaler
  namespace: kube-system
spec:
"""


def copies() -> Iterator[tuple[Path, str]]:
    """Each copy and what it must hold."""
    for name in ("verticalpodautoscalers.yaml", "verticalpodautoscalercheckpoints.yaml"):
        yield CHART / "files" / "crds" / name, (DEPLOY / "crds" / name).read_text()
    for name in ("alerts.yaml", "dashboard.json"):
        yield CHART / "files" / name, (OBSERVABILITY / name).read_text()
    alerts = (OBSERVABILITY / "alerts.yaml").read_text()
    body = "".join(f"  {line}" if line.strip() else line for line in alerts.splitlines(keepends=True))
    yield OBSERVABILITY / "prometheus-rule.yaml", RULE + body


if __name__ == "__main__":
    for path, text in copies():
        path.write_text(text)
