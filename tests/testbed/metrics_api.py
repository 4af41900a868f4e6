"""A process that serves ``metrics.k8s.io/v1beta1`` behind the real aggregator, from usage that tests set.

    python -m tests.testbed.metrics_api --kubeconfig FILE --port PORT --certificate FILE --key FILE

It watches the cluster's pods and gives each running container that a rule names its usage. `metrics` has the
client of its control endpoint, ``/control``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.testbed.certificates import ADDRESS
from tests.testbed.usage import Clock, Json, Pod, Rule, Usage

GROUP = "metrics.k8s.io"
VERSION = f"{GROUP}/v1beta1"
ROOT = f"/apis/{VERSION}"

_SELECTORS = ("labelSelector", "fieldSelector")
_GROUP = {
    "name": GROUP,
    "versions": [{"groupVersion": VERSION, "version": "v1beta1"}],
    "preferredVersion": {"groupVersion": VERSION, "version": "v1beta1"},
}
_RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": VERSION,
    "resources": [
        {
            "name": "pods",
            "singularName": "",
            "namespaced": True,
            "kind": "PodMetrics",
            "verbs": ["get", "list"],
        },
        {
            "name": "nodes",
            "singularName": "",
            "namespaced": False,
            "kind": "NodeMetrics",
            "verbs": ["get", "list"],
        },
    ],
}


class Pods:
    """The cluster's pods, listed and watched; whatever goes wrong is answered by listing again."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.by_key: dict[tuple[str, str], Pod] = {}

    async def follow(self) -> None:
        """Keep up to date until cancelled."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, KeyError, ValueError):
                await self._watch(await self._list())
            await asyncio.sleep(0.2)

    async def selected(self, namespace: str | None, selectors: Mapping[str, str]) -> list[Pod]:
        """Pods of a namespace, or of all; *selectors* are left to the API server, who knows their grammar."""
        pods: Iterable[Pod] = self.by_key.values()
        if selectors:
            scope = f"/namespaces/{namespace}" if namespace else ""
            async with self._session.get(f"/api/v1{scope}/pods", params=dict(selectors)) as answer:
                pods = [Pod.of(item) for item in (await answer.json())["items"]]
        return [pod for pod in pods if namespace in (None, pod.namespace)]

    async def _list(self) -> str:
        async with self._session.get("/api/v1/pods") as answer:
            body = await answer.json()
        self.by_key = {(pod.namespace, pod.name): pod for pod in map(Pod.of, body["items"])}
        version: str = body["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> None:
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "300"}
        async with self._session.get("/api/v1/pods", params=query) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                    return
                pod = Pod.of(event["object"])
                if event["type"] == "DELETED":
                    self.by_key.pop((pod.namespace, pod.name), None)
                else:
                    self.by_key[pod.namespace, pod.name] = pod


@dataclass
class Fault:
    """What happens to the next *remaining* requests for usage (None: to all)."""

    kind: str
    """``status``, ``delay`` or ``cut``."""
    remaining: float | None
    status: int = 0
    seconds: float = 0.0


class Server:
    """The HTTP side."""

    def __init__(self, pods: Pods) -> None:
        self._pods = pods
        self._usage = Usage()
        self._faults: list[Fault] = []
        self._asked: list[str] = []

    def app(self) -> web.Application:
        """All routes."""
        app = web.Application(client_max_size=256 * 2**20, middlewares=[self._faulty])
        app.add_routes(
            [
                web.get("/apis", _fixed({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]})),
                web.get(f"/apis/{GROUP}", _fixed({"kind": "APIGroup", "apiVersion": "v1"} | _GROUP)),
                web.get(ROOT, _fixed(_RESOURCES)),
                web.get(f"{ROOT}/pods", self._list_pods),
                web.get(f"{ROOT}/namespaces/{{namespace}}/pods", self._list_pods),
                web.get(f"{ROOT}/namespaces/{{namespace}}/pods/{{name}}", self._get_pod),
                web.get(f"{ROOT}/nodes", self._list_nodes),
                web.get(f"{ROOT}/nodes/{{name}}", self._get_node),
                web.get("/control/requests", self._get_requests),
                web.post("/control/rules", self._add_rules),
                web.post("/control/clock", self._set_clock),
                web.post("/control/faults", self._set_faults),
                web.post("/control/reset", self._reset),
            ]
        )
        return app

    # ---- the API

    async def _list_pods(self, request: web.Request) -> web.Response:
        now = self._usage.clock.now()
        selectors = {name: request.query[name] for name in _SELECTORS if name in request.query}
        pods = await self._pods.selected(request.match_info.get("namespace"), selectors)
        items = [item for pod in pods if (item := self._usage.pod_metrics(pod, now))]
        return _list("PodMetricsList", items)

    async def _get_pod(self, request: web.Request) -> web.Response:
        pod = self._pods.by_key.get((request.match_info["namespace"], request.match_info["name"]))
        item = self._usage.pod_metrics(pod, self._usage.clock.now()) if pod else None
        return _one("PodMetrics", item, request.match_info["name"])

    async def _list_nodes(self, _: web.Request) -> web.Response:
        items = self._usage.node_metrics(self._pods.by_key.values(), self._usage.clock.now())
        return _list("NodeMetricsList", items)

    async def _get_node(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        pods = [pod for pod in self._pods.by_key.values() if pod.node == name]
        items = self._usage.node_metrics(pods, self._usage.clock.now())
        return _one("NodeMetrics", items[0] if items else None, name)

    @web.middleware
    async def _faulty(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not request.path.startswith(f"{ROOT}/"):
            return await handler(request)
        self._asked.append(request.path)
        fault = next((one for one in self._faults if one.remaining is None or one.remaining > 0), None)
        if fault is None:
            return await handler(request)
        if fault.remaining is not None:
            fault.remaining -= 1
        if fault.kind == "status":
            return _status(fault.status, f"the Metrics API answers {fault.status}")
        await asyncio.sleep(fault.seconds)
        answer = await handler(request)
        if fault.kind == "cut" and isinstance(answer, web.Response) and isinstance(answer.body, bytes):
            return await _half(request, answer.body)
        return answer

    # ---- control

    async def _get_requests(self, _: web.Request) -> web.Response:
        return web.json_response(self._asked)

    async def _add_rules(self, request: web.Request) -> web.Response:
        self._usage.rules += [Rule(**rule) for rule in await request.json()]
        return web.json_response({})

    async def _set_clock(self, request: web.Request) -> web.Response:
        self._usage.clock = Clock(**await request.json())
        return web.json_response({})

    async def _set_faults(self, request: web.Request) -> web.Response:
        self._faults = [Fault(**fault) for fault in await request.json()]
        return web.json_response({})

    async def _reset(self, _: web.Request) -> web.Response:
        self._usage, self._faults, self._asked = Usage(), [], []
        return web.json_response({})


def _fixed(body: Json) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(body)

    return handler


def _list(kind: str, items: list[Json]) -> web.Response:
    return web.json_response({"kind": kind, "apiVersion": VERSION, "metadata": {}, "items": items})


def _one(kind: str, item: Json | None, name: str) -> web.Response:
    if item is None:
        return _status(404, f'{kind.lower()}.{GROUP} "{name}" not found')
    return web.json_response({"kind": kind, "apiVersion": VERSION} | item)


def _status(code: int, message: str) -> web.Response:
    reason = {404: "NotFound", 503: "ServiceUnavailable"}.get(code, "InternalError")
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return web.json_response(body | {"message": message, "reason": reason, "code": code}, status=code)


async def _half(request: web.Request, body: bytes) -> web.StreamResponse:
    """Promise the whole *body*, send half of it, and close the connection."""
    answer = web.StreamResponse(headers={"Content-Type": "application/json"})
    answer.content_length = len(body)
    await answer.prepare(request)
    await answer.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()
    return answer


@contextlib.asynccontextmanager
async def _session(config: Json) -> AsyncIterator[aiohttp.ClientSession]:
    """A session to the server of a kubeconfig that the testbed wrote, with its client certificate."""
    target, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cafile=target["certificate-authority"])
    tls.load_cert_chain(user["client-certificate"], user["client-key"])
    async with aiohttp.ClientSession(
        target["server"],
        connector=aiohttp.TCPConnector(ssl=tls),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=360),
        raise_for_status=True,
        read_bufsize=8 * 2**20,
    ) as session:
        yield session


async def serve(*, config: Json, port: int, certificate: Path, key: Path) -> None:
    """Serve until cancelled."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with _session(config) as session, asyncio.TaskGroup() as tasks:
        pods = Pods(session)
        runner = web.AppRunner(Server(pods).app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, ADDRESS, port, ssl_context=tls).start()
        tasks.create_task(pods.follow())


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.metrics_api", description=__doc__)
    for name in ("kubeconfig", "certificate", "key"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            serve(
                config=json.loads(options.kubeconfig.read_text()),
                port=options.port,
                certificate=options.certificate,
                key=options.key,
            )
        )


if __name__ == "__main__":
    main()
