"""The syntax of flags, as Go programs have it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from vpa import flags, rules, settings
from vpa.durations import DAY, HOUR, Duration, PrometheusDuration
from vpa.flags import QUANTITY, FlagError, Group, HelpRequested, Table, flag
from vpa.gates import FeatureGates
from vpa.quantities import Quantity


@dataclass(frozen=True, kw_only=True, slots=True)
class Example(Group):
    """Every kind of flag."""

    fraction: float = flag(0.15, "A share.")
    saver: bool = flag(False, "A switch.")
    worker_count: int = flag(10, "A number.")
    interval: Duration = flag(Duration.of(minutes=1), "A time.")
    length: PrometheusDuration = flag(PrometheusDuration.parse("8d"), "A long time.")
    address: str = flag(":8942", "A text.")
    token: str = flag("", "A secret.", secret=True)
    most: Quantity | None = flag(None, "An amount.", kind=QUANTITY)
    feature_gates: FeatureGates = flag(FeatureGates(), "Gates.")
    log_dir: str = flag("", "Of no use here.", inert=True)
    v: int = flag(4, "Verbosity.")


TABLE = Table(Example)


def read(*args: str) -> Example:
    return TABLE.parse(args).get(Example)


def sentence(*args: str) -> str:
    with pytest.raises(FlagError) as caught:
        TABLE.parse(args)
    return str(caught.value)


def test_without_arguments_every_flag_has_its_default() -> None:
    assert read() == Example()


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (["--fraction=0.2"], "fraction", 0.2),
        (["--fraction", "0.2"], "fraction", 0.2),
        (["--fraction=1e-3"], "fraction", 0.001),
        (["--fraction=0x1p-2"], "fraction", 0.25),
        (["--worker-count=20"], "worker_count", 20),
        (["--worker_count=20"], "worker_count", 20),
        (["--worker_count", "0x10"], "worker_count", 16),
        (["--worker-count=010"], "worker_count", 8),
        (["--worker-count=-1"], "worker_count", -1),
        (["--worker-count", "-1"], "worker_count", -1),
        (["--saver"], "saver", True),
        (["--saver=true"], "saver", True),
        (["--saver=T"], "saver", True),
        (["--saver=1"], "saver", True),
        (["--saver=false"], "saver", False),
        (["--saver", "--saver=0"], "saver", False),
        (["--interval=1h30m"], "interval", Duration(90 * 60 * 10**9)),
        (["--interval=0"], "interval", Duration(0)),
        (["--length=1w2d"], "length", PrometheusDuration(9 * DAY)),
        (["--address=127.0.0.1:8942"], "address", "127.0.0.1:8942"),
        (["--address="], "address", ""),
        (["--address", ""], "address", ""),
        (["--address", "--saver"], "address", "--saver"),
        (["--address=a=b"], "address", "a=b"),
        (["--most=1500m"], "most", Quantity.parse("1500m")),
        (["-v=2"], "v", 2),
        (["-v", "2"], "v", 2),
        (["-v2"], "v", 2),
        (["--v=2"], "v", 2),
        (["--v", "2", "--v=3"], "v", 3),
    ],
)
def test_values_are_written_as_in_go_programs(args: list[str], name: str, value: object) -> None:
    assert getattr(read(*args), name) == value


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--nonsense"], "unknown flag: --nonsense"),
        (["--worker-counts=1"], "unknown flag: --worker-counts (did you mean --worker-count?)"),
        (["-x"], "unknown shorthand flag: 'x' in -x"),
        (
            ["-kubeconfig=f"],
            "unknown shorthand flag: 'k' in -kubeconfig=f (long flags begin with two dashes: --kubeconfig=f)",
        ),
        (["--=x"], "bad flag syntax: --=x"),
        (["---v=1"], "bad flag syntax: ---v=1"),
        (["--fraction"], "flag needs an argument: --fraction"),
        (["-v"], "flag needs an argument: -v"),
        (["--fraction=much"], 'invalid argument "much" for "--fraction" flag: a number is wanted'),
        (["--fraction=1_0"], 'invalid argument "1_0" for "--fraction" flag: a number is wanted'),
        (["-v=x"], 'invalid argument "x" for "-v, --v" flag: a whole number is wanted'),
        (
            ["--worker-count=1.5"],
            'invalid argument "1.5" for "--worker-count" flag: a whole number is wanted',
        ),
        (["--saver=yes"], 'invalid argument "yes" for "--saver" flag: "yes" is neither true nor false'),
        (
            ["--interval=1d"],
            'invalid argument "1d" for "--interval" flag: unknown unit "d" in the duration "1d"; '
            "Go's units are ns, us, ms, s, m, h",
        ),
        (
            ["--length=1.5d"],
            'invalid argument "1.5d" for "--length" flag: "1.5d" is not a Prometheus duration; write whole '
            "numbers with the units y, w, d, h, m, s, ms, longest first, such as 8d or 1h30m",
        ),
        (
            ["--feature-gates=Nonsense=true"],
            'invalid argument "Nonsense=true" for "--feature-gates" flag: unrecognized feature gate: '
            "Nonsense; known gates are AllAlpha, AllBeta, CPUStartupBoost, InPlace, PerVPAConfig",
        ),
        (
            ["--feature-gates=InPlace"],
            'invalid argument "InPlace" for "--feature-gates" flag: missing bool value for InPlace; '
            "write InPlace=true or InPlace=false",
        ),
    ],
)
def test_what_cannot_be_used_is_named_in_one_sentence(args: list[str], message: str) -> None:
    assert sentence(*args) == message


def test_a_quantity_that_is_none_is_refused() -> None:
    assert sentence("--most=much").startswith('invalid argument "much" for "--most" flag: ')


def test_arguments_that_are_no_flags_are_ignored_with_a_notice_as_upstream_ignores_them() -> None:
    parsed = TABLE.parse(["--saver", "true", "--", "--worker-count=1"])
    assert parsed.get(Example) == Example(saver=True)
    assert list(parsed.notices()) == [
        'the argument "true" is no flag and is ignored',
        'the argument "--worker-count=1" is no flag and is ignored',
    ]


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["--saver", "--help"]])
def test_asking_for_help_is_told_apart_from_errors(args: list[str]) -> None:
    with pytest.raises(HelpRequested):
        TABLE.parse(args)


def test_the_help_shows_every_flag_with_its_type_and_default_within_the_width() -> None:
    text = TABLE.help(width=60)
    for name in TABLE.flags:
        assert f"--{name}" in text
    assert "  --interval duration\n      A time. (default 1m0s)" in text
    assert "  --saver\n      A switch.\n" in text
    assert "  -v, --v int\n      Verbosity. (default 4)" in text
    assert max(map(len, text.splitlines())) <= 60


def test_a_flag_without_effect_is_accepted_and_said_once_when_it_is_set() -> None:
    assert list(TABLE.parse(["--log-dir=/var/log"]).notices()) == ["--log-dir is accepted but has no effect"]
    assert list(TABLE.parse(["--log-dir="]).notices()) == []


def test_every_value_is_listed_for_the_log_and_secrets_are_not() -> None:
    lines = list(TABLE.parse(["--token=s3cret", "--fraction=0.2"]).lines())
    assert 'FLAG: --fraction="0.2"' in lines
    assert 'FLAG: --token="***"' in lines
    assert 'FLAG: --interval="1m0s"' in lines
    assert 'FLAG: --most=""' in lines
    assert lines == sorted(lines)
    assert len(lines) == len(TABLE.flags)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.15, "0.15"),
        (25.0, "25"),
        (50.0, "50"),
        (104857600.0, "1.048576e+08"),
        (1e6, "1e+06"),
        (123456.0, "123456"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-1.0, "-1"),
        (-2.5e-7, "-2.5e-07"),
        (0.0, "0"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
        (1e100, "1e+100"),
    ],
)
def test_floats_are_printed_as_go_prints_them(value: float, text: str) -> None:
    assert flags.show_float(value) == text


@pytest.mark.parametrize(
    ("text", "nanoseconds", "printed"),
    [
        ("0", 0, "0s"),
        ("5s", 5 * 10**9, "5s"),
        ("+5s", 5 * 10**9, "5s"),
        ("-1.5h", -90 * 60 * 10**9, "-1h30m0s"),
        ("24h0m0s", DAY, "24h0m0s"),
        ("1h30m", HOUR + HOUR // 2, "1h30m0s"),
        ("2m", 120 * 10**9, "2m0s"),
        ("100ms", 10**8, "100ms"),
        ("1.5ms", 1_500_000, "1.5ms"),
        (".5s", 5 * 10**8, "500ms"),
        ("5.s", 5 * 10**9, "5s"),
        ("1µs", 1000, "1µs"),
        ("1us", 1000, "1µs"),
        ("7ns", 7, "7ns"),
        ("1h1m1.001s", HOUR + 61_001_000_000, "1h1m1.001s"),
        ("0.000000001s", 1, "1ns"),
    ],
)
def test_go_durations_are_read_and_printed_exactly(text: str, nanoseconds: int, printed: str) -> None:
    duration = Duration.parse(text)
    assert duration == nanoseconds
    assert str(duration) == printed
    assert Duration.parse(printed) == duration


@pytest.mark.parametrize("text", ["", "5", "s", ".s", "1h-5m", "1 h", "h1", "1d", "+", "1e3s", "300000000h"])
def test_what_go_refuses_as_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("text", "length", "printed"),
    [
        ("8d", 8 * DAY, "8d"),
        ("1h30m", HOUR + HOUR // 2, "1h30m"),
        ("60m", HOUR, "1h"),
        ("2w", 14 * DAY, "2w"),
        ("1y1ms", 365 * DAY + 10**6, "365d1ms"),
        ("0", 0, "0s"),
        ("100ms", 10**8, "100ms"),
    ],
)
def test_prometheus_durations_are_read_and_printed(text: str, length: int, printed: str) -> None:
    assert PrometheusDuration.parse(text) == length
    assert str(PrometheusDuration.parse(text)) == printed


@pytest.mark.parametrize("text", ["", "8", "1m1h", "1.5d", "-1d", "d", "1h 5m", "300y"])
def test_what_prometheus_refuses_as_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        PrometheusDuration.parse(text)


def test_seconds_of_a_duration_serve_timers() -> None:
    assert Duration.of(minutes=1, seconds=0.5).seconds == 60.5


def test_gates_are_off_unless_named_or_their_group_is_named() -> None:
    assert not FeatureGates().per_vpa_config
    assert FeatureGates.parse("PerVPAConfig=true").per_vpa_config
    assert not FeatureGates.parse("PerVPAConfig=true").in_place
    assert FeatureGates.parse("AllAlpha=true").cpu_startup_boost
    assert not FeatureGates.parse("AllBeta=true").cpu_startup_boost
    assert not FeatureGates.parse("AllAlpha=true,InPlace=false").in_place
    assert FeatureGates.parse(" InPlace = true , ").in_place
    assert FeatureGates.parse("") == FeatureGates()


def test_gates_given_twice_add_up() -> None:
    gates = read(
        "--feature-gates=InPlace=true,PerVPAConfig=true", "--feature-gates=InPlace=false"
    ).feature_gates
    assert not gates.in_place
    assert gates.per_vpa_config
    assert str(gates) == "InPlace=false,PerVPAConfig=true"


def test_a_gate_that_was_removed_is_accepted_with_one_notice() -> None:
    parsed = Table(settings.Behaviour).parse(["--feature-gates=InPlaceOrRecreate=true"])
    assert list(parsed.notices()) == [
        "the feature gate InPlaceOrRecreate no longer exists and is ignored: the mode is always available"
    ]


def test_compatibility_chooses_defaults_and_an_explicit_flag_wins() -> None:
    table = Table(settings.Behaviour, settings.StatusWrites)
    assert table.parse([]).get(settings.StatusWrites).status_write_threshold == 0.01
    assert table.parse(["--compatibility=upstream"]).get(settings.StatusWrites).status_write_threshold == 0
    explicit = table.parse(["--status-write-threshold=0.5", "--compatibility=upstream"])
    assert explicit.get(settings.StatusWrites).status_write_threshold == 0.5
    with pytest.raises(FlagError, match="use one of safe, upstream"):
        table.parse(["--compatibility=other"])


def test_every_rule_is_a_flag_that_the_presets_set() -> None:
    table = Table(settings.Behaviour, rules.Rules)
    assert table.parse([]).get(rules.Rules) == rules.preset("safe")
    assert table.parse(["--compatibility=upstream"]).get(rules.Rules) == rules.preset("upstream")
    for item in flags.flags_of(rules.Rules):
        off = table.parse([f"--{item.name}=false"]).get(rules.Rules)
        assert off == rules.preset("safe").override(**{item.field: False})
        assert item.help


def test_a_rule_without_a_flag_does_not_exist() -> None:
    assert [item.field for item in flags.flags_of(rules.Rules)] == [
        field.name for field in dataclasses.fields(rules.Rules)
    ]


def test_a_flag_in_two_groups_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="--fraction is in two groups"):
        Table(Example, Example)


def test_namespaces_may_be_chosen_or_ignored_but_not_both() -> None:
    table = Table(settings.Selection)
    with pytest.raises(FlagError, match="mutually exclusive"):
        table.parse(["--vpa-object-namespace=a", "--ignored-vpa-object-namespaces=b"])
    ignoring = table.parse(["--ignored-vpa-object-namespaces=a,b"]).get(settings.Selection)
    assert [ignoring.handles(name) for name in ("a", "b", "c")] == [False, False, True]
    one = table.parse(["--vpa-object-namespace=a"]).get(settings.Selection)
    assert [one.handles(name) for name in ("a", "c")] == [True, False]


@pytest.mark.parametrize(
    "name",
    [
        "memory-aggregation-interval",
        "cpu-histogram-decay-half-life",
        "memory-histogram-decay-half-life",
        "confidence-interval-cpu",
    ],
)
def test_a_length_of_zero_that_would_divide_by_zero_is_refused(name: str) -> None:
    with pytest.raises(FlagError, match=f"--{name} must be longer than 0"):
        Table(settings.Estimation, settings.Aggregation).parse([f"--{name}=0"])
