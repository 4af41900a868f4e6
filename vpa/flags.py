"""Command-line flags as Go programs have them, described once by the fields of frozen dataclasses.

A *group* is a frozen dataclass whose fields are made by `flag`; the field's name, with dashes, is the flag's.
A `Table` joins groups; its `parse` reads arguments as upstream's binaries do (pflag with Go's flags in it):
``--name=value``, ``--name value``, ``--switch``, ``-v=4``, ``_`` for ``-``; the last one wins.
`Parsed.get` gives an instance of one group, `Parsed.fill` of a *bundle*, a dataclass whose fields are groups:
a service's ``Settings``, or the groups that one command of the CLI accepts.

    parsed = Table.of(Settings).parse(["--target-cpu-percentile=0.8"])
    settings = parsed.fill(Settings)
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar, cast, get_type_hints

from vpa.durations import Duration, PrometheusDuration
from vpa.gates import FeatureGates, parse_bool
from vpa.quantities import Quantity

T = TypeVar("T")
G = TypeVar("G", bound="Group")
B = TypeVar("B")

COMPATIBILITY = "compatibility"
"""The flag that chooses between our defaults and upstream's where a flag has both."""

GIVEN = "given"
"""The field of a bundle of groups that has the names of the flags that were given."""

SAFE = "safe"
UPSTREAM = "upstream"


class FlagError(ValueError):
    """Arguments that cannot be used; the text is one sentence for the user."""


class HelpRequested(Exception):  # noqa: N818 — asking for help is no error
    """``--help`` or ``-h`` was among the arguments."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How values of one type are written: *parse* raises ``ValueError`` with the reason."""

    name: str
    parse: Callable[[str], T]
    show: Callable[[T], str]
    bare: str | None = None
    """What a flag without a value means; None: it needs one."""
    merge: Callable[[T, T], T] | None = None
    """How a repeated flag adds up; None: the last one wins."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of a table."""

    name: str
    kind: Kind[Any]
    default: Any
    upstream: Any
    """The default under ``--compatibility=upstream``."""
    help: str
    inert: bool
    """Accepted, because upstream has it, without effect here."""
    secret: bool
    group: type[Group]
    field: str

    @property
    def shown_default(self) -> str:
        """The default as the help prints it."""
        return "" if self.default is None else self.kind.show(self.default)


class Group:
    """Base of the dataclasses whose fields are flags."""

    __slots__ = ()

    def problems(self) -> Iterator[str]:
        """Sentences about values that cannot be used together; any of them stops the program."""
        yield from ()

    def notices(self) -> Iterator[str]:
        """Sentences that the user should read, for example about deprecated flags."""
        yield from ()


def flag(
    default: Any,
    help: str,  # noqa: A002 — it is the flag's help
    *,
    kind: Kind[Any] | None = None,
    upstream: Any = dataclasses.MISSING,
    inert: bool = False,
    secret: bool = False,
) -> Any:
    """A field of a `Group`: its *default*, its *help* and, where the default does not tell, its *kind*.

    *upstream* is the default under ``--compatibility=upstream`` where it differs from ours.
    """
    chosen = kind or _KINDS[type(default)]
    other = default if upstream is dataclasses.MISSING else upstream
    metadata = {"kind": chosen, "help": help, "upstream": other, "inert": inert, "secret": secret}
    return dataclasses.field(default=default, metadata=metadata)


class Table:
    """The flags of one program."""

    def __init__(self, *groups: type[Group]) -> None:
        self.groups = groups
        self.flags: dict[str, Flag] = {}
        for group in groups:
            for flag_ in flags_of(group):
                if flag_.name in self.flags:
                    raise ValueError(f"the flag --{flag_.name} is in two groups")
                self.flags[flag_.name] = flag_

    @classmethod
    def of(cls, bundle: type[Any]) -> Table:
        """The table of a dataclass whose fields are groups."""
        return cls(*_groups_of(bundle).values())

    def parse(self, args: Sequence[str]) -> Parsed:
        """The values of *args*; `FlagError` for what cannot be used, `HelpRequested` for ``--help``."""
        given: dict[str, Any] = {}
        rest: list[str] = []
        ahead = iter(args)
        for arg in ahead:
            if arg == "--":
                rest.extend(ahead)
            elif len(arg) < 2 or not arg.startswith("-"):
                rest.append(arg)
            else:
                flag_, text, shown = self._one(arg, ahead)
                try:
                    value = flag_.kind.parse(text)
                except ValueError as error:
                    raise FlagError(f'invalid argument "{text}" for "{shown}" flag: {error}') from None
                if flag_.kind.merge is not None and flag_.name in given:
                    value = flag_.kind.merge(given[flag_.name], value)
                given[flag_.name] = value
        parsed = Parsed(table=self, given=given, rest=tuple(rest))
        for problem in parsed.problems():
            raise FlagError(problem)
        return parsed

    def _one(self, arg: str, ahead: Iterator[str]) -> tuple[Flag, str, str]:
        """The flag of *arg*, its value (perhaps the next argument) and how messages name it."""
        if arg.startswith("--"):
            name, equals, text = arg[2:].partition("=")
            if not name or name.startswith("-"):
                raise FlagError(f"bad flag syntax: {arg}")
            name = name.replace("_", "-")
            found = self.flags.get(name)
            if found is None and name == "help":
                raise HelpRequested
            if found is None:
                raise FlagError(f"unknown flag: --{name}{self._meant(name)}")
            shown = f"--{name}"
        else:
            name, text = arg[1], arg[2:]
            found = self.flags.get(name)
            if found is None and name == "h":
                raise HelpRequested
            if found is None:
                hint = f" (long flags begin with two dashes: -{arg})" if len(arg) > 2 else ""
                raise FlagError(f"unknown shorthand flag: '{name}' in {arg}{hint}")
            shown = f"-{name}, --{name}"
            equals = text[:1] if text[:1] == "=" else text and "="
            text = text.removeprefix("=")
        if equals:
            return found, text, shown
        if found.kind.bare is not None:
            return found, found.kind.bare, shown
        value = next(ahead, None)
        if value is None:
            raise FlagError(f"flag needs an argument: {arg}")
        return found, value, shown

    def _meant(self, name: str) -> str:
        close = difflib.get_close_matches(name, self.flags, n=1, cutoff=0.75)
        return f" (did you mean --{close[0]}?)" if close else ""

    def help(self, *, width: int = 100) -> str:
        """All flags by group, with types, what they do and their defaults."""
        lines: list[str] = []
        for group in self.groups:
            lines += ["", f"{(group.__doc__ or group.__name__).splitlines()[0]}", ""]
            for item in flags_of(group):
                head = f"-{item.name}, --{item.name}" if len(item.name) == 1 else f"--{item.name}"
                lines.append(f"  {head} {item.kind.name if item.kind.bare is None else ''}".rstrip())
                lines += textwrap.wrap(
                    _described(item), width, initial_indent=" " * 6, subsequent_indent=" " * 6
                )
        return "\n".join(lines[1:])


@dataclass(frozen=True, slots=True)
class Parsed:
    """The values of one command line."""

    table: Table
    given: dict[str, Any]
    """Name → value of the flags that were given, so that an explicit value can be told from a default."""
    rest: tuple[str, ...]
    """Arguments that are no flags. Upstream ignores them, so the services only say so."""

    def value(self, flag_: Flag) -> Any:
        """The value of one flag: given, else the default that belongs to the chosen compatibility."""
        if flag_.name in self.given:
            return self.given[flag_.name]
        return flag_.upstream if self.given.get(COMPATIBILITY) == UPSTREAM else flag_.default

    def get(self, group: type[G]) -> G:
        """The group's flags as an instance of it."""
        return group(**{item.field: self.value(item) for item in flags_of(group)})

    def fill(self, bundle: type[B]) -> B:
        """An instance of a dataclass whose fields are groups of this table.

        A field ``given``, if it has one, gets the names of the flags that were given.
        """
        values: dict[str, Any] = {name: self.get(group) for name, group in _groups_of(bundle).items()}
        if GIVEN in get_type_hints(bundle):
            values[GIVEN] = frozenset(self.given)
        return bundle(**values)

    def problems(self) -> Iterator[str]:
        """What the groups themselves object to."""
        for group in self.table.groups:
            yield from self.get(group).problems()

    def notices(self) -> Iterator[str]:
        """What the user should be told once, at start."""
        for name, value in self.given.items():
            if self.table.flags[name].inert and value != self.table.flags[name].default:
                yield f"--{name} is accepted but has no effect"
        for group in self.table.groups:
            yield from self.get(group).notices()
        for text in self.rest:
            yield f'the argument "{text}" is no flag and is ignored'

    def lines(self) -> Iterator[str]:
        """Every flag with its value, as upstream logs them at start; secrets are blotted out."""
        for name in sorted(self.table.flags):
            item = self.table.flags[name]
            value = self.value(item)
            shown = "" if value is None else item.kind.show(value)
            yield f'FLAG: --{name}="{"***" if item.secret and shown else shown}"'


def flags_of(group: type[Group]) -> list[Flag]:
    """The flags of one group in the order of its fields."""
    return [
        Flag(
            name=field.name.replace("_", "-"),
            default=field.default,
            group=group,
            field=field.name,
            **field.metadata,
        )
        for field in dataclasses.fields(cast(Any, group))
        if "kind" in field.metadata
    ]


def _groups_of(bundle: type[Any]) -> dict[str, type[Group]]:
    hints = get_type_hints(bundle)
    return {field.name: hints[field.name] for field in dataclasses.fields(bundle) if field.name != GIVEN}


def one_of(*words: str) -> Kind[str]:
    """A word out of a list."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"use one of {', '.join(words)}")
        return text

    return Kind("|".join(words), parse, str)


def show_float(value: float) -> str:
    """A float as Go prints it: shortest digits, exponent form from 1e+06 on and below 0.0001."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    exact = Decimal(repr(value)).normalize()
    power = exact.adjusted()
    if -4 <= power < 6:
        return f"{exact:f}"
    sign, digits, _ = exact.as_tuple()
    mantissa = f"{digits[0]}.{''.join(map(str, digits[1:]))}".rstrip(".")
    return f"{'-' * sign}{mantissa}e{power:+03d}"


def _described(item: Flag) -> str:
    """The help with the default; None, empty and false say nothing, as in Go programs."""
    parts = [item.help]
    if item.inert:
        parts.append("(accepted, no effect)")
    shown = item.shown_default
    if shown not in ("", "false"):
        parts.append(f"(default {shown})")
    if item.upstream != item.default:
        other = "unset" if item.upstream is None else item.kind.show(item.upstream)
        parts.append(f"(under --{COMPATIBILITY}={UPSTREAM}: {other})")
    return " ".join(parts)


def _parse_int(text: str) -> int:
    """Go's integers: decimal, or with the prefix 0x, 0o, 0b or 0, in 64 bits."""
    try:
        digits = text.lstrip("+-")
        octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
        value = int(text, 8 if octal else 0)
    except ValueError:
        raise ValueError("a whole number is wanted") from None
    if not -(2**63) <= value < 2**63 or text != text.strip():
        raise ValueError("a whole number of 64 bits is wanted")
    return value


def _parse_float(text: str) -> float:
    try:
        if "_" in text or text != text.strip():
            raise ValueError
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        raise ValueError("a number is wanted") from None


BOOL: Kind[bool] = Kind("bool", parse_bool, lambda value: str(value).lower(), bare="true")
INT: Kind[int] = Kind("int", _parse_int, str)
FLOAT: Kind[float] = Kind("float", _parse_float, show_float)
STRING: Kind[str] = Kind("string", str, str)
DURATION: Kind[Duration] = Kind("duration", Duration.parse, str)
PROMETHEUS_DURATION: Kind[PrometheusDuration] = Kind("prometheus-duration", PrometheusDuration.parse, str)
QUANTITY: Kind[Quantity | None] = Kind("quantity", Quantity.parse, str)
GATES: Kind[FeatureGates] = Kind("gates", FeatureGates.parse, str, merge=FeatureGates.merge)

_KINDS: dict[type, Kind[Any]] = {
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: STRING,
    Duration: DURATION,
    PrometheusDuration: PROMETHEUS_DURATION,
    FeatureGates: GATES,
}
