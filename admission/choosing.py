"""Which VPA a new pod follows: found by its top-most controller, then by selector; the oldest wins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

from admission.index import Index
from admission.lineage import UNKNOWN, Lineage
from admission.mirrors import Mirrors
from vpa.cluster.connection import Connection
from vpa.cluster.discovery import Discovery
from vpa.cluster.errors import ClusterError
from vpa.cluster.owners import NODE, NodeOwnerError, Owners, Topmost, message_of
from vpa.cluster.scales import Scales
from vpa.cluster.targets import Targets
from vpa.cluster.workloads import OwnerKey, Record, Workloads
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


Question = tuple[str, Any]
Answers = dict[Question, Any]
"""What the API server was asked for one pod, and what it said."""


class _UnknownError(Exception):
    """The copies do not tell enough; *ask* gets the answer to *question*."""

    def __init__(self, question: Question, ask: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(question)
        self.question = question
        self.ask = ask


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

    def known(self, pod: Pod, namespace: str) -> Choice | None:
        """The VPA of *pod*, told from copies as it nearly always can be; None if somebody has to be asked."""
        try:
            return self._choice(pod, namespace, {})
        except _UnknownError:
            return None

    async def choose(self, pod: Pod, namespace: str, *, patience: float) -> Choice:
        """The same; what the copies do not tell is asked for, within *patience* seconds."""
        answers: Answers = {}
        owner = controller_of(pod.metadata) or OwnerReference()
        try:
            async with asyncio.timeout(patience):
                while True:
                    try:
                        return self._choice(pod, namespace, answers)
                    except _UnknownError as unknown:
                        answers[unknown.question] = await unknown.ask()
        except NodeOwnerError:
            return _no_controller("the pod's owners end at a node")
        except TimeoutError:
            why = f"{owner.kind} {owner.name} could not be looked up within {patience:g} s"
            return Choice(None, Refusal(Reason.OWNER_UNKNOWN, why))
        except ClusterError as error:
            why = f"{owner.kind} {owner.name} could not be looked up: {message_of(error)}"
            return Choice(None, Refusal(Reason.OWNER_UNKNOWN, why))

    def _choice(self, pod: Pod, namespace: str, answers: Answers) -> Choice:
        """The VPA of *pod*; `_UnknownError` where neither copies nor *answers* tell enough."""
        owner = controller_of(pod.metadata)
        if owner is None:
            return _no_controller("the pod has no controller, and a VPA targets controllers")
        if owner.kind == NODE:
            return _no_controller("the pod is a static pod, which only files of its node change")
        if not self._index.covers(namespace):
            return self._none(namespace, f"there is no VPA in namespace {namespace}")
        keys = self._controllers(namespace, owner, answers)
        return self._strongest(namespace, keys, pod, answers)

    def _controllers(self, namespace: str, owner: OwnerReference, answers: Answers) -> tuple[OwnerKey, ...]:
        """The top-most controller of a pod, and above it those that were passed over."""
        key = OwnerKey(namespace, owner.kind, owner.name, owner.api_version)
        below: OwnerKey | None = None
        if self._workloads.resource(key) is not None:
            if not self._index.may_lead_to(namespace, key.kind):
                return (key,)
            if key.kind in self._mirrors.between and not self._index.is_target(key.target):
                parent = self._parent(key, owner.uid, answers)
                if parent is None:
                    return (key,)
                key, below = parent, key
            if not self._matters(key):
                return (key,)
        return self._topmost(key, below, answers)

    def _parent(self, key: OwnerKey, uid: str, answers: Answers) -> OwnerKey | None:
        """The owner of a controller in between, which no VPA targets itself."""
        parent = self._lineage.owner(uid)
        if parent is not UNKNOWN:
            return parent
        question = ("parent", uid)
        if question not in answers:
            raise _UnknownError(question, lambda: self._ask_for_owner(key, uid))
        found: OwnerKey | None = answers[question]
        return found

    def _topmost(self, key: OwnerKey, below: OwnerKey | None, answers: Answers) -> tuple[OwnerKey, ...]:
        """The same from *key* upwards; *below* it is one that counts where none from *key* upwards does."""
        record = self._record(key)
        if record is not None and record.owner is None:
            return (key,)
        question = ("topmost", key)
        if question not in answers:
            raise _UnknownError(question, lambda: self._owners.topmost(key))
        top: Topmost = answers[question]
        highest = top.key or below
        return top.passed_over if highest is None else (highest, *top.passed_over)

    def _record(self, key: OwnerKey) -> Record | None:
        """What the copies have of a controller."""
        copy, resource = self._mirrors.controllers.get(key.kind), self._workloads.resource(key)
        record = copy.get((key.namespace, key.name)) if copy is not None else None
        same = record is not None and resource is not None and resource.group == record.key.group
        return record if same else None

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
        if self._mirrors.latecomers.has(key.namespace, key.kind):
            await self._mirrors.latecomers.read(key.namespace, key.kind)
            parent = self._lineage.owner(uid)
            if parent is not UNKNOWN:
                return parent
        record = await self._workloads.find(key)
        if record is None:
            raise ClusterError(f"{key.kind} {key.namespace}/{key.name} does not exist")
        if record.uid == uid:
            self._lineage.put(uid, record.owner)
        return record.owner

    def _strongest(self, namespace: str, keys: tuple[OwnerKey, ...], pod: Pod, answers: Answers) -> Choice:
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
            selector = self._selector(vpa, answers)
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

    def _selector(self, vpa: VerticalPodAutoscaler, answers: Answers) -> Selector | None:
        """Which pods are the target's; None if nobody can tell."""
        ref: TargetRef = vpa.spec.target_ref or TargetRef()
        namespace = vpa.metadata.namespace
        key = OwnerKey(namespace, ref.kind, ref.name, ref.api_version)
        record = self._record(key)
        if record is None:
            question = ("selector", key)
            if question not in answers:
                raise _UnknownError(question, lambda: self._targets.selector(namespace, ref))
            found: Selector | None = answers[question]
            return found
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
