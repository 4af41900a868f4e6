"""Upstream's flags, one by one, and the arguments of known installations."""

from __future__ import annotations

import pytest

import admission.settings
import recommender.settings
import updater.settings
from vpa import flags, rules
from vpa.flags import FlagError, Table
from vpa.process import LeaderElection

TABLES: dict[str, Table] = {
    "recommender": recommender.settings.TABLE,
    "updater": updater.settings.TABLE,
    "admission": admission.settings.TABLE,
}

# Name and default of every flag of upstream 1.8, the default as its --help prints it ("" for none or empty).
COMMON = """
    kubeconfig=
    kube-api-qps=50
    kube-api-burst=100
    profiling=false
    vpa-object-namespace=
    ignored-vpa-object-namespaces=
    feature-gates=
    v=4
    stderrthreshold=INFO
    logtostderr=true
    alsologtostderr=false
    alsologtostderrthreshold=INFO
    legacy-stderr-threshold-behavior=true
    add-dir-header=false
    log-backtrace-at=:0
    log-dir=
    log-file=
    log-file-max-size=1800
    one-output=false
    skip-headers=false
    skip-log-headers=false
    vmodule=
"""
LEADER_ELECTION = """
    leader-elect=false
    leader-elect-lease-duration=15s
    leader-elect-renew-deadline=10s
    leader-elect-retry-period=2s
    leader-elect-resource-lock=leases
    leader-elect-resource-namespace=kube-system
"""
UPSTREAM = {
    "recommender": COMMON
    + LEADER_ELECTION
    + """
    recommender-name=default
    recommender-interval=1m0s
    checkpoints-gc-interval=10m0s
    checkpoints-timeout=1m0s
    address=:8942
    storage=
    memory-saver=false
    update-worker-count=10
    min-checkpoints=10
    recommendation-margin-fraction=0.15
    pod-recommendation-min-cpu-millicores=25
    pod-recommendation-min-memory-mb=250
    target-cpu-percentile=0.9
    recommendation-lower-bound-cpu-percentile=0.5
    recommendation-upper-bound-cpu-percentile=0.95
    confidence-interval-cpu=24h0m0s
    target-memory-percentile=0.9
    recommendation-lower-bound-memory-percentile=0.5
    recommendation-upper-bound-memory-percentile=0.95
    confidence-interval-memory=24h0m0s
    humanize-memory=false
    round-cpu-millicores=1
    round-memory-bytes=1
    prometheus-address=http://prometheus.monitoring.svc
    prometheus-insecure=false
    prometheus-cadvisor-job-name=kubernetes-cadvisor
    history-length=8d
    history-resolution=1h
    history-cpu-metric=container_cpu_usage_seconds_total
    history-memory-metric=container_memory_working_set_bytes
    prometheus-query-timeout=5m0s
    pod-label-prefix=pod_label_
    metric-for-pod-labels=up{job="kubernetes-pods"}
    pod-namespace-label=kubernetes_namespace
    pod-name-label=kubernetes_pod_name
    container-namespace-label=namespace
    container-pod-name-label=pod_name
    container-name-label=name
    username=
    password=
    prometheus-bearer-token=
    prometheus-bearer-token-file=
    use-external-metrics=false
    external-metrics-cpu-metric=
    external-metrics-memory-metric=
    memory-aggregation-interval=24h0m0s
    memory-aggregation-interval-count=8
    memory-histogram-decay-half-life=24h0m0s
    cpu-histogram-decay-half-life=24h0m0s
    oom-bump-up-ratio=1.2
    oom-min-bump-up-bytes=1.048576e+08
    cpu-integer-post-processor-enabled=false
    container-recommendation-max-allowed-cpu=
    container-recommendation-max-allowed-memory=
    leader-elect-resource-name=vpa-recommender-lease
""",
    "updater": COMMON
    + LEADER_ELECTION
    + """
    updater-interval=1m0s
    min-replicas=2
    eviction-tolerance=0.5
    eviction-rate-limit=-1
    eviction-rate-burst=1
    address=:8943
    use-admission-controller-status=true
    in-place-skip-disruption-budget=false
    admission-controller-status-lease-name=vpa-admission-controller
    admission-controller-status-lease-namespace=
    admission-controller-status-lease-timeout=1m0s
    pod-update-threshold=0.1
    in-recommendation-bounds-eviction-lifetime-threshold=12h0m0s
    evict-after-oom-threshold=10m0s
    leader-elect-resource-name=vpa-updater
""",
    "admission": COMMON
    + """
    client-ca-file=/etc/tls-certs/caCert.pem
    tls-cert-file=/etc/tls-certs/serverCert.pem
    tls-private-key=/etc/tls-certs/serverKey.pem
    reload-cert=false
    tls-ciphers=
    min-tls-version=tls1_2
    port=8000
    address=:8944
    webhook-service=vpa-webhook
    webhook-address=
    webhook-port=
    webhook-timeout-seconds=30
    webhook-failure-policy-fail=false
    register-webhook=true
    webhook-labels=
    register-by-url=false
    status-lease-name=vpa-admission-controller
    status-lease-namespace=
    status-lease-update-interval=10s
    max-allowed-cpu-boost=
""",
}

ROWS = [
    (service, *line.strip().partition("=")[::2])
    for service, text in UPSTREAM.items()
    for line in text.split("\n")
    if line.strip()
]

OURS = {
    "recommender": {
        "compatibility",
        "default-update-mode",
        "status-write-threshold",
        "checkpoints",
        "cap-to-node",
    }
    | {
        "usage-source",
        "history-cpu-rule",
        "history-preset",
        "log-format",
        "authenticate-metrics",
        "kube-api-servers",
    },
    "updater": {
        "compatibility",
        "default-update-mode",
        "ignore-hpa",
        "cap-to-node",
        "log-format",
        "authenticate-metrics",
        "kube-api-servers",
    },
    "admission": {
        "compatibility",
        "default-update-mode",
        "cap-to-node",
        "generate-certificates",
        "certificates-secret",
        "webhook-configuration",
        "log-format",
        "authenticate-metrics",
        "kube-api-servers",
    },
}

FASTER = {("updater", "kube-api-qps"): "100", ("updater", "kube-api-burst"): "200"}
"""Flags whose default is another unless ``--compatibility=upstream`` is given."""

LEASE_ARGS = [
    "--leader-elect=true",
    "--leader-elect-resource-namespace=vpa",
    "--leader-elect-resource-name=vpa-recommender-lease",
    "--leader-elect-lease-duration=15s",
    "--leader-elect-renew-deadline=10s",
    "--leader-elect-retry-period=2s",
]

INSTALLATIONS = {
    "upstream's manifests": {
        "recommender": [],
        "updater": [],
        "admission": ["--v=4", "--stderrthreshold=info", "--reload-cert"],
    },
    "upstream's manifests with feature gates": {
        "recommender": ["--feature-gates=PerVPAConfig=true,CPUStartupBoost=true,InPlace=true"],
        "updater": ["--feature-gates=AllAlpha=true"],
        "admission": ["--v=4", "--stderrthreshold=info", "--reload-cert", "--feature-gates=AllAlpha=true"],
    },
    "upstream's chart": {
        "recommender": ["--v=4", "--stderrthreshold=info", *LEASE_ARGS],
        "updater": [
            "--v=4",
            "--stderrthreshold=info",
            *(arg.replace("vpa-recommender-lease", "vpa-updater-lease") for arg in LEASE_ARGS),
            "--in-place-skip-disruption-budget=true",
        ],
        "admission": [
            "--v=4",
            "--stderrthreshold=info",
            "--register-webhook=false",
            "--webhook-service=vpa-webhook",
            "--reload-cert=true",
        ],
    },
    "Deckhouse": {
        "recommender": [
            "--address=127.0.0.1:8942",
            "--kube-api-qps=50",
            "--kube-api-burst=100",
            "--pod-recommendation-min-cpu-millicores=25",
            "--pod-recommendation-min-memory-mb=50",
            "--memory-aggregation-interval=1h",
            "--memory-aggregation-interval-count=12",
            "--cpu-histogram-decay-half-life=8h",
            "--memory-histogram-decay-half-life=8h",
            "--recommender-interval=60s",
            "--memory-saver=true",
            "--humanize-memory=false",
            "--storage=prometheus",
            "--prometheus-address=https://aggregating-proxy.d8-monitoring.svc.cluster.local",
            "--prometheus-insecure=true",
            "--prometheus-bearer-token-file=/var/run/secrets/kubernetes.io/serviceaccount/token",
            "--history-length=7d",
            "--history-resolution=1h",
            '--metric-for-pod-labels=kube_pod_labels{job="kube-state-metrics"}[60s]',
            "--pod-label-prefix=label_",
            "--pod-namespace-label=namespace",
            "--pod-name-label=pod",
            "--prometheus-cadvisor-job-name=kubelet",
            "--container-pod-name-label=pod",
            "--container-name-label=container",
            "--stderrthreshold=0",
            "--v=4",
        ],
        "updater": [
            "--address=127.0.0.1:8943",
            "--eviction-tolerance=0.1",
            "--eviction-rate-limit=1",
            "--min-replicas=2",
            "--updater-interval=30s",
            "--feature-gates=InPlaceOrRecreate=true",
            "--stderrthreshold=0",
            "--v=4",
        ],
        "admission": [
            "--address=:8944",
            "--tls-cert-file=/etc/tls-certs/serverCert.pem",
            "--tls-private-key=/etc/tls-certs/serverKey.pem",
            "--register-webhook=false",
            "--v=4",
        ],
    },
}


@pytest.mark.parametrize(("service", "name", "default"), ROWS)
def test_upstreams_flag_has_upstreams_name_and_default(service: str, name: str, default: str) -> None:
    item = TABLES[service].flags[name]
    if (service, name) in FASTER:
        assert item.kind.show(item.upstream) == default
        assert item.shown_default == FASTER[service, name]
    else:
        assert item.shown_default == default
        assert item.upstream == item.default or name == "checkpoints"
    assert item.help.endswith(".")


@pytest.mark.parametrize("service", TABLES)
def test_no_flag_is_ours_without_being_meant(service: str) -> None:
    upstreams = {name for owner, name, _ in ROWS if owner == service}
    rule_names = {item.name for item in flags.flags_of(rules.Rules)}
    ours = set(TABLES[service].flags) - upstreams - rule_names
    prometheus = {name for name in ours if name.startswith("prometheus-")}
    assert ours - prometheus == OURS[service]


@pytest.mark.parametrize("service", TABLES)
@pytest.mark.parametrize("installation", INSTALLATIONS)
def test_the_arguments_of_a_known_installation_start_the_service(installation: str, service: str) -> None:
    args = INSTALLATIONS[installation][service]
    parsed = TABLES[service].parse(args)
    assert parsed.rest == ()
    assert {arg.removeprefix("--").partition("=")[0] for arg in args} == set(parsed.given)
    removed_gates = 1 if "--feature-gates=InPlaceOrRecreate=true" in args else 0
    assert len(list(parsed.notices())) == removed_gates


def test_deckhouses_arguments_mean_what_they_say() -> None:
    recommender_args = INSTALLATIONS["Deckhouse"]["recommender"]
    settings = recommender.settings.TABLE.parse(recommender_args).fill(recommender.settings.Settings)
    assert settings.aggregation.memory_aggregation_interval.seconds == 3600
    assert settings.aggregation.cpu_histogram_decay_half_life.seconds == 8 * 3600
    assert settings.estimation.pod_recommendation_min_memory_mb == 50
    assert settings.loop.memory_saver
    assert settings.history.storage == "prometheus"
    assert settings.history.history_length.seconds == 7 * 86400
    assert settings.writes_checkpoints
    assert not settings.lease.leader_elect


def test_checkpoints_are_written_beside_prometheus_except_as_upstream() -> None:
    def writes(*args: str) -> bool:
        return recommender.settings.TABLE.parse(args).fill(recommender.settings.Settings).writes_checkpoints

    assert writes()
    assert writes("--storage=prometheus")
    assert writes("--compatibility=upstream")
    assert not writes("--compatibility=upstream", "--storage=prometheus")
    assert writes("--compatibility=upstream", "--storage=prometheus", "--checkpoints")
    assert not writes("--checkpoints=false")


@pytest.mark.parametrize(
    ("service", "args", "message"),
    [
        ("recommender", ["--recommender-interval=0s"], "--recommender-interval must be longer than 0"),
        ("recommender", ["--update-worker-count=0"], "--update-worker-count must be at least 1"),
        (
            "recommender",
            ["--prometheus-bearer-token=a", "--prometheus-bearer-token-file=b", "--username=c"],
            "exclude each other",
        ),
        ("recommender", ["--history-length=8"], "is not a Prometheus duration"),
        ("recommender", ["--history-preset=other"], "use one of"),
        (
            "recommender",
            ["--usage-source=prometheus", "--use-external-metrics"],
            "exclude each other",
        ),
        (
            "recommender",
            ["--prometheus-client-cert-file=a"],
            "belong together",
        ),
        (
            "recommender",
            ["--leader-elect", "--leader-elect-renew-deadline=15s"],
            r"--leader-elect-lease-duration \(15s\) must be longer than --leader-elect-renew-deadline",
        ),
        (
            "recommender",
            ["--leader-elect", "--leader-elect-retry-period=9s"],
            r"--leader-elect-renew-deadline \(10s\) must be longer than 1.2 times",
        ),
        ("recommender", ["--leader-elect", "--leader-elect-retry-period=0"], "must be longer than 0"),
        ("recommender", ["--leader-elect", "--leader-elect-resource-name="], "must not be empty"),
        ("recommender", ["--leader-elect-resource-lock=endpoints"], "use one of leases"),
        ("recommender", ["--stderrthreshold=LOUD"], "use one of INFO, WARNING, ERROR, FATAL"),
        ("updater", ["--updater-interval=-1s"], "--updater-interval must be longer than 0"),
        ("updater", ["--admission-controller-status-lease-timeout=0s"], "must be longer than 0"),
        ("admission", ["--status-lease-update-interval=0"], "must be longer than 0"),
        ("admission", ["--min-tls-version=tls1_1"], "use one of"),
        ("admission", ["--port=70000"], "--port must be between 1 and 65535, not 70000"),
    ],
)
def test_values_that_cannot_work_are_refused_at_start(service: str, args: list[str], message: str) -> None:
    with pytest.raises(FlagError, match=message):
        TABLES[service].parse(args)


def test_two_of_the_three_kinds_of_authentication_are_accepted_as_upstream_does() -> None:
    recommender.settings.TABLE.parse(["--prometheus-bearer-token=a", "--username=c"])


def test_election_that_is_off_is_not_examined() -> None:
    parsed = Table(LeaderElection).parse(["--leader-elect-renew-deadline=1h"])
    assert parsed.get(LeaderElection).leader_elect_renew_deadline.seconds == 3600


def test_deprecated_flags_are_said_at_start() -> None:
    parsed = recommender.settings.TABLE.parse(["--humanize-memory", "--min-checkpoints=5"])
    assert list(parsed.notices()) == [
        "--min-checkpoints is accepted but has no effect",
        "--humanize-memory is deprecated; use --round-memory-bytes",
    ]
