"""Feature gates: ``--feature-gates=PerVPAConfig=true,AllAlpha=false``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ALPHA = {"CPUStartupBoost": False, "InPlace": False, "PerVPAConfig": False}
"""The gates of upstream 1.8 with their defaults; all are alpha."""

BETA: dict[str, bool] = {}

REMOVED = {"InPlaceOrRecreate": "the mode is always available"}
"""Gates that older releases had, with what is true now; manifests that still name them must start."""

GROUPS = {"AllAlpha": ALPHA, "AllBeta": BETA}

_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


def parse_bool(text: str) -> bool:
    """Go's ``strconv.ParseBool``."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f'"{text}" is neither true nor false')


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """Which gates were set, by name; what nobody set has its default."""

    given: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, text: str) -> FeatureGates:
        """Read ``A=true,B=false``; a gate that never existed is a ``ValueError``."""
        given: dict[str, bool] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not name and not equals:
                continue
            if name not in ALPHA and name not in BETA and name not in GROUPS and name not in REMOVED:
                known = ", ".join(sorted({*ALPHA, *BETA, *GROUPS}))
                raise ValueError(f"unrecognized feature gate: {name}; known gates are {known}")
            if not equals:
                raise ValueError(f"missing bool value for {name}; write {name}=true or {name}=false")
            try:
                given[name] = parse_bool(value)
            except ValueError as error:
                raise ValueError(f"invalid value of {name}: {error}") from None
        return cls(MappingProxyType(given))

    def merge(self, later: FeatureGates) -> FeatureGates:
        """Both together, as when the flag is given twice; the later one wins."""
        return FeatureGates(MappingProxyType({**self.given, **later.given}))

    def enabled(self, name: str) -> bool:
        """Whether the gate is on: set by name, else by its group, else by default."""
        if name in self.given:
            return self.given[name]
        for group, members in GROUPS.items():
            if name in members:
                return self.given.get(group, members[name])
        raise KeyError(name)

    @property
    def cpu_startup_boost(self) -> bool:
        return self.enabled("CPUStartupBoost")

    @property
    def in_place(self) -> bool:
        return self.enabled("InPlace")

    @property
    def per_vpa_config(self) -> bool:
        return self.enabled("PerVPAConfig")

    def notices(self) -> Iterator[str]:
        """One sentence for each gate that no longer exists."""
        for name in self.given:
            if name in REMOVED:
                yield f"the feature gate {name} no longer exists and is ignored: {REMOVED[name]}"

    def __str__(self) -> str:
        return ",".join(f"{name}={str(value).lower()}" for name, value in sorted(self.given.items()))
