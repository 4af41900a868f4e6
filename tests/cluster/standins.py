"""A stand-in for the admission controller: the core's admission, on, off or useless as a test says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web

from tests.testbed import ports
from tests.testbed.api import ApiError, Json
from tests.testbed.certificates import ADDRESS
from tests.testbed.cluster import Cluster
from tests.testbed.processes import attempts
from vpa import modes
from vpa.gates import FeatureGates
from vpa.objects import meta
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.limits import LimitRange
from vpa.objects.pods import Pod
from vpa.rules import Rules
from vpa.sizes.limit_ranges import ranges_of
from vpa.sizes.patches import Terms, admit

KIND = "MutatingWebhookConfiguration"


class StandIn:
    """Sizes new pods of one namespace: by the oldest VPA whose target has the name of a pod's label app."""

    def __init__(self, cluster: Cluster, namespace: str, port: int) -> None:
        self.useless = False
        """It answers without a patch, like one that is overloaded."""
        self.seen = 0
        """Pods that it was asked about."""
        self.change: Callable[[Json], list[Json]] = lambda pod: []
        """More operations, from another webhook as it were."""
        self.name = f"z-stand-in-{namespace}"
        """Webhooks are called by the order of their names: this one after ours."""
        self._cluster = cluster
        self._namespace = namespace
        self._port = port

    def on(self) -> None:
        """Have the API server call it."""
        client = {"url": f"https://{ADDRESS}:{self._port}/", "caBundle": self._cluster.authority.bundle}
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
        webhook = {
            "name": "updater.vpa.test",
            "clientConfig": client,
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 5,
        }
        self._cluster.api.apply(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": KIND,
                "metadata": {"name": self.name},
                "webhooks": [webhook],
            }
        )
        self._wait(called=True)

    def off(self) -> None:
        """The API server calls it no more."""
        self._cluster.api.delete(KIND, self.name)
        self._wait(called=False)

    def _wait(self, *, called: bool) -> None:
        """The API server learns of a change of its webhooks a moment later."""
        path = self._cluster.api.path("Pod", None, self._namespace) + "?dryRun=All"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "probe-"},
            "spec": {"containers": [{"name": "probe", "image": "probe"}]},
        }
        for _ in attempts(20, f"the webhook to be {'on' if called else 'off'}", pause=0.1):
            before = self.seen
            with contextlib.suppress(ApiError):
                self._cluster.api.request("POST", path, pod)
                if (self.seen > before) == called:
                    return

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One review."""
        review = json.loads(await request.read())
        self.seen += 1
        answer: Json = {"uid": review["request"]["uid"], "allowed": True}
        pod = review["request"]["object"]
        patch = [] if self.useless else await asyncio.to_thread(self._patch, pod)
        patch += self.change(pod)
        if patch:
            answer |= {
                "patchType": "JSONPatch",
                "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
            }
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        return web.json_response(body)

    def _patch(self, pod: Json) -> list[Any]:
        app = pod["metadata"].get("labels", {}).get("app")
        listed = self._cluster.api.list
        found = [meta.convert(one, VerticalPodAutoscaler) for one in listed(VPA, self._namespace)]
        vpas = [
            vpa
            for vpa in found
            if vpa.spec.target_ref is not None
            and vpa.spec.target_ref.name == app
            and modes.update_mode(vpa) != modes.OFF
        ]
        if not vpas:
            return []
        rules = Rules()
        ranges = [meta.convert(one, LimitRange) for one in listed("LimitRange", self._namespace)]
        oldest = min(vpas, key=lambda vpa: (str(vpa.metadata.creation_timestamp), vpa.metadata.name))
        terms = Terms(rules=rules, gates=FeatureGates.parse("AllAlpha=true"))
        return list(admit(meta.convert(pod, Pod), oldest, ranges_of(ranges, rules=rules), terms=terms).patch)


VPA = "VerticalPodAutoscaler"


@contextlib.contextmanager
def serving(cluster: Cluster, namespace: str) -> Iterator[StandIn]:
    """A stand-in that is called while the block runs."""
    port = ports.free()
    stand_in = StandIn(cluster, namespace, port)
    certificate = cluster.authority.issue("stand-in")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.chain, certificate.key)
    stop, ready = threading.Event(), threading.Event()

    async def serve() -> None:
        server = web.Server(stand_in.handle, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, ADDRESS, port, ssl_context=context).start()
        ready.set()
        await asyncio.to_thread(stop.wait)
        for connection in list(server.connections):
            if connection.transport is not None:
                connection.transport.close()
        await runner.cleanup()
        await asyncio.sleep(0.05)  # closing TLS takes a round of the loop or two

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ready.wait(10)
    try:
        stand_in.on()
        yield stand_in
    finally:
        cluster.api.delete(KIND, stand_in.name)
        stop.set()
        thread.join(10)
