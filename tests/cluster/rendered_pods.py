"""Pods of rendered Deployments as processes of this machine, supplied the way a kubelet supplies them."""

from __future__ import annotations

import json
import re
import shutil
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import admission.settings
import recommender.settings
import updater.settings
from tests.cluster import rendering
from tests.cluster.rendering import Json
from tests.testbed import ports
from tests.testbed.certificates import ADDRESS
from tests.testbed.cluster import Cluster
from tests.testbed.processes import Process, attempts
from tests.tools.deploy_copies import DEPLOY

SETTINGS: dict[str, Any] = {
    "recommender": (recommender.settings.TABLE, recommender.settings.Settings),
    "updater": (updater.settings.TABLE, updater.settings.Settings),
    "admission-controller": (admission.settings.TABLE, admission.settings.Settings),
}

MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where every pod finds its account, and a process of this machine cannot have it."""
START = """
import pathlib, runpy, sys
from vpa.cluster import credentials
credentials.SERVICE_ACCOUNT = pathlib.Path(sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""The image's ``-m MODULE``, but for the place of the account."""


def entry_point(component: str) -> list[str]:
    """What the image starts, without its Python."""
    text = (DEPLOY / "Dockerfile").read_text()
    found = re.search(rf"^FROM runtime AS {component}\nENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    assert found is not None, component
    python, *rest = json.loads(found[1])
    assert python.endswith("/python")
    return [str(each) for each in rest]


class RenderedPod:
    """One pod of the Deployment of *component* in *text*. As a context manager it is killed at the end.

    Its account must be there, since it comes with the rendering. *server* is the API server's address as the
    environment tells it to a pod, *environment* what the cluster's network would do beside that.
    """

    def __init__(
        self,
        cluster: Cluster,
        text: str,
        component: str,
        *,
        server: str = "",
        name: str = "",
        **environment: str,
    ) -> None:
        self.component = component
        self.deployment = next(
            each
            for each in rendering.of_kind(text, "Deployment")
            if rendering.container(each)["name"] == component
        )
        self.container = rendering.container(self.deployment)
        self.namespace: str = self.deployment["metadata"]["namespace"]
        self._cluster = cluster
        self._ports: dict[int, int] = {}
        self._environment = self._variables(server or cluster.server) | environment
        self._command = self._arguments()
        self.process: Process
        self._name = name or f"rendered-{component}"

    def __enter__(self) -> Self:
        self.process = self._cluster.spawn(self._name, self._command, **self._environment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()

    def _variables(self, server: str) -> dict[str, str]:
        address = urlsplit(server)
        found = {
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT": str(address.port),
        }
        for each in self.container.get("env", ()):
            if "value" in each:
                found[each["name"]] = each["value"]
            else:
                assert each["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
                found[each["name"]] = self.namespace
        return found

    def _account(self) -> Path:
        """The folder that the kubelet would mount: token, CA and namespace."""
        name = self.deployment["spec"]["template"]["spec"]["serviceAccountName"]
        self.account = self._cluster.service_account(self.namespace, name)
        folder = self.account.token_file.parent
        shutil.copy(self._cluster.ca, folder / "ca.crt")
        (folder / "namespace").write_text(self.namespace)
        return folder

    def _arguments(self) -> list[str]:
        """The image's entry point with exactly the rendered arguments, but for what only a pod can have.

        A mounted folder is elsewhere, and a port that somebody of this machine has already is another one.
        """
        options, module = entry_point(self.component)[:-2], entry_point(self.component)[-1]
        assert not self.container.get("volumeMounts"), "nothing but the account is mounted"
        folder = self._account()
        args = [each.replace(MOUNT, str(folder)) for each in self.container["args"]]
        table, settings = SETTINGS[self.component]
        parsed = table.parse(args).fill(settings)
        metrics = int(parsed.serving.address.rpartition(":")[2])
        if self._port(metrics) != metrics:
            args.append(f"--address={ADDRESS}:{self._port(metrics)}")
        if (
            self.component == "admission-controller"
            and self._port(parsed.webhook.port) != parsed.webhook.port
        ):
            args.append(f"--port={self._port(parsed.webhook.port)}")
        return [sys.executable, *options, "-c", START, str(folder), module, *args]

    def _port(self, wanted: int) -> int:
        if wanted not in self._ports:
            self._ports[wanted] = ports.free() if ports.listening(wanted) else wanted
        return self._ports[wanted]

    @property
    def webhook_port(self) -> int:
        """Where the port of the container that the Service leads to is."""
        (port,) = (each for each in self.container["ports"] if each["name"] == "webhook")
        return self._port(port["containerPort"])

    def metrics(self) -> str:
        """All metrics, as text."""
        return self._get(self._probed("livenessProbe").replace("/health-check", "/metrics"))

    def wait_until_ready(self) -> None:
        """Wait until both probes succeed."""
        for _ in attempts(90, f"{self._name} to be ready", self.process):
            try:
                answers = {self._get(self._probed(kind)) for kind in ("livenessProbe", "readinessProbe")}
            except OSError:
                continue
            if answers == {"OK"}:
                return

    def _probed(self, kind: str) -> str:
        """Where a probe leads to, through the side-car if it is the side-car's port."""
        probe: Json = self.container[kind]["httpGet"]
        for container in self.deployment["spec"]["template"]["spec"]["containers"]:
            for port in container.get("ports", ()):
                if probe["port"] not in (port["name"], port["containerPort"]):
                    continue
                if container is self.container:
                    assert probe["scheme"] == "HTTP"
                    return f"http://{ADDRESS}:{self._port(port['containerPort'])}{probe['path']}"
                assert probe["scheme"] == "HTTPS"
                flags = dict(each.split("=", 1) for each in container["args"])
                assert flags["--secure-listen-address"].endswith(f":{port['containerPort']}")
                assert probe["path"] in flags["--ignore-paths"].split(","), "without authentication"
                upstream = urlsplit(flags["--upstream"])
                assert upstream.hostname == ADDRESS
                return f"http://{ADDRESS}:{self._port(upstream.port or 0)}{probe['path']}"
        raise AssertionError(f"{kind} of {self._name} asks a port that no container has")

    @staticmethod
    def _get(url: str) -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text: str = answer.read().decode()
            return text
