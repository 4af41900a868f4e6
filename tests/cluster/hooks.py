"""Webhooks of others, played by the tests: they record reviews, and may change the object."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.testbed.api import Json
from tests.testbed.certificates import ADDRESS, Authority
from tests.testbed.cluster import Cluster

Patch = list[dict[str, Any]]


class Hook:
    """A mutating webhook for new pods of one namespace, called *name*.

    Webhooks are called in the order of their configurations' names. *change* makes a JSON patch of a pod.
    """

    def __init__(
        self, cluster: Cluster, name: str, namespace: str, change: Callable[[Json], Patch] | None = None
    ) -> None:
        self.reviews: list[Json] = []
        """All that came, in order."""
        self._cluster = cluster
        self._name = name
        self._namespace = namespace
        self._change = change
        authority = Authority(cluster.folder / name)
        certificate = authority.issue("hook")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.chain, certificate.key)
        self._server = ThreadingHTTPServer((ADDRESS, 0), self._handler())
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._bundle = authority.bundle

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True, name=self._name).start()
        url = f"https://{ADDRESS}:{self._server.server_port}/"
        register(self._cluster, self._name, self._bundle, url, [self._namespace])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.api.delete("MutatingWebhookConfiguration", self._name)
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hook = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = json.dumps(hook.answer(review)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Tests have no log."""

        return Handler

    def answer(self, review: Json) -> Json:
        """The reply to one review."""
        self.reviews.append(review)
        response: Json = {"uid": review["request"]["uid"], "allowed": True}
        patch = self._change(review["request"]["object"]) if self._change else None
        if patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}


def register(
    cluster: Cluster, name: str, bundle: str, url: str, namespaces: Sequence[str], **more: Any
) -> None:
    """A configuration for new pods and VPAs of *namespaces*; *more* are fields of the webhook."""
    selector = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [*namespaces]}
    rules = [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
        {
            "apiGroups": ["autoscaling.k8s.io"],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["verticalpodautoscalers"],
        },
    ]
    hook = {
        "name": "vpa.k8s.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "failurePolicy": "Fail",
        "clientConfig": {"url": url, "caBundle": bundle},
        "namespaceSelector": {"matchExpressions": [selector]},
        "rules": rules,
    }
    cluster.api.create(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [hook | more],
        }
    )


def sidecar(pod: Json) -> Patch:
    """A change that adds a container, once."""
    if any(one["name"] == "sidecar" for one in pod["spec"]["containers"]):
        return []
    injected = {
        "name": "sidecar",
        "image": "pause",
        "resources": {"requests": {"cpu": "20m"}, "limits": {"cpu": "40m"}},
    }
    return [{"op": "add", "path": "/spec/containers/-", "value": injected}]
