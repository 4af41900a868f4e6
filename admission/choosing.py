"""Which VPA a new pod follows: found by its top-most controller, then by selector; the oldest wins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from admission.index import Index
from admission.lineage import UNKNOWN, Lineage
from admission.mirrors import Mirrors
from vpa.cluster.connection import Connection
from vpa.cluster.discovery import Discovery
from vpa.cluster.errors import ClusterError
from vpa.cluster.owners import NODE, NodeOwnerError, Owners, message_of
from vpa.cluster.scales import Scales
from vpa.cluster.targets import Targets
from vpa.cluster.workloads import OwnerKey, Workloads
from vpa.gates import FeatureGates
from vpa.matching import ADMISSION, age_order, controller_of, takes_part
from vpa.modes import OFF, update_mode
from vpa.objects.autoscalers import TargetRef, VerticalPodAutoscaler
from vpa.objects.meta import OwnerReference
from vpa.objects.pods import Pod
from vpa.reasons import Reason, Refusal
from vpa.rules import Rules
from vpa.selectors import Selector, SelectorError, from_object

log = logging.getLogger(__name__)

DOUBTS: Final = frozenset({Reason.NOT_SYNCED, Reason.OWNER_UNKNOWN, Reason.UNREADABLE, Reason.INTERNAL_ERROR})
"""Reasons that do not mean that all is as it should be."""


class Choice(NamedTuple):
    """The VPA that a pod follows, or why none."""

    vpa: VerticalPodAutoscaler | None
    refusal: Refusal | None = None


class Chooser:
    """Answers from copies; the API server is asked only for an owner that they do not know."""

    def __init__(
        self,
        mirrors: Mirrors,
        connection: Connection,
        *,
        rules: Rules,
        gates: FeatureGates,
        default_mode: str,
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        """*asked* is told of each owner that has to be asked for."""
        self._mirrors = mirrors
        self._index: Index = mirrors.index
        self._lineage: Lineage = mirrors.lineage
        self._rules = rules
        self._gates = gates
        self._default_mode = default_mode
        self._asked = asked
        scales = Scales(connection, Discovery(connection))
        self._workloads = Workloads(mirrors.controllers, connection=connection, by_group=rules.kinds_by_group)
        self._owners = Owners(self._workloads, scales, parents_need_selectors=rules.parents_need_selectors)
        self._targets = Targets(
            self._workloads, scales, self._owners, selectors_of_children=rules.parents_need_selectors
        )
        self._selectors: dict[OwnerKey, tuple[Any, Selector | None]] = {}

    async def choose(self, pod: Pod, namespace: str, *, patience: float) -> Choice:
        """The VPA of *pod*, decided within *patience* seconds."""
        owner = controller_of(pod.metadata)
        if owner is None:
            return _no_controller("the pod has no controller, and a VPA targets controllers")
        if owner.kind == NODE:
            return _no_controller("the pod is a static pod, which only files of its node change")
        if not self._index.covers(namespace):
            return self._none(namespace, f"there is no VPA in namespace {namespace}")
        try:
            async with asyncio.timeout(patience):
                keys = await self._topmost(namespace, owner)
                return await self._strongest(namespace, keys, pod)
        except NodeOwnerError:
            return _no_controller("the pod's owners end at a node")
        except TimeoutError:
            why = f"{owner.kind} {owner.name} could not be looked up within {patience:g} s"
            return Choice(None, Refusal(Reason.OWNER_UNKNOWN, why))
        except ClusterError as error:
            why = f"{owner.kind} {owner.name} could not be looked up: {message_of(error)}"
            return Choice(None, Refusal(Reason.OWNER_UNKNOWN, why))

    async def _topmost(self, namespace: str, owner: OwnerReference) -> tuple[OwnerKey, ...]:
        """The top-most controller of a pod, and above it those that were passed over."""
        key = OwnerKey(namespace, owner.kind, owner.name, owner.api_version)
        if self._workloads.resource(key) is not None:
            if not self._index.may_lead_to(namespace, key.kind):
                return (key,)
            if key.kind in self._mirrors.between and not self._index.is_target(key.target):
                return await self._above(key, owner.uid)
            if not self._matters(key):
                return (key,)
        top = await self._owners.topmost(key)
        return top.passed_over if top.key is None else (top.key, *top.passed_over)

    async def _above(self, key: OwnerKey, uid: str) -> tuple[OwnerKey, ...]:
        """The same for a controller in between, which no VPA targets itself."""
        parent = self._lineage.owner(uid)
        if parent is UNKNOWN and self._mirrors.latecomers.has(key.namespace, key.kind):
            self._asked()
            await self._mirrors.latecomers.read(key.namespace, key.kind)
            parent = self._lineage.owner(uid)
        if parent is UNKNOWN:
            parent = await self._ask_for_owner(key, uid)
        if parent is None:
            return (key,)
        if not self._matters(parent):
            return (parent,)
        top = await self._owners.topmost(parent)
        return (top.key or key, *top.passed_over)

    def _matters(self, key: OwnerKey) -> bool:
        """Can *key* or what is above it be a target?"""
        if self._index.is_open(key.namespace) or self._index.is_target(key.target):
            return True
        if self._workloads.resource(key) is None:
            return False
        copy = self._mirrors.controllers.get(key.kind)
        return copy is None or not copy.synced or (key.namespace, key.name) in copy

    async def _ask_for_owner(self, key: OwnerKey, uid: str) -> OwnerKey | None:
        """A pod may come before the news of its controller."""
        self._asked()
        record = await self._workloads.find(key)
        if record is None:
            raise ClusterError(f"{key.kind} {key.namespace}/{key.name} does not exist")
        if record.uid == uid:
            self._lineage.put(uid, record.owner)
        return record.owner

    async def _strongest(self, namespace: str, keys: tuple[OwnerKey, ...], pod: Pod) -> Choice:
        """The oldest VPA of one of *keys* whose selector matches the pod."""
        candidates: Iterable[VerticalPodAutoscaler] = self._index.at(keys[0].target) if keys else ()
        if len(keys) > 1:
            everyone = [vpa for key in keys for vpa in self._index.at(key.target)]
            candidates = sorted(everyone, key=age_order)
        idle: VerticalPodAutoscaler | None = None
        for vpa in candidates:
            if not self._takes_part(vpa):
                idle = idle or vpa
                continue
            selector = await self._selector(vpa)
            if selector is not None and selector.matches(pod.metadata.labels):
                return Choice(vpa)
        if idle is not None:
            return Choice(None, self._idle(idle))
        text = f"no VPA targets {keys[0].kind} {keys[0].name}" if keys else "no VPA can target its owners"
        return self._none(namespace, text)

    def _takes_part(self, vpa: VerticalPodAutoscaler) -> bool:
        return takes_part(
            vpa,
            service=ADMISSION,
            rules=self._rules,
            gates=self._gates,
            default_mode=self._default_mode,
        )

    async def _selector(self, vpa: VerticalPodAutoscaler) -> Selector | None:
        """Which pods are the target's; None if nobody can tell."""
        ref: TargetRef = vpa.spec.target_ref or TargetRef()
        namespace = vpa.metadata.namespace
        key = OwnerKey(namespace, ref.kind, ref.name, ref.api_version)
        copy = self._mirrors.controllers.get(key.kind)
        record = copy.get((namespace, key.name)) if copy is not None else None
        resource = self._workloads.resource(key)
        if record is None or resource is None or resource.group != record.key.group:
            return await self._targets.selector(namespace, ref)
        known = self._selectors.get(key)
        if known is None or known[0] is not record:
            if len(self._selectors) > 2 * len(self._index) + 100:
                self._selectors.clear()  # of VPAs that are gone
            try:
                selector = from_object(record.selector)
            except SelectorError:
                selector = None
            known = self._selectors[key] = (record, selector)
        return known[1]

    def _idle(self, vpa: VerticalPodAutoscaler) -> Refusal:
        mode = update_mode(vpa, default=self._default_mode)
        text = (
            f"VPA {vpa.metadata.name} has update mode {mode}: the recommendation is shown and never applied"
        )
        return Refusal(Reason.MODE_OFF if mode == OFF else Reason.NO_VPA, text)

    def _none(self, namespace: str, text: str) -> Choice:
        """No VPA; or is there one that cannot be read?"""
        for (where, name), poison in self._mirrors.vpas.poison.items():
            if where == namespace:
                why = f"{text}; VPA {name} is left out, it cannot be read: {poison.problem}"
                return Choice(None, Refusal(Reason.INVALID_VPA, why))
        return Choice(None, Refusal(Reason.NO_VPA, text))


def _no_controller(text: str) -> Choice:
    return Choice(None, Refusal(Reason.NO_CONTROLLER, text))
