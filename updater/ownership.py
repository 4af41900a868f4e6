"""Whose the pods are: for each VPA its pods, found by their top-most controller and its selector."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from updater.mirrors import Mirrors
from vpa import modes
from vpa.cluster.owners import OwnerError, Owners
from vpa.cluster.targets import Target, Targets
from vpa.cluster.workloads import OwnerKey, Record, controller_of
from vpa.disruptions import Managed
from vpa.matching import UPDATER, TargetKey, age_order, takes_part
from vpa.objects.autoscalers import VerticalPodAutoscaler
from vpa.objects.pods import Pod
from vpa.objects.workloads import WELL_KNOWN
from vpa.rules import Rules
from vpa.selectors import Selector
from vpa.settings import Behaviour, Selection
from vpa.telemetry import logs

log = logging.getLogger(__name__)

VpaKey = tuple[str, str]
"""Namespace and name of a VPA."""

TARGETS_AT_A_TIME: Final = 10
OFTEN: Final = 500
"""So many owners are looked up before others may run."""


class PodIndex:
    """The pods of the copy by their direct controller."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._by_owner: dict[OwnerKey, dict[str, Pod]] = {}
        mirrors.pods.subscribe(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            owner = controller_of(old.metadata)
            pods = self._by_owner.get(owner) if owner is not None else None
            if owner is not None and pods is not None:
                pods.pop(old.metadata.name, None)
                if not pods:
                    del self._by_owner[owner]
        if new is not None:
            owner = controller_of(new.metadata)
            if owner is not None:
                self._by_owner.setdefault(owner, {})[new.metadata.name] = new

    def owners(self) -> list[OwnerKey]:
        return list(self._by_owner)

    def of(self, owner: OwnerKey) -> Collection[Pod]:
        """The pods of one controller, ended and terminating ones too."""
        return self._by_owner.get(owner, {}).values()

    def of_kinds(self, *kinds: str) -> list[Pod]:
        """The pods whose controller is of one of *kinds*."""
        return [pod for owner, pods in self._by_owner.items() if owner.kind in kinds for pod in pods.values()]


@dataclass(slots=True)
class _Found:
    """What is known of one VPA at the moment."""

    pods: list[Pod] = field(default_factory=list)
    owners: set[OwnerKey] = field(default_factory=set)
    rivals: set[str] = field(default_factory=set)

    def add(self, more: _Found) -> None:
        """Join what was found of another owner."""
        self.pods += more.pods
        self.owners |= more.owners
        self.rivals |= more.rivals


class _Candidate(NamedTuple):
    """A VPA that targets a controller."""

    vpa: VerticalPodAutoscaler
    selector: Selector
    takes_part: bool


class Ownership:
    """Resolves targets and owners, and keeps what does not change."""

    def __init__(
        self,
        mirrors: Mirrors,
        index: PodIndex,
        *,
        owners: Owners,
        targets: Targets,
        rules: Rules,
        behaviour: Behaviour,
        selection: Selection,
    ) -> None:
        self._mirrors = mirrors
        self._index = index
        self._owners = owners
        self._targets = targets
        self._rules = rules
        self._behaviour = behaviour
        self._selection = selection
        self._resolved: dict[VpaKey, Target] = {}
        self._by_target: dict[TargetKey, list[VpaKey]] = {}
        self.without_part: Counter[str] = Counter()
        """Update mode → pods whose VPA does not take part because of that mode; after `all`."""
        self._top: dict[OwnerKey, OwnerKey | None] = {}
        """The last good answer about each direct owner, for when the next look-up fails."""
        self._owners_of: dict[VpaKey, set[OwnerKey]] = {}
        mirrors.vpas.subscribe(self._vpa_changed)
        for mirror in mirrors.workloads.values():
            mirror.subscribe(self._workload_changed)

    # News

    def _vpa_changed(self, old: VerticalPodAutoscaler | None, new: VerticalPodAutoscaler | None) -> None:
        if old is not None and (new is None or new.spec.target_ref != old.spec.target_ref):
            self._resolved.pop(key_of(old), None)

    def _workload_changed(self, old: Record | None, new: Record | None) -> None:
        record = new or old
        if record is None or (old is not None and new is not None and _is_same(old, new)):
            return
        for key in self._by_target.get(record.key.target, ()):
            self._resolved.pop(key, None)

    # Look-ups

    async def resolve(self) -> None:
        """Look up the targets of all VPAs as far as they may have changed."""
        present = {
            key: vpa
            for key, vpa in self._mirrors.vpas.items()
            if vpa.spec.target_ref is not None and self._selection.handles(key[0])
        }
        for key in self._resolved.keys() - present.keys():
            del self._resolved[key]
        slots = asyncio.Semaphore(TARGETS_AT_A_TIME)

        async def look_up(vpa: VerticalPodAutoscaler) -> None:
            async with slots:
                found = await self._targets.resolve(vpa.metadata.namespace, vpa.spec.target_ref)
            self._take(key_of(vpa), found)

        due = [vpa for key, vpa in present.items() if _may_have_changed(vpa, self._resolved.get(key))]
        await asyncio.gather(*map(look_up, due))
        self._by_target = defaultdict(list)
        for key, target in self._resolved.items():
            if target.key is not None:
                self._by_target[target.key.target].append(key)

    def _take(self, key: VpaKey, found: Target) -> None:
        before = self._resolved.get(key)
        if found.temporary and before is not None and not before.problem:
            return  # what was known is still the best guess
        if found.problem and (before is None or before.problem != found.problem):
            log.log(logs.V3, "VPA %s/%s is left out: %s", *key, found.problem)
        self._resolved[key] = found

    async def all(self) -> list[Managed]:
        """Every VPA that takes part and has pods, with them."""
        owners = self._index.owners()
        namespaces = {namespace for namespace, _ in self._resolved}
        without_part: Counter[str] = Counter()
        mine = [owner for owner in owners if owner.namespace in namespaces]
        found = await self._assign(mine, without_part)
        self.without_part = without_part
        self._owners_of = {key: one.owners for key, one in found.items()}
        for owner in self._top.keys() - set(owners):
            del self._top[owner]
        return self._managed(found)

    async def some(
        self, owners: Collection[OwnerKey], *, among: Collection[VpaKey] | None = None
    ) -> list[Managed]:
        """The same for the VPAs of the pods of direct *owners* alone, and of these for *among* alone."""
        found = await self._assign(owners)
        keys = found.keys() if among is None else found.keys() & among
        return await self._complete({key: found[key] for key in keys})

    async def of_keys(self, keys: Iterable[VpaKey]) -> list[Managed]:
        """The same for the VPAs of *keys* alone, with the pods of those owners that are known as theirs."""
        return await self._complete({key: _Found() for key in keys})

    async def _complete(self, found: dict[VpaKey, _Found]) -> list[Managed]:
        """Add the pods of all other known owners of the same VPAs."""
        others = {
            owner for key, one in found.items() for owner in self._owners_of.get(key, set()) - one.owners
        }
        for key, more in (await self._assign(others)).items():
            if key in found:
                found[key].add(more)
        for key, one in found.items():
            self._owners_of.setdefault(key, set()).update(one.owners)
        return self._managed({key: one for key, one in found.items() if one.pods})

    async def _assign(
        self, owners: Iterable[OwnerKey], without_part: Counter[str] | None = None
    ) -> dict[VpaKey, _Found]:
        """The VPAs of the pods of *owners*; *without_part* counts pods by the mode that keeps theirs out."""
        found: dict[VpaKey, _Found] = defaultdict(_Found)
        for number, owner in enumerate(owners):
            if number % OFTEN == 0:
                await asyncio.sleep(0)
            top = await self._topmost(owner)
            vpas = self._candidates(top) if top is not None else []
            if not vpas:
                continue
            for pod in self._index.of(owner):
                matching = [one for one in vpas if one.selector.matches(pod.metadata.labels)]
                competing = [one.vpa for one in matching if one.takes_part]
                if competing:
                    one = found[key_of(competing[0])]
                    one.pods.append(pod)
                    one.owners.add(owner)
                    one.rivals.update(vpa.metadata.name for vpa in competing[1:])
                elif matching and without_part is not None:
                    mode = modes.update_mode(matching[0].vpa, default=self._behaviour.default_update_mode)
                    without_part[mode] += 1
        return found

    def _candidates(self, top: OwnerKey) -> list[_Candidate]:
        """The VPAs that target *top*, the strongest first."""
        found = []
        for key in self._by_target.get(top.target, ()):
            vpa, target = self._mirrors.vpas.get(key), self._resolved.get(key)
            if vpa is None or target is None or target.key is None or target.problem:
                continue
            if not self._rules.kinds_by_group or target.key.group == top.group:
                found.append(_Candidate(vpa, target.selector, self._takes_part(vpa)))
        return sorted(found, key=lambda one: age_order(one.vpa)) if len(found) > 1 else found

    def _takes_part(self, vpa: VerticalPodAutoscaler) -> bool:
        return takes_part(
            vpa,
            service=UPDATER,
            rules=self._rules,
            gates=self._behaviour.feature_gates,
            default_mode=self._behaviour.default_update_mode,
        )

    async def _topmost(self, owner: OwnerKey) -> OwnerKey | None:
        try:
            top = (await self._owners.topmost(owner)).key
        except OwnerError as error:
            if error.temporary and owner in self._top:
                return self._top[owner]
            if owner not in self._top:
                log.log(
                    logs.V3, "The controllers above %s %s are not known: %s", owner.kind, owner.name, error
                )
            top = None
        self._top[owner] = top
        return top

    def _managed(self, found: dict[VpaKey, _Found]) -> list[Managed]:
        result = []
        for key, one in found.items():
            vpa = self._mirrors.vpas.get(key)
            if vpa is not None:
                pods = sorted(one.pods, key=lambda pod: pod.metadata.name)
                result.append(Managed(vpa=vpa, pods=pods, rivals=tuple(sorted(one.rivals))))
        return result


def key_of(vpa: VerticalPodAutoscaler) -> VpaKey:
    return vpa.metadata.namespace, vpa.metadata.name


def _may_have_changed(vpa: VerticalPodAutoscaler, known: Target | None) -> bool:
    """No watch tells of targets of other kinds, nor what has become of a problem."""
    ref = vpa.spec.target_ref
    return known is None or bool(known.problem) or (ref is not None and ref.kind not in WELL_KNOWN)


def _is_same(old: Record, new: Record) -> bool:
    return (old.uid, old.owner, old.selector) == (new.uid, new.owner, new.selector)
