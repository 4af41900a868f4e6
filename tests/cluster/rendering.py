"""The manifests of deploy/ as the real tools render them."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.testbed import builds
from tests.tools.deploy_copies import CHART, DEPLOY

Json = dict[str, Any]

OVERLAYS = ("plain", "prometheus", "deckhouse")
COMPONENTS = ("recommender", "updater", "admission-controller")


@functools.cache
def overlay(name: str) -> str:
    """What ``kubectl kustomize`` makes of an overlay; ``base`` is the base."""
    folder = DEPLOY / "manifests" / (name if name == "base" else f"overlays/{name}")
    return _run([builds.binary("kubectl"), "kustomize", folder])


@functools.cache
def chart(*arguments: str, path: Path = CHART, release: str = "vpa", namespace: str = "kube-system") -> str:
    """What ``helm template`` makes of a chart."""
    return _run([builds.binary("helm"), "template", release, path, "--namespace", namespace, *arguments])


def objects(text: str) -> list[Json]:
    """The objects of a stream of documents."""
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def named(text: str) -> dict[tuple[str, str], Json]:
    """The objects by kind and name."""
    return {(each["kind"], each["metadata"]["name"]): each for each in objects(text)}


def of_kind(text: str, kind: str) -> list[Json]:
    """The objects of one kind."""
    return [each for each in objects(text) if each["kind"] == kind]


def container(deployment: Json, name: str | None = None) -> Json:
    """The container with that name, or the first."""
    containers: list[Json] = deployment["spec"]["template"]["spec"]["containers"]
    return next(each for each in containers if name in (None, each["name"]))


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, list(command), done.stdout, done.stderr)
        error.add_note(done.stderr)
        raise error
    return done.stdout
