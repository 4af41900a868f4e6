"""The manifests and the chart, rendered by the real tools and applied to a real API server."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import admission.settings
import recommender.settings
import updater.settings
from tests.cluster import rendering, sources
from tests.cluster.rendering import COMPONENTS, OVERLAYS, Json
from tests.testbed import builds
from tests.testbed.cluster import Cluster
from tests.tools.deploy_copies import CHART

pytestmark = [pytest.mark.cluster, pytest.mark.builds("helm")]

TABLES = {
    "recommender": recommender.settings.TABLE,
    "updater": updater.settings.TABLE,
    "admission-controller": admission.settings.TABLE,
}

STRICT = ("--server-side", "--force-conflicts", "--warnings-as-errors")

VARIANTS: dict[str, list[str]] = {
    "by default": [],
    "with everything": [
        "--set=metrics.podMonitor.enabled=true,metrics.rules.enabled=true,metrics.dashboard.enabled=true",
        "--set=compatibility=upstream,defaultUpdateMode=InPlaceOrRecreate",
        "--set=commonLabels.team=platform,recommender.podLabels.tier=system",
        "--set=recommender.priorityClassName=system-cluster-critical",
        "--set=recommender.resources.requests.cpu=50m,updater.tolerations[0].operator=Exists",
        "--set=updater.topologySpreadConstraints[0].maxSkew=1",
        "--set=updater.topologySpreadConstraints[0].topologyKey=kubernetes.io/hostname",
        "--set=updater.topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
        "--set=updater.topologySpreadConstraints[0].labelSelector.matchLabels.team=platform",
        "--set=updater.extraArgs[0]=--min-replicas=1,updater.extraEnv[0].name=A,updater.extraEnv[0].value=b",
        "--set=rbac.extraRules[0].apiGroups[0]=external.metrics.k8s.io",
        "--set=rbac.extraRules[0].resources[0]=*,rbac.extraRules[0].verbs[0]=list",
    ],
    "registering itself": ["--set=admissionController.registerWebhook=true"],
    "with cert-manager": [
        "--set=admissionController.certGen.enabled=false,admissionController.certManager.enabled=true",
        "--set=admissionController.certManager.createSelfSignedIssuer.enabled=true",
    ],
    "with an issuer": [
        "--set=admissionController.certGen.enabled=false,admissionController.certManager.enabled=true",
        "--set=admissionController.certManager.issuerRef.name=company",
    ],
    "with given files": [
        "--set=admissionController.tls.create=true,admissionController.tls.caCert=CA",
        "--set=admissionController.tls.cert=CERT,admissionController.tls.key=KEY",
    ],
    "with own files": ["--set=admissionController.certGen.enabled=false"],
    "alone": ["--set=updater.enabled=false,admissionController.enabled=false,recommender.replicas=1"],
}


@pytest.fixture(scope="module")
def server(own_cluster: Cluster) -> Cluster:
    """A cluster that has all the definitions, and that warns of pods that are not restricted."""
    own_cluster.kubectl("apply", "-f", "-", stdin=yaml.dump_all(sources.neighbours()))
    own_cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    for name in ("monitoring", "d8-monitoring"):
        own_cluster.create_namespace(name)
    own_cluster.kubectl(
        *("label", "namespace", "kube-system", "pod-security.kubernetes.io/warn=restricted"),
        "pod-security.kubernetes.io/audit=restricted",
    )
    return own_cluster


@pytest.fixture
def applied(server: Cluster) -> Iterator[list[str]]:
    """Texts to delete afterwards."""
    texts: list[str] = []
    yield texts
    for text in texts:
        kept = [each for each in rendering.objects(text) if each["kind"] != "CustomResourceDefinition"]
        server.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=yaml.dump_all(kept))


def apply(server: Cluster, text: str) -> None:
    """First for a try, then for real; a warning of the API server is an error."""
    for dry_run in ("server", "none"):
        server.kubectl("apply", *STRICT, f"--dry-run={dry_run}", "-f", "-", stdin=text, timeout=120)


def rules_of(text: str, *, binding_of: str) -> set[tuple[str, str, str, str]]:
    """All that a service account may do: (group, resource, resource name, verb)."""
    found = rendering.named(text)
    allowed: set[tuple[str, str, str, str]] = set()
    for each in found.values():
        if each["kind"] in ("ClusterRoleBinding", "RoleBinding") and any(
            subject["name"] == binding_of for subject in each["subjects"]
        ):
            role = found[(each["roleRef"]["kind"], each["roleRef"]["name"])]
            for rule in role["rules"]:
                allowed |= {
                    (group, resource, name, verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for name in rule.get("resourceNames", [""])
                    for verb in rule["verbs"]
                }
    return allowed


# ---- kustomize


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_applied_without_a_warning_and_its_pods_start(
    server: Cluster, applied: list[str], name: str
) -> None:
    text = rendering.overlay(name)
    applied.append(text)
    if name == "deckhouse":
        classes = [
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": each},
                "value": 9,
            }
            for each in ("cluster-medium",)
        ]
        server.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.dump_all(classes))
    apply(server, text)
    for component in COMPONENTS:
        if name == "plain" or component != "admission-controller":
            server.kubectl(
                *("rollout", "status", "-n", "kube-system", "--timeout=60s"), f"deployment/vpa-{component}"
            )


def test_only_the_deckhouse_overlay_serves_v1beta2_and_changes_the_default_mode() -> None:
    for name in OVERLAYS:
        text = rendering.overlay(name)
        for crd in rendering.of_kind(text, "CustomResourceDefinition"):
            served = {each["name"]: each["served"] for each in crd["spec"]["versions"]}
            assert served == {"v1": True, "v1beta2": name == "deckhouse"}
        for deployment in rendering.of_kind(text, "Deployment"):
            args = rendering.container(deployment)["args"]
            assert ("--default-update-mode=InPlaceOrRecreate" in args) == (name == "deckhouse")


def test_a_client_of_v1beta2_loses_nothing_under_the_deckhouse_overlay() -> None:
    found = rendering.named(rendering.overlay("deckhouse"))
    crd = found[("CustomResourceDefinition", "verticalpodautoscalers.autoscaling.k8s.io")]
    v1, v1beta2 = (each["schema"] for each in crd["spec"]["versions"])
    assert v1beta2 == v1


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_base_is_upstreams_manifest_with_another_image(component: str) -> None:
    name = f"vpa-{component}"
    ours = rendering.named(rendering.overlay("base"))[("Deployment", name)]
    theirs = rendering.named(sources.upstream("deploy", f"{component}-deployment.yaml").read_text())[
        ("Deployment", name)
    ]
    assert ours["metadata"]["namespace"] == theirs["metadata"]["namespace"]
    assert ours["spec"]["selector"] == theirs["spec"]["selector"]
    assert ours["spec"]["replicas"] == theirs["spec"]["replicas"]
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in (theirs, ours)]
    assert labels[0].items() <= labels[1].items()
    pods = [each["spec"]["template"]["spec"] for each in (theirs, ours)]
    assert pods[0]["serviceAccountName"] == pods[1]["serviceAccountName"]
    assert pods[0]["securityContext"].items() <= pods[1]["securityContext"].items()
    assert pods[0].get("volumes") == pods[1].get("volumes")
    theirs, ours = (rendering.container(each) for each in (theirs, ours))
    for key in ("name", "livenessProbe", "readinessProbe", "imagePullPolicy", "volumeMounts"):
        assert ours.get(key) == theirs.get(key), key
    assert {each["containerPort"] for each in ours["ports"]} == {
        each["containerPort"] for each in theirs["ports"]
    }
    assert set(theirs.get("args", ())) <= set(ours["args"])


def test_the_permissions_are_upstreams_at_most_and_the_optional_ones() -> None:
    ours = rendering.overlay("base")
    theirs = sources.upstream("deploy", "vpa-rbac.yaml").read_text()
    required = yaml.dump_all(
        each for each in rendering.objects(ours) if not each["metadata"]["name"].endswith("-optional")
    )
    for component in COMPONENTS:
        account = f"vpa-{component}"
        extra = rules_of(required, binding_of=account) - rules_of(theirs, binding_of=account)
        assert not extra, f"{account} requires more than upstream grants"


# ---- the chart


def test_the_chart_is_clean() -> None:
    done = subprocess.run(
        [builds.binary("helm"), "lint", "--strict", CHART], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("name", VARIANTS)
def test_the_chart_is_applied_without_a_warning(server: Cluster, applied: list[str], name: str) -> None:
    text = rendering.chart(*VARIANTS[name])
    applied.append(text)
    apply(server, text)


def test_a_values_file_of_upstreams_chart_gives_the_same_objects() -> None:
    folder = sources.upstream("charts", "vertical-pod-autoscaler")
    theirs = rendering.named(rendering.chart(path=folder))
    ours = rendering.named(rendering.chart("--values", str(folder / "values.yaml")))
    missing = {
        (kind, name)
        for kind, name in set(theirs) - set(ours)
        # Certificates need no jobs here, and a binding has the name of its role.
        if "certgen" not in name and not name.endswith("-binding")
    }
    assert missing == set()
    for key in set(theirs) & set(ours):
        if key[0] in ("Deployment", "Service", "PodDisruptionBudget"):
            assert ours[key]["spec"]["selector"] == theirs[key]["spec"]["selector"], key
        if key[0] == "Deployment":
            shared = set(rendering.container(theirs[key])["args"])
            assert shared <= set(rendering.container(ours[key])["args"]), key
        if key[0] == "MutatingWebhookConfiguration":
            assert ours[key]["webhooks"] == theirs[key]["webhooks"]


def test_chart_and_manifests_allow_the_same() -> None:
    manifests = rendering.overlay("base")
    chart = rendering.chart("--set=admissionController.registerWebhook=true")
    for component in COMPONENTS:
        ours = rules_of(chart, binding_of=f"vpa-vertical-pod-autoscaler-{component}")
        theirs = rules_of(manifests, binding_of=f"vpa-{component}")
        # The names of leases are values of the chart.
        locks = {each for each in ours | theirs if each[2].startswith(("vpa-recommender", "vpa-updater"))}
        assert ours - locks == theirs - locks


REFUSED = {
    "certManager.enabled and admissionController.certGen.enabled exclude": [
        "--set=admissionController.certManager.enabled=true"
    ],
    "needs admissionController.registerWebhook=false": [
        "--set=admissionController.certGen.enabled=false,admissionController.certManager.enabled=true",
        "--set=admissionController.registerWebhook=true",
    ],
    "certManager.enabled and admissionController.tls.create exclude": [
        "--set=admissionController.certGen.enabled=false,admissionController.certManager.enabled=true",
        "--set=admissionController.tls.create=true",
    ],
    "remove --reload-cert=false": [
        "--set=admissionController.certGen.enabled=false,admissionController.certManager.enabled=true",
        "--set=admissionController.extraArgs[0]=--reload-cert=false",
    ],
    "needs admissionController.certManager.issuerRef.name": [
        "--set=admissionController.certGen.enabled=false,admissionController.certManager.enabled=true"
    ],
    "tls.create needs admissionController.tls.caCert": ["--set=admissionController.tls.create=true"],
    "updater.podDisruptionBudget: minAvailable and maxUnavailable exclude": [
        "--set=updater.podDisruptionBudget.maxUnavailable=1"
    ],
    "additional properties 'recomender' not allowed": ["--set=recomender.replicas=1"],
    "at '/updater/replicas'": ["--set=updater.replicas=two"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_values_that_cannot_work_are_refused_with_what_to_do(message: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendering.chart(*REFUSED[message])
    assert message in str(refused.value.stderr)


def test_given_files_reach_the_webhook_and_the_pod() -> None:
    found = rendering.named(rendering.chart(*VARIANTS["with given files"]))
    secret = found[("Secret", "vpa-tls-certs")]["data"]
    assert {key: base64.b64decode(value) for key, value in secret.items()} == {
        "ca": b"CA",
        "cert": b"CERT",
        "key": b"KEY",
    }
    name = "vpa-vertical-pod-autoscaler-webhook-config"
    (webhook,) = found[("MutatingWebhookConfiguration", name)]["webhooks"]
    assert base64.b64decode(webhook["clientConfig"]["caBundle"]) == b"CA"
    deployment = found[("Deployment", "vpa-vertical-pod-autoscaler-admission-controller")]
    assert "--generate-certificates" not in rendering.container(deployment)["args"]
    (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
    assert {each["path"] for each in volume["secret"]["items"]} == {
        "caCert.pem",
        "serverCert.pem",
        "serverKey.pem",
    }


def test_without_rbac_and_accounts_the_chart_makes_none() -> None:
    text = rendering.chart(
        "--set=rbac.create=false",
        *(
            f"--set={each}.serviceAccount.create=false,{each}.serviceAccount.name=mine"
            for each in ("recommender", "updater", "admissionController")
        ),
    )
    kinds = {each["kind"] for each in rendering.objects(text)}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}
    for deployment in rendering.of_kind(text, "Deployment"):
        assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


def test_a_leader_is_elected_exactly_where_there_are_several() -> None:
    for replicas in (1, 2):
        text = rendering.chart(f"--set=recommender.replicas={replicas},updater.replicas={replicas}")
        for name in ("recommender", "updater"):
            deployment = rendering.named(text)[("Deployment", f"vpa-vertical-pod-autoscaler-{name}")]
            elects = "--leader-elect=true" in rendering.container(deployment)["args"]
            assert elects == (replicas > 1)
            assert (
                ("Role", f"vpa-vertical-pod-autoscaler-{name}-leader-locking") in rendering.named(text)
            ) == (replicas > 1)


# ---- both


def _deployments() -> Iterator[tuple[str, Json]]:
    for name in OVERLAYS:
        yield from ((name, each) for each in rendering.of_kind(rendering.overlay(name), "Deployment"))
    for name, arguments in VARIANTS.items():
        text = rendering.chart(*arguments)
        yield from ((name, each) for each in rendering.of_kind(text, "Deployment"))


def test_every_rendered_argument_is_understood_by_its_service() -> None:
    seen = 0
    for where, deployment in _deployments():
        main = rendering.container(deployment)
        parsed = TABLES[main["name"]].parse(main["args"])
        notices = [each for each in parsed.notices() if "has no effect" in each]
        assert (parsed.rest, notices) == ((), []), where
        seen += 1
    assert seen > 25


def test_every_pod_is_restricted() -> None:
    for where, deployment in _deployments():
        pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True, where
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        for each in pod["containers"]:
            context = each["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, where
            assert context["readOnlyRootFilesystem"] is True, where
            assert context["capabilities"] == {"drop": ["ALL"]}, where


def test_the_custom_resources_are_upstreams_and_what_only_ours_have() -> None:
    path: Path = sources.upstream("deploy", "vpa-v1-crd-gen.yaml")
    theirs = rendering.named(path.read_text())
    ours = rendering.named(rendering.overlay("plain"))
    for key, crd in theirs.items():
        added = list(_added(_shape(crd["spec"]), _shape(ours[key]["spec"]), ""))
        assert [each.rpartition(".")[2] for each in added] == (
            ["scope", "groups"] if key[1].startswith("verticalpodautoscalers.") else []
        )


def _shape(value: Any) -> Any:
    """The same without descriptions, and with names in one order."""
    if isinstance(value, dict):
        return {
            key: _shape(inner)
            for key, inner in value.items()
            if not (key == "description" and isinstance(inner, str))
        }
    if isinstance(value, list):
        shapes = [_shape(inner) for inner in value]
        return sorted(shapes) if all(isinstance(each, str) for each in shapes) else shapes
    return value


def _added(theirs: Any, ours: Any, path: str) -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        assert not theirs.keys() - ours.keys(), f"{path} lacks {theirs.keys() - ours.keys()}"
        yield from (f"{path}.{key}" for key in ours.keys() - theirs.keys())
        for key in theirs:
            yield from _added(theirs[key], ours[key], f"{path}.{key}")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from _added(one, other, f"{path}[{index}]")
    else:
        assert theirs == ours, path
