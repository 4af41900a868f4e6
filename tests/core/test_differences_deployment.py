"""What docs/differences.md says of the deployment and no other test shows."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import yaml

from admission.settings import TABLE as ADMISSION
from tests.tools.deploy_copies import CHART, DEPLOY
from updater.settings import TABLE as UPDATER

ROOT = Path(__file__).parents[2]


def test_defaults_of_chart_and_program_differ_as_upstreams_do_but_for_one_flag() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    admission, updater = values["admissionController"], values["updater"]
    flags = ADMISSION.flags
    hook = admission["mutatingWebhookConfiguration"]
    assert (hook["timeoutSeconds"], flags["webhook-timeout-seconds"].default) == (5, 30)
    assert (admission["registerWebhook"], flags["register-webhook"].default) == (False, True)
    assert updater["leaderElection"]["resourceName"] == "vpa-updater-lease"
    assert UPDATER.flags["leader-elect-resource-name"].default == "vpa-updater"
    assert updater["replicas"] == 2
    # The one flag: a harmless resize needs no leave here, so the chart does not skip the budget for it.
    assert UPDATER.flags["in-place-skip-disruption-budget"].default is False
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert "in-place-skip-disruption-budget" not in path.read_text(), path


def test_all_that_the_makefile_runs_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    modules = set(re.findall(r"python -m ((?:tests|benchmarks)[\w.]*)", makefile))
    assert len(modules) > 5
    for name in modules:
        assert importlib.util.find_spec(name) is not None, name
    for folder in re.findall(r"pytest ([\w/]+)", makefile):
        assert (ROOT / folder).is_dir(), folder
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    for script in (ROOT / ".ci").iterdir():
        called = set(re.findall(r"^make ([\w-]+)", script.read_text(), re.MULTILINE))
        assert called
        assert called <= targets
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(phony.split()) == targets
