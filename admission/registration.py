"""The MutatingWebhookConfiguration: what it should say, what to change of it, and doing so without a gap."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from admission.settings import Webhook
from vpa.cluster import reads, writes
from vpa.cluster.connection import Connection
from vpa.cluster.errors import AlreadyExists, ClusterError, Forbidden, NotFound
from vpa.cluster.pacing import Backoff
from vpa.cluster.resources import MUTATING_WEBHOOKS
from vpa.objects.autoscalers import GROUP
from vpa.objects.meta import Obj, ObjectMeta
from vpa.settings import Selection

log = logging.getLogger(__name__)

NAME: Final = "vpa.k8s.io"
"""The webhook's name inside the configuration."""
LOOK: Final = 30.0
"""Seconds between two looks whether the configuration is still there."""
NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"

Hook = dict[str, Any]


class Configuration(Obj, frozen=True):
    """A MutatingWebhookConfiguration; its webhooks are plain data, so that nothing in them is lost."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: list[Hook] | None = None


def wanted_hook(settings: Webhook, selection: Selection, *, namespace: str, bundle: str) -> Hook:
    """The webhook as it should be, with every default of the API spelled out. *bundle* is base64."""
    client: dict[str, Any]
    if settings.register_by_url:
        client = {"url": f"{settings.webhook_address}:{settings.webhook_port}"}
    else:
        client = {"service": {"name": settings.webhook_service, "namespace": namespace, "port": 443}}
    if bundle:
        client["caBundle"] = bundle
    return {
        "name": NAME,
        "admissionReviewVersions": ["v1"],
        "clientConfig": client,
        "failurePolicy": "Fail" if settings.webhook_failure_policy_fail else "Ignore",
        "matchPolicy": "Equivalent",
        "namespaceSelector": namespace_selector(selection),
        "objectSelector": {},
        "reinvocationPolicy": "Never",
        "rules": [
            _rule("", "v1", "pods", "CREATE"),
            _rule(GROUP, "*", "verticalpodautoscalers", "CREATE", "UPDATE"),
        ],
        "sideEffects": "None",
        "timeoutSeconds": settings.webhook_timeout_seconds,
    }


def _rule(group: str, version: str, resource: str, *operations: str) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": [*operations],
        "resources": [resource],
        "scope": "*",
    }


def namespace_selector(selection: Selection) -> dict[str, Any]:
    """The namespaces that the flags leave: the API server need not call for others."""
    if selection.ignored:
        operator, values = "NotIn", sorted(selection.ignored)
    elif selection.vpa_object_namespace:
        operator, values = "In", [selection.vpa_object_namespace]
    else:
        return {}
    return {"matchExpressions": [{"key": NAMESPACE_LABEL, "operator": operator, "values": values}]}


def labels_of(text: str) -> dict[str, str]:
    """``--webhook-labels``: ``a:b,c:d``. `ValueError` for a part without a colon or without a name."""
    labels = {}
    for part in text.strip('"').split(",") if text else ():
        name, colon, value = part.partition(":")
        if not colon or not name.strip():
            raise ValueError(f'"{part}" is no name:value pair')
        labels[name.strip()] = value.strip()
    return labels


def change(current: Configuration, hook: Hook, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """The merge patch that makes *current* say what it should; None if it does already.

    Labels and webhooks of others stay. A bundle that we do not have (our file cannot be read) stays as it is.
    """
    patch: dict[str, Any] = {}
    present = current.metadata.labels or {}
    missing = {name: value for name, value in labels.items() if present.get(name) != value}
    if missing:
        patch["metadata"] = {"labels": missing}
    kept = bundle_of(current)
    if kept and not hook["clientConfig"].get("caBundle"):
        hook = {**hook, "clientConfig": {**hook["clientConfig"], "caBundle": kept}}
    hooks = current.webhooks or []
    if [one for one in hooks if one.get("name") == NAME] != [hook]:
        patch["webhooks"] = [hook, *(one for one in hooks if one.get("name") != NAME)]
    return patch or None


def bundle_of(current: Configuration) -> str:
    """The CA bundle (base64) by which the API server verifies us."""
    for hook in current.webhooks or ():
        if hook.get("name") == NAME:
            return str((hook.get("clientConfig") or {}).get("caBundle") or "")
    return ""


def bundle_change(current: Configuration, bundle: str) -> dict[str, Any] | None:
    """The merge patch that replaces the bundle of our webhook alone; None if it is the same already."""
    hooks = [dict(hook) for hook in current.webhooks or ()]
    changed = False
    for hook in hooks:
        client = hook.get("clientConfig") or {}
        if hook.get("name") == NAME and client.get("caBundle") != bundle:
            hook["clientConfig"] = {**client, "caBundle": bundle}
            changed = True
    return {"webhooks": hooks} if changed else None


class Registration:
    """Our entry at the API server. Replicas all write the same: it does not matter who is first."""

    def __init__(
        self, connection: Connection, settings: Webhook, selection: Selection, *, namespace: str
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._selection = selection
        self._namespace = namespace
        self._name = settings.webhook_configuration
        try:
            self._labels = labels_of(settings.webhook_labels)
        except ValueError as error:
            log.error("--webhook-labels is ignored: %s", error)
            self._labels = {}

    async def register(self, bundle: str) -> None:
        """Create the configuration, or change what of it is not as it should be. Raises a `ClusterError`."""
        hook = wanted_hook(self._settings, self._selection, namespace=self._namespace, bundle=bundle)
        try:
            current = await self._get()
        except NotFound:
            try:
                await self._create(hook)
            except AlreadyExists:  # another replica was quicker
                current = await self._get()
            else:
                log.info("Registered the webhook", extra={"configuration": self._name})
                return
        if change(current, hook, self._labels) is None:
            log.info("The webhook is registered as it should be", extra={"configuration": self._name})
            return
        await self._update(current, lambda found: change(found, hook, self._labels))
        log.info("Updated the registration of the webhook", extra={"configuration": self._name})

    async def ensure(self, bundle: str) -> None:
        """`register`, repeated until it works."""
        backoff = Backoff(base=1.0, cap=30.0)
        problem = ""
        while True:
            try:
                await self.register(bundle)
                return
            except ClusterError as error:
                if problem != str(error):
                    log.error("The webhook cannot be registered, new pods are not sized: %s", error)
                problem = str(error)
            await asyncio.sleep(backoff.delay())

    async def guard(self, bundle: Callable[[], str]) -> None:
        """Until cancelled, register anew when somebody has deleted the configuration.

        Whoever edits it has reasons: that stays until the next start, as all of it would under upstream.
        """
        while True:
            await asyncio.sleep(LOOK)
            with contextlib.suppress(ClusterError):
                try:
                    await self._get()
                except NotFound:
                    log.warning(
                        "The registration is gone, registering again", extra={"configuration": self._name}
                    )
                    await self.ensure(bundle())

    async def publish(self, bundle: str) -> bool:
        """Give the API server another CA bundle (base64); False if that has to be tried again."""
        try:
            current = await self._get()
            if bundle_change(current, bundle) is None:
                log.info("Client CA did not change, skipping patch")
                return True
            log.info("New client CA found, reloading and patching webhook")
            await self._update(current, lambda found: bundle_change(found, bundle))
        except (Forbidden, NotFound) as error:
            log.warning("The CA bundle of %s cannot be kept up to date: %s", self._name, error)
            return False
        except ClusterError as error:
            log.warning("The CA bundle of %s is not up to date yet: %s", self._name, error)
            return False
        log.info("Successfully patched webhook with new client CA")
        return True

    async def bundle(self) -> str:
        """What the API server verifies us by now (base64); "" without a configuration."""
        try:
            return bundle_of(await self._get())
        except NotFound:
            return ""

    async def _get(self) -> Configuration:
        return await reads.get(self._connection, MUTATING_WEBHOOKS, self._name, kind=Configuration)

    async def _create(self, hook: Hook) -> None:
        body = {
            "apiVersion": MUTATING_WEBHOOKS.api_version,
            "kind": MUTATING_WEBHOOKS.kind,
            "metadata": {"name": self._name, "labels": self._labels},
            "webhooks": [hook],
        }
        await writes.create(self._connection, MUTATING_WEBHOOKS, body, kind=Configuration)

    async def _update(self, current: Configuration, compute: Any) -> None:
        await writes.update(self._connection, MUTATING_WEBHOOKS, current, compute, kind=Configuration)
