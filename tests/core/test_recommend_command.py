"""``vpa recommend``: what it prints, what it says about bad input, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.core.recommend_kit import (
    NOON,
    Shell,
    autoscaler,
    conditions,
    containers,
    deployment,
    line,
    pod,
)
from vpa.cli import usagefiles
from vpa.cli.objects import read
from vpa.cli.recommend import recommend
from vpa.cli.scenes import Options, Scene


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_the_status_is_the_one_a_recommender_would_write(shell: Shell) -> None:
    objects = shell.objects(deployment(), pod(), autoscaler())
    usage = shell.usage(*(line(time=NOON + 60 * i, cpu=0.5, memory=500 * 2**20) for i in range(1441)))
    (status,) = shell.statuses("-f", objects, "--usage", usage, "--compatibility=upstream")
    assert status["recommendation"]["containerRecommendations"] == [
        {
            "containerName": "app",
            "target": {"cpu": "587m", "memory": "628694953"},
            "lowerBound": {"cpu": "585m", "memory": "627439446"},
            "upperBound": {"cpu": "1174m", "memory": "1257389906"},
            "uncappedTarget": {"cpu": "587m", "memory": "628694953"},
        }
    ]
    assert status["observedGeneration"] == 2
    assert conditions(status) == {"RecommendationProvided": "True"}
    assert status["conditions"][0]["lastTransitionTime"] == "2026-08-02T12:00:00Z"


def test_amounts_are_read_as_exact_decimals_and_rounded_up_as_a_quantity_is(shell: Shell) -> None:
    objects = read([shell.objects(deployment(), pod(), autoscaler())])
    lines = [line(time=NOON + i, cpu=cpu) for i, cpu in enumerate((1.1, 0.0101, "250m", "1", 0.29))]
    memories = [line(time=NOON + i * 86400, memory=m) for i, m in enumerate(("1Gi", 1.5, "100M", 12))]
    scene, result = recommend(objects, [shell.usage(*lines, *memories)])
    layout = scene.usage.cpu.layout
    buckets = {int(b) for b in range(176) if scene.usage.cpu.weights(0)[b]}
    assert buckets == {int(layout._find_one(m / 1000)) for m in (1100, 11, 250, 1000, 290)}
    assert result.rejected == 0
    assert scene.usage.memory_peak[0] == 12


def test_vpas_come_out_whole_and_in_input_order_from_any_form_of_input(shell: Shell) -> None:
    listed = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [autoscaler("b"), deployment(), autoscaler("a", resourcePolicy={"containerPolicies": []})],
    }
    result = shell.run("-f", "-", "-o", "yaml", stdin=json.dumps(listed))
    assert result.returncode == 0
    items = yaml.safe_load(result.stdout)["items"]
    assert [item["metadata"]["name"] for item in items] == ["b", "a"]
    assert items[1]["spec"]["resourcePolicy"] == {"containerPolicies": []}


def test_objects_without_a_namespace_are_in_default(shell: Shell) -> None:
    objects = [deployment(), pod(), autoscaler()]
    for entry in objects:
        del entry["metadata"]["namespace"]
    usage = shell.usage(
        {"time": NOON, "pod": "web-5d-1", "container": "app", "cpu": 1, "namespace": "default"}
    )
    (status,) = shell.statuses("-f", shell.objects(*objects), "--usage", usage)
    assert containers(status)["app"]["target"]["cpu"] == "1168m"


def test_conditions_keep_their_transition_time_while_their_status_stays(shell: Shell) -> None:
    since = "2026-01-01T00:00:00Z"
    vpa = autoscaler()
    vpa["status"] = {
        "conditions": [
            {"type": "RecommendationProvided", "status": "True", "lastTransitionTime": since},
            {"type": "SomebodyElses", "status": "False", "lastTransitionTime": since, "reason": "X"},
        ]
    }
    (status,) = shell.statuses("-f", shell.objects(deployment(), pod(), vpa), "--now", "2026-08-01T00:00:00Z")
    found = {condition["type"]: condition for condition in status["conditions"]}
    assert found["RecommendationProvided"]["lastTransitionTime"] == since
    assert found["SomebodyElses"]["reason"] == "X"
    assert found["LowConfidence"]["lastTransitionTime"] == "2026-08-01T00:00:00Z"


def test_a_pod_of_the_past_is_found_by_its_labels_or_its_owner(shell: Shell) -> None:
    objects = shell.objects(deployment(), pod(), autoscaler())
    usage = shell.usage(
        line(pod="gone-1", cpu=0.5, labels={"app": "web"}),
        line(pod="gone-2", cpu=0.5, owner={"kind": "ReplicaSet", "name": "web-old"}),
        line(pod="gone-3", cpu=9, labels={"app": "other"}),
        line(pod="gone-4", cpu=9),
        line(pod="gone-4", cpu=9, time=NOON + 1),
    )
    scene, _ = recommend(read([objects]), [usage])
    assert int(scene.usage.sample_count[0]) == 2
    result = shell.run("-f", objects, "--usage", usage)
    assert result.returncode == 0
    assert result.stderr == "vpa: usage of unknown pods is left out: shop/gone-4\n"


def test_two_stateful_sets_with_the_same_labels_are_told_apart_by_their_owners(shell: Shell) -> None:
    def stateful_set(name: str, container: str) -> list[dict[str, Any]]:
        workload = deployment(name, (container,))
        workload["kind"] = "StatefulSet"
        workload["spec"]["selector"] = {"matchLabels": {"app": "s"}}
        member = pod(f"{name}-0", containers=(container,))
        member["metadata"]["labels"] = {"app": "s"}
        member["metadata"]["ownerReferences"][0].update(kind="StatefulSet", name=name)
        return [workload, member, autoscaler(name, "StatefulSet", name)]

    statuses = shell.statuses("-f", shell.objects(*stateful_set("s0", "a"), *stateful_set("s1", "b")))
    assert [list(containers(status)) for status in statuses] == [["a"], ["b"]]
    assert all("Conflict" not in conditions(status) for status in statuses)


def test_only_present_containers_are_recommended_and_share_the_whole_minimum(shell: Shell) -> None:
    def checkpoint(container: str) -> dict[str, Any]:
        histogram = {
            "referenceTimestamp": "2026-08-01T00:00:00Z",
            "bucketWeights": {"30": 10000},
            "totalWeight": 5,
        }
        return {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": "VerticalPodAutoscalerCheckpoint",
            "metadata": {"name": f"web-{container}", "namespace": "shop"},
            "spec": {"vpaObjectName": "web", "containerName": container},
            "status": {"version": "v3", "cpuHistogram": histogram, "memoryHistogram": histogram},
        }

    renamed = [deployment(containers=("c",)), pod(containers=("c",)), autoscaler()]
    objects = shell.objects(*renamed, checkpoint("a"), checkpoint("b"))
    (status,) = shell.statuses("-f", objects)
    assert list(containers(status)) == ["c"]
    assert containers(status)["c"]["target"] == {"cpu": "25m", "memory": "250Mi"}
    (status,) = shell.statuses("-f", objects, "--compatibility=upstream")
    assert list(containers(status)) == ["a", "b", "c"]
    assert containers(status)["c"]["target"] == {"cpu": "8m", "memory": "87381333"}


def test_a_container_that_was_only_oom_killed_is_recommended_from_that(shell: Shell) -> None:
    objects = shell.objects(deployment(), pod(), autoscaler())
    usage = shell.usage(line(oom={"memory": 536870912}))
    (status,) = shell.statuses("-f", objects, "--usage", usage)
    assert containers(status)["app"]["target"] == {"cpu": "25m", "memory": "764046746"}


def test_checkpoints_are_the_start_state_and_damaged_ones_are_named(shell: Shell) -> None:
    status = {
        "version": "v3",
        "cpuHistogram": {
            "referenceTimestamp": "2026-08-01T00:00:00Z",
            "bucketWeights": {"25": 10000},
            "totalWeight": 100.0,
        },
        "memoryHistogram": {"referenceTimestamp": None},
        "firstSampleStart": "2026-07-24T00:00:00Z",
        "lastSampleStart": "2026-08-01T00:00:00Z",
        "totalSamplesCount": 11520,
    }
    checkpoint = {
        "kind": "VerticalPodAutoscalerCheckpoint",
        "metadata": {"name": "web-app", "namespace": "shop"},
        "spec": {"vpaObjectName": "web", "containerName": "app"},
        "status": status,
    }
    (found,) = shell.statuses("-f", shell.objects(deployment(), pod(), autoscaler(), checkpoint))
    assert containers(found)["app"]["upperBound"]["cpu"] == "660m"
    damaged = {**checkpoint, "status": {**status, "cpuHistogram": {"bucketWeights": {"25": 0.5}}}}
    result = shell.run("-f", shell.objects(deployment(), pod(), autoscaler(), damaged))
    assert result.returncode == 0
    assert result.stderr.startswith(
        "vpa: cannot load checkpoint for VPA shop/web. Reason: cpuHistogram.bucketWei"
    )


@pytest.mark.parametrize("richer_first", [False, True])
def test_of_two_checkpoints_of_one_container_the_one_that_knows_more_counts_as_in_the_service(
    shell: Shell, richer_first: bool
) -> None:
    """Two VPAs over the same pods have a checkpoint each; the order of the files says nothing."""

    def checkpoint(vpa: str, bucket: str, samples: int) -> dict[str, Any]:
        histogram = {
            "referenceTimestamp": "2026-08-01T00:00:00Z",
            "bucketWeights": {bucket: 10000},
            "totalWeight": 100.0,
        }
        return {
            "kind": "VerticalPodAutoscalerCheckpoint",
            "metadata": {"name": f"{vpa}-app", "namespace": "shop"},
            "spec": {"vpaObjectName": vpa, "containerName": "app"},
            "status": {
                "version": "v3",
                "cpuHistogram": histogram,
                "memoryHistogram": {"referenceTimestamp": None},
                "firstSampleStart": "2026-07-24T00:00:00Z",
                "lastSampleStart": "2026-08-01T00:00:00Z",
                "totalSamplesCount": samples,
            },
        }

    both = [checkpoint("web", "25", 11520), checkpoint("other", "5", 100)]
    stored = both if richer_first else reversed(both)
    objects = shell.objects(deployment(), pod(), autoscaler(), autoscaler("other"), *stored)
    for status in shell.statuses("-f", objects):
        assert containers(status)["app"]["target"]["cpu"] == "587m"


def test_an_unreadable_target_keeps_the_recommendation_and_says_why(shell: Shell) -> None:
    vpa = autoscaler()
    kept = {"containerName": "app", "target": {"cpu": "321m"}}
    vpa["status"] = {"recommendation": {"containerRecommendations": [kept]}}
    (status,) = shell.statuses("-f", shell.objects(vpa))
    assert containers(status)["app"]["target"] == {"cpu": "321m"}
    found = {condition["type"]: condition for condition in status["conditions"]}
    words = "Cannot read targetRef. Reason: Deployment shop/web does not exist"
    assert found["ConfigUnsupported"]["message"] == words
    (status,) = shell.statuses("-f", shell.objects(vpa), "--compatibility=upstream")
    assert status["recommendation"] == {}
    assert conditions(status) == {
        "ConfigUnsupported": "True",
        "NoPodsMatched": "True",
        "RecommendationProvided": "False",
    }


def test_two_vpas_over_the_same_pods_both_say_so(shell: Shell) -> None:
    older, newer = autoscaler("older"), autoscaler("newer")
    older["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    newer["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    statuses = shell.statuses("-f", shell.objects(deployment(), pod(), newer, older))
    messages = [c["message"] for status in statuses for c in status["conditions"] if c["type"] == "Conflict"]
    assert [message.partition(". ")[0] for message in messages] == [
        "The same pods are matched by older; older is the oldest and holds",
        "The same pods are matched by newer; this one is the oldest and holds",
    ]


def test_what_keeps_a_pod_from_its_uncapped_target_is_named_as_the_service_names_it(shell: Shell) -> None:
    vpa = autoscaler()
    vpa["spec"]["resourcePolicy"] = {
        "containerPolicies": [{"containerName": "*", "maxAllowed": {"cpu": "50m"}}]
    }
    usage = shell.usage(*(line(cpu=1, time=NOON + 60 * minute) for minute in range(5)))
    (status,) = shell.statuses("-f", shell.objects(deployment(), pod(), vpa), "--usage", usage)
    (capped,) = [condition for condition in status["conditions"] if condition["type"] == "Capped"]
    assert capped["reason"] == "Policy"
    assert capped["message"] == "app gets 50m cpu instead of 1168m, capped by policy"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ('{"time": 1, "pod": ', "usage.jsonl, line 2: Input data was truncated"),
        ('{"time": 1, "pod": "p", "container": "c", "cpu": NaN}', "usage.jsonl, line 2: JSON is malformed"),
        (line(cpu="NaN"), "usage.jsonl, line 2: cpu:"),
        (line(memory="12X"), "usage.jsonl, line 2: memory:"),
        (line(time="noon", cpu=1), 'usage.jsonl, line 2: time: "noon" is not an RFC 3339 time'),
        (line(oom={"memory": "much"}), "usage.jsonl, line 2: oom.memory:"),
        ({"time": NOON, "container": "c"}, "usage.jsonl, line 2: Object missing required field `pod`"),
        (line(cpu=True), "usage.jsonl, line 2: Expected"),
        ("\xff", "usage.jsonl, line 2:"),
    ],
)
def test_a_usage_line_that_means_nothing_ends_the_command_with_its_number(
    shell: Shell, bad: Any, words: str
) -> None:
    objects = shell.objects(deployment(), pod(), autoscaler())
    usage = shell.usage(line(cpu=1), bad)
    result = shell.run("-f", objects, "--usage", usage)
    assert result.returncode == 1
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is neither YAML nor JSON"),
        ("just text", "is not a Kubernetes object: it has no kind"),
        ("kind: Pod", "a Pod has no metadata"),
        ("{kind: Pod, metadata: {}}", "has no name"),
        (
            json.dumps(autoscaler(resourcePolicy={"containerPolicies": [{"minAllowed": {"cpu": "x"}}]})),
            "shop/web",
        ),
        (json.dumps(autoscaler(updatePolicy="Auto")), "VerticalPodAutoscaler shop/web: Expected"),
    ],
)
def test_objects_that_mean_nothing_end_the_command_with_one_sentence(
    shell: Shell, text: str, words: str
) -> None:
    path = shell.folder / "bad.yaml"
    path.write_text(text)
    result = shell.run("-f", str(path))
    assert result.returncode == 1
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_objects_of_other_kinds_are_left_out_and_counted(shell: Shell) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    result = shell.run("-f", shell.objects(deployment(), pod(), autoscaler(), service))
    assert result.returncode == 0
    assert result.stderr == "vpa: objects of other kinds are left out: Service (1)\n"


def test_negative_and_late_samples_are_rejected_and_counted(shell: Shell) -> None:
    objects = shell.objects(deployment(), pod(), autoscaler())
    usage = shell.usage(
        line(cpu=1), line(cpu=1), line(cpu=-1, time=NOON + 9), line(memory=1, time=NOON + 5), line(memory=1)
    )
    result = shell.run("-f", objects, "--usage", usage)
    assert result.returncode == 0
    assert "3 samples are rejected" in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--target-cpu-percentil=0.8"], "did you mean --target-cpu-percentile?"),
        (["--round-cpu-millicores=x"], 'invalid argument "x"'),
        (["-o", "xml"], "use table, yaml or json"),
        (["--now", "soon"], "neither RFC 3339"),
        (["--now", "1e300"], "neither RFC 3339"),
    ],
)
def test_wrong_usage_ends_with_status_2(shell: Shell, args: list[str], words: str) -> None:
    result = shell.run("-f", shell.objects(autoscaler()), *args)
    assert result.returncode == 2
    assert result.stdout == ""
    assert words in " ".join(result.stderr.split())


def test_flags_of_the_recommender_change_the_numbers(shell: Shell) -> None:
    objects = shell.objects(deployment(), pod(), autoscaler())
    flags = ["--pod_recommendation_min_cpu_millicores=40", "--round-cpu-millicores=50"]
    (status,) = shell.statuses("-f", objects, *flags)
    assert containers(status)["app"]["target"]["cpu"] == "50m"


def test_a_missing_file_is_named(shell: Shell) -> None:
    for files in (["-f", "/nowhere.yaml"], ["-f", shell.objects(autoscaler()), "/nowhere.yaml"]):
        result = shell.run(*files)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == "vpa: /nowhere.yaml: cannot be read: No such file or directory\n"


def test_explanations_fit_into_80_columns(shell: Shell) -> None:
    objects = shell.objects(deployment(), pod(), autoscaler())
    usage = shell.usage(*(line(time=NOON + 60 * i, cpu=0.5, memory=500 * 2**20) for i in range(100)))
    result = shell.run("-f", objects, "--usage", usage, "--explain")
    assert result.returncode == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    for words in ("percentile", "p90 of CPU use: bucket 25", "+ 15 % safety margin", "pod minimum 25m ÷ 1"):
        assert words in result.stdout


def test_a_long_file_is_fed_whole_block_by_block(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usagefiles, "_BLOCK", 5000)
    objects = shell.objects(deployment(), pod(), autoscaler())
    usage = shell.usage(
        *(line(time=NOON + i, cpu=i % 997 / 1000, memory=10**8 + i * 7919 % 10**8) for i in range(5000))
    )
    blocks: list[int] = []
    scene = Scene(read([objects]), Options())
    feeder = usagefiles.Feeder(scene.usage, scene.locate, blocks.append)
    feeder.feed(usage)
    assert len(blocks) > 50
    assert (feeder.lines, feeder.rejected) == (5000, 0)
    assert int(scene.usage.sample_count[0]) == 5000


def test_the_installed_command_runs_as_a_process(shell: Shell) -> None:
    command = [
        sys.executable,
        "-m",
        "vpa.cli",
        "recommend",
        "-f",
        shell.objects(deployment(), pod(), autoscaler()),
    ]
    result = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["items"][0]["status"]["observedGeneration"] == 2
    result = subprocess.run([*command, "-f", "/nowhere"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")


def test_importing_the_library_needs_numpy_and_msgspec_alone() -> None:
    code = (
        "import sys, vpa, vpa.recommendations, vpa.usage, vpa.checkpoints;"
        "names = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(names & {'aiohttp', 'kubernetes', 'rich', 'typer', 'asyncio', 'yaml'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
