"""How the testbed reads and makes control groups of version 2, on trees of files as the kernel has them.

What it does on a kernel is shown by the tests on real nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.testbed.realnodes import cgroups
from tests.testbed.realnodes.cgroups import CgroupError, Groups, Hierarchy, survey

ALL = "cpuset cpu io memory pids"
POD = "kubepods/burstable/pod1d5c"


def make(top: Path, files: Mapping[str, str]) -> Path:
    """Files below *top*."""
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return top


def seen(folder: Path, root: Path, group: str) -> Path:
    """What a process in *group* sees of itself on a machine with version 2 at *root*."""
    mounted = f"26 20 0:24 / {root} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
    return make(folder, {"mountinfo": f"20 1 254:0 / / rw - ext4 /dev/root rw\n{mounted}", "cgroup": group})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty tree of version 2."""
    files = {"cgroup.controllers": ALL, "cgroup.subtree_control": "", "cgroup.procs": ""}
    return make(tmp_path / "cgroup", files)


def test_nodes_are_made_below_the_nearest_group_that_hands_its_controllers_on(
    tmp_path: Path, root: Path
) -> None:
    make(root, {"cgroup.subtree_control": ALL, "user/cgroup.subtree_control": ALL})
    make(root, {"user/shell/cgroup.subtree_control": "memory pids"})
    found = survey(process=seen(tmp_path / "self", root, "0::/user/shell"), root=root)
    assert found == (2, (Hierarchy("", root / "user"),))


def test_a_root_that_hands_nothing_on_is_told_to(tmp_path: Path, root: Path) -> None:
    assert survey(process=seen(tmp_path / "self", root, "0::/"), root=root) == (2, (Hierarchy("", root),))
    assert (root / "cgroup.subtree_control").read_text() == "+cpu +memory +pids +cpuset"


def test_a_kernel_without_cpusets_is_good_enough(tmp_path: Path, root: Path) -> None:
    make(root, {"cgroup.controllers": "cpu io memory pids"})
    survey(process=seen(tmp_path / "self", root, "0::/not/to/be/seen"), root=root)
    assert (root / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_what_is_missing_is_named(tmp_path: Path, root: Path) -> None:
    """As on a hybrid machine, where version 1 has all controllers but one."""
    make(root, {"cgroup.controllers": "hugetlb"})
    with pytest.raises(
        CgroupError, match=r"no cgroup controller cpu, memory, pids in .*, which is of version 2"
    ):
        survey(process=seen(tmp_path / "self", root, "0::/"), root=root)


def test_a_hybrid_machine_has_version_1(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    lines = [f"1 1 0:1 / {root} rw - tmpfs tmpfs rw", f"2 1 0:2 / {root}/unified rw - cgroup2 cgroup2 rw"]
    lines += [f"3 1 0:3 / {root}/{name} rw - cgroup cgroup rw,{name}" for name in cgroups.NEEDED_V1]
    own = [f"{number}:{name}:/jobs/one" for number, name in enumerate(cgroups.NEEDED_V1, 1)]
    process = make(tmp_path / "self", {"mountinfo": "\n".join(lines), "cgroup": "\n".join([*own, "0::/"])})
    version, hierarchies = survey(process=process, root=root)
    assert version == 1
    assert {each.options: each.parent for each in hierarchies} == {
        name: root / name / "jobs/one" for name in cgroups.NEEDED_V1
    }


@pytest.fixture
def groups(root: Path) -> Groups:
    """A node's groups with a pod of one container that has a limit of each kind."""
    files = {"cpu.max": "60000 100000", "cpu.weight": "17", "memory.max": "209715200"}
    make(root / "node-1" / POD / "c0ffee", {**files, "memory.current": "47185920"})
    make(root / "node-1" / POD, {"cpu.max": "max 100000", "cpu.weight": "4", "memory.max": "max"})
    return Groups(2, (Hierarchy("", root),), "node-1")


def test_limits_weights_and_use_are_read_in_the_units_of_both_versions(groups: Groups) -> None:
    container = groups.pod("1d5c", "c0ffee")
    assert container.cpu_limit == 600
    assert container.cpu_weight == 17
    assert container.memory_limit == 200 * 2**20
    assert container.memory == 45 * 2**20


def test_no_limit_is_none(groups: Groups) -> None:
    pod = groups.pod("1d5c")
    assert (pod.cpu_limit, pod.memory_limit) == (None, None)


@pytest.mark.parametrize("path", ["kubepods/podabc", "kubepods/besteffort/podabc"])
def test_pods_of_every_class_are_found(root: Path, path: str) -> None:
    make(root / "node-1" / path, {"cpu.weight": "1"})
    assert Groups(2, (Hierarchy("", root),), "node-1").pod("abc").cpu_weight == 1


def test_a_pod_without_a_group_is_a_lookup_error(groups: Groups) -> None:
    with pytest.raises(LookupError, match="no group podgone"):
        groups.pod("gone")


def test_a_node_is_limited_and_weighed_by_files_of_version_2(root: Path) -> None:
    groups = Groups(2, (Hierarchy("", root),), "node-1")
    (root / "node-1").mkdir()
    groups.limit_memory(2**31)
    groups.weigh(shares=4096, weight=400)
    assert (root / "node-1/memory.max").read_text() == str(2**31)
    assert (root / "node-1/cpu.weight").read_text() == "400"


def test_a_node_that_is_switched_off_keeps_no_groups_of_its_pods(groups: Groups) -> None:
    """Folders without files here: in a control group the kernel's files go with it."""
    (top,) = groups.folders
    for path in sorted(top.rglob("*"), reverse=True):
        if path.is_file():
            path.unlink()
    groups.init.mkdir()
    make(top, {"cgroup.subtree_control": "cpu memory pids"})
    groups.clear()
    assert [path.name for path in top.iterdir() if path.is_dir()] == ["init"]
    assert (top / "cgroup.subtree_control").read_text() == "-cpu -memory -pids"
