"""The three images of this project as deploy/Dockerfile makes them, without a builder or a registry.

The base is the running Python with the libraries that it and the wheels need; above it the locked
dependencies in one layer and our own wheel in another, which all three images share. Each layer is kept in
the cache until what it is made from changes.
"""

from __future__ import annotations

import hashlib
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.testbed import folders, locks
from tests.testbed.progress import Progress
from tests.testbed.realnodes import images
from tests.testbed.realnodes.images import Entry, Image
from tests.testbed.runs import REPOSITORY

PROGRAMS = {"recommender": "recommender", "updater": "updater", "admission-controller": "admission"}
"""The part of the image's name → the Python package that it runs."""

LIMIT = 150 * 10**6
"""Bytes that an image may have, all layers together and not compressed."""

_SOURCES = ("vpa", *PROGRAMS.values())
_LOCK = REPOSITORY / "deploy" / "requirements.lock"
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_SITE = f"opt/vpa/lib/{_PYTHON}/site-packages"

# Of the standard library, what no server uses: tests, windows, installers, and the tools of C programmers.
_LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|tests?|idlelib|tkinter|turtledemo|lib2to3|ensurepip|distutils|unittest|pydoc_data)/"
    r"|^(site-packages|config-[^/]*)/"
    r"|^lib-dynload/(_tkinter|_test|_ctypes_test|xxlimited|nis|_crypt|_dbm|_gdbm|readline|_curses|_sqlite3"
    r"|_codecs_)"
    r"|^turtle\.py$"
)
# Of the dependencies, what deploy/Dockerfile takes out too.
_LEAN = REPOSITORY / "deploy" / "lean.py"
_UNUSED: re.Pattern[str] = runpy.run_path(str(_LEAN))["UNUSED"]
# The libraries that a wheel brings, and what was made to find them, are no longer what a linker wrote: strip
# breaks them.
_UNSTRIPPABLE = re.compile(r"\.libs/|/numpy/")

_SHELL_FREE = {"PATH": "/opt/vpa/bin"}


class ImageError(Exception):
    """The image could not be made; the message has the last words of the tool that failed."""


def name(program: str) -> str:
    """The name that containerd knows the image of *program* (a key of `PROGRAMS`) by."""
    return f"docker.io/library/vpa-{program}:{version()}"


def version() -> str:
    """This project's version, which is the images' tag."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def archive() -> Path:
    """The archive with the three images, made now if need be. Raises `ImageError`."""
    cache = folders.cache() / "images"
    cache.mkdir(exist_ok=True)
    with locks.held(cache / "project.lock"):
        built = list(_images(cache))
        key = _key(*(layer.name.encode() for layer in built[0].layers), version().encode())
        target = cache / f"project-{key}.tar"
        if not target.exists():
            _forget(cache, "project-*.tar")
            images.archive(target, built)
    return target


def size() -> int:
    """Bytes of one image, not compressed."""
    archive()
    return next(_images(folders.cache() / "images")).size


def _images(cache: Path) -> Iterator[Image]:
    progress = Progress("image of this project")
    dependencies = _dependencies(cache, progress)
    layers = [_base(cache, dependencies, progress), dependencies, _own(cache, progress)]
    for program, package in PROGRAMS.items():
        yield Image(
            name=name(program),
            layers=layers,
            entrypoint=["/opt/vpa/bin/python", "-IB", "-m", package],
            user="65534:65534",
            env=_SHELL_FREE,
        )


def _base(cache: Path, dependencies: Path, progress: Progress) -> Path:
    """The layer with Python, laid out as a prefix in /usr/local with a virtual environment in /opt/vpa."""
    target = cache / f"base-{_key(sys.version.encode(), dependencies.name.encode(), _self())}.layer"
    if target.exists():
        return target
    progress.show("copying Python")
    standard = Path(sysconfig.get_path("stdlib"))
    with tempfile.TemporaryDirectory(dir=cache) as stage:
        library = Path(stage) / f"usr/local/lib/{_PYTHON}"
        _copy(standard, library, _LEFT_OUT)
        _compile(library, Path(stage))
        binary = Path(sys.base_prefix) / "bin" / _PYTHON
        objects = [binary, *library.glob("lib-dynload/*.so"), *_shared_objects(dependencies, Path(stage))]
        libraries = list(_libraries(objects, Path(stage) / "libraries"))
        program = _stripped(binary, Path(stage) / "libraries")
        home = "home = /usr/local/bin\ninclude-system-site-packages = false\n"
        entries = [
            *images.system(),
            *_tree(Path(stage), "usr"),
            *libraries,
            Entry(f"usr/local/bin/{_PYTHON}", program, mode=0o755),
            Entry("opt/vpa/pyvenv.cfg", home.encode()),
            Entry("opt/vpa/bin/python", link=f"/usr/local/bin/{_PYTHON}"),
        ]
        images.layer(target, entries)
    progress.finish(f"Python: {target.stat().st_size / 1e6:.0f} MB")
    return target


def _dependencies(cache: Path, progress: Progress) -> Path:
    """The layer with the packages of deploy/requirements.lock."""
    target = cache / f"dependencies-{_key(_LOCK.read_bytes(), sys.version.encode(), _self())}.layer"
    if target.exists():
        return target
    _forget(cache, "dependencies-*.layer", "base-*.layer")
    progress.show("installing the packages of deploy/requirements.lock")
    with tempfile.TemporaryDirectory(dir=cache) as stage:
        installed = Path(stage) / "installed"
        pip = ["install", "--target", str(installed), "--no-compile", "--require-hashes"]
        _pip(*pip, "--only-binary=:all:", "-r", str(_LOCK))
        _layer_of(installed, target, Path(stage))
    progress.finish(f"dependencies: {target.stat().st_size / 1e6:.0f} MB")
    return target


def _own(cache: Path, progress: Progress) -> Path:
    """The layer with our own wheel."""
    sources = sorted(path for folder in _SOURCES for path in (REPOSITORY / folder).rglob("*.py"))
    parts = [
        part for path in sources for part in (str(path.relative_to(REPOSITORY)).encode(), path.read_bytes())
    ]
    parts += [(REPOSITORY / "pyproject.toml").read_bytes(), sys.version.encode(), _self()]
    target = cache / f"own-{_key(*parts)}.layer"
    if target.exists():
        return target
    _forget(cache, "own-*.layer")
    progress.show("building the wheel")
    with tempfile.TemporaryDirectory(dir=cache) as stage:
        _pip("wheel", "--no-deps", "--wheel-dir", stage, str(REPOSITORY))
        wheel = next(Path(stage).glob("*.whl"))
        installed = Path(stage) / "installed"
        _pip("install", "--target", str(installed), "--no-compile", "--no-deps", "--no-index", str(wheel))
        _layer_of(installed, target, Path(stage))
    progress.finish(f"our own code: {target.stat().st_size / 1e6:.1f} MB")
    return target


def _layer_of(installed: Path, target: Path, stage: Path) -> None:
    """Write what was installed as a layer, compiled for where it will be."""
    root = stage / "root"
    site = root / _SITE
    _copy(installed, site, _UNUSED)
    _compile(site, root)
    images.layer(target, _tree(root))


def _copy(source: Path, target: Path, left_out: re.Pattern[str]) -> None:
    for path in source.rglob("*"):
        relative = path.relative_to(source).as_posix()
        if path.is_file() and not left_out.search(relative):
            copy = target / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            if ".so" in copy.suffixes and not _UNSTRIPPABLE.search(str(copy)):
                _strip(copy)


def _strip(file: Path) -> None:
    """Take the names out of a program or library that only a debugger uses."""
    strip = shutil.which("strip")
    if strip is not None:
        subprocess.run([strip, "--strip-unneeded", file], capture_output=True, check=False)


def _stripped(file: Path, folder: Path) -> Path:
    copy = folder / file.name
    shutil.copyfile(file.resolve(), copy)
    _strip(copy)
    return copy


def _compile(folder: Path, root: Path) -> None:
    """Compile ahead, since the root is read-only; the sources are not looked at again."""
    command = [sys.executable, "-m", "compileall", "-q", "-s", str(root), "-p", "/"]
    subprocess.run([*command, "--invalidation-mode=unchecked-hash", str(folder)], check=False)


def _tree(root: Path, top: str = "") -> Iterator[Entry]:
    for path in (root / top).rglob("*"):
        if path.is_file():
            yield Entry(path.relative_to(root).as_posix(), path)


def _shared_objects(dependencies: Path, stage: Path) -> list[Path]:
    """The shared objects in the layer *dependencies*, unpacked to be looked at."""
    folder = stage / "dependencies"
    folder.mkdir()
    subprocess.run(["tar", "-xf", dependencies, "-C", folder, "--wildcards", "*.so*"], check=True)
    return [path for path in folder.rglob("*.so*") if path.is_file()]


def _libraries(objects: Iterable[Path], stage: Path) -> Iterator[Entry]:
    """The system's libraries that *objects* need, all in the folder of its C library, and the loader."""
    stage.mkdir()
    found: dict[str, Path] = {}
    loader = ""
    for path in objects:
        done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            words = line.split()
            if "=>" in words and words[2].startswith("/"):
                found.setdefault(words[0], Path(words[2]))
            elif words and words[0].startswith("/lib") and "ld-" in words[0]:
                loader = words[0]
    if "libc.so.6" not in found or not loader:
        raise ImageError(f"ldd does not say which libraries {sys.base_prefix} needs")
    folder = found["libc.so.6"].resolve().parent
    for soname, file in found.items():
        if "dependencies" not in file.parts:  # a wheel brings its own, and finds them
            yield Entry(f"{folder}/{soname}".lstrip("/"), _stripped(file, stage), mode=0o755)
    for top in ("lib", "lib64"):
        link = Path("/") / top
        if link.is_symlink():
            yield Entry(top, link=str(link.readlink()))
    yield Entry(
        str(Path(loader).parent.resolve() / Path(loader).name).lstrip("/"), Path(loader).resolve(), mode=0o755
    )


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"pip {arguments[0]} failed: {done.stderr.strip()[-2000:]}")


def _forget(cache: Path, *patterns: str) -> None:
    for pattern in patterns:
        for left in cache.glob(pattern):
            left.unlink()


def _self() -> bytes:
    return Path(__file__).read_bytes() + _LEAN.read_bytes()


def _key(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def main(arguments: Sequence[str]) -> int:
    """Write the archive to the given file, for `ctr images import` or `docker load`."""
    shutil.copyfile(archive(), arguments[0])
    for image in _images(folders.cache() / "images"):
        print(f"{image.name}\t{image.size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
