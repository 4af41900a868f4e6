"""From the cluster at one moment to a plan; and the look at new pods before it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime

from updater.settings import Settings
from updater.surroundings import World, lowering
from vpa import disruptions
from vpa.disruptions import Managed, Memory, Options, Plan, Surroundings
from vpa.updates.breakers import Finding


class Decider:
    """Asks the core. One question at a time, since answers change what is remembered."""

    def __init__(
        self, settings: Settings, world: World, memory: Memory, *, now: Callable[[], datetime]
    ) -> None:
        self._rules = settings.rules
        self._world = world
        self._memory = memory
        self._now = now
        self._options = Options(
            behaviour=settings.behaviour,
            updating=settings.updating,
            sizing=settings.sizing,
            rules=settings.rules,
        )
        self._asking = asyncio.Lock()

    async def look(self, managed: Sequence[Managed], surroundings: Surroundings) -> list[Finding]:
        """Do new pods in place of evicted ones carry their target?"""
        async with self._asking:
            return self._observe(managed, surroundings)

    async def decide(
        self, managed: Sequence[Managed], surroundings: Surroundings
    ) -> tuple[Plan, Surroundings, list[Finding]]:
        """The plan, what it was made from, and what was seen of new pods."""
        async with self._asking:
            findings = self._observe(managed, surroundings)
            plan = await self._plan(managed, surroundings)
            if self._rules.keep_memory_limit_above_use:
                plan, surroundings = await self._with_use(managed, surroundings, plan)
        return plan, surroundings, findings

    async def _with_use(
        self, managed: Sequence[Managed], surroundings: Surroundings, plan: Plan
    ) -> tuple[Plan, Surroundings]:
        """Where memory limits are lowered, the same once more with what is in use there."""
        use: dict[tuple[str, str, str], int] = {}
        asked: set[str] = set()
        while namespaces := lowering(plan) - asked:
            found = await self._world.memory_use(namespaces, self._now())
            if found is None:
                break
            asked |= namespaces
            use.update(found)
            surroundings = dataclasses.replace(surroundings, memory_use=use)
            plan = await self._plan(managed, surroundings)
        return plan, surroundings

    async def _plan(self, managed: Sequence[Managed], surroundings: Surroundings) -> Plan:
        """In a thread, so that watches and leases go on meanwhile: it takes seconds for 100,000 pods."""
        return await asyncio.to_thread(
            disruptions.plan, managed, surroundings, self._memory, now=self._now(), options=self._options
        )

    def _observe(self, managed: Sequence[Managed], surroundings: Surroundings) -> list[Finding]:
        now = self._now()
        return [
            finding
            for one in managed
            for finding in disruptions.observe(
                one, surroundings, self._memory, now=now, options=self._options
            )
        ]
