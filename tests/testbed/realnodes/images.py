"""Images without a registry: layers as deterministic tar files, and archives in the OCI layout to import."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.testbed import builds, components, folders, locks
from tests.testbed.realnodes.configuration import PAUSE

WORK = "testbed.local/work:1"
"""A workload that uses as much CPU and memory as it is asked to."""

_MEDIA = "application/vnd.oci.image"
_PLATFORM = {"architecture": "amd64", "os": "linux"}
_PASSWD = b"root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"


@dataclass(frozen=True)
class Entry:
    """A file, a link or a folder of an image."""

    path: str
    """Where in the image, without the leading slash."""
    content: Path | bytes | None = None
    """What is in it; None: it is a folder, or a link."""
    link: str = ""
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class Image:
    """A name and what it stands for."""

    name: str
    """With a registry's name and a tag, as the runtime knows it."""
    layers: Sequence[Path]
    entrypoint: Sequence[str]
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all layers, not compressed."""
        return sum(layer.stat().st_size for layer in self.layers)


def layer(target: Path, entries: Iterable[Entry]) -> Path:
    """Write a layer: everything is root's and as old as the epoch, so that equal content is an equal file."""
    unfinished = target.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as archive:
        for path, entry in sorted({entry.path: entry for entry in entries}.items()):
            member = tarfile.TarInfo(path)
            member.mode = entry.mode
            if entry.link:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.link, 0o777
                archive.addfile(member)
            elif entry.content is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                content = entry.content if isinstance(entry.content, bytes) else entry.content.read_bytes()
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    unfinished.rename(target)
    return target


def system() -> list[Entry]:
    """What every image has: the user nobody and a place for temporary files."""
    return [
        Entry("etc/passwd", _PASSWD),
        Entry("tmp", mode=0o1777),
    ]


def archive(target: Path, images: Sequence[Image]) -> Path:
    """Write *images* into one file in the OCI layout; layers that they share are in it once."""
    blobs: dict[str, bytes | Path] = {}
    manifests = [_manifest(image, blobs) for image in images]
    index = {"schemaVersion": 2, "mediaType": f"{_MEDIA}.index.v1+json", "manifests": manifests}
    unfinished = target.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w") as out:
        _add(out, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(out, "index.json", json.dumps(index).encode())
        for digest, content in blobs.items():
            name = f"blobs/sha256/{digest}"
            if isinstance(content, bytes):
                _add(out, name, content)
            else:
                member = tarfile.TarInfo(name)
                member.size = content.stat().st_size
                with content.open("rb") as file:
                    out.addfile(member, file)
    unfinished.rename(target)
    return target


def basic() -> Path:
    """The archive with the images that every node needs, made once."""
    programs = builds.ensure(components.COMPONENTS["workloads"])
    key = "-".join(sorted({programs[name].parent.name for name in ("pause", "work")}))
    target = folders.cache() / "images" / f"{key}.tar"
    with locks.held(target.with_suffix(".lock")):
        if not target.exists():
            archive(target, [single(PAUSE, programs["pause"]), single(WORK, programs["work"])])
    return target


def single(name: str, program: Path) -> Image:
    """An image of one static program."""
    folder = folders.cache() / "images"
    entries = [*system(), Entry(program.name, program, mode=0o755)]
    written = layer(folder / f"{program.parent.name}-{program.name}.layer", entries)
    return Image(name=name, layers=[written], entrypoint=[f"/{program.name}"])


def _manifest(image: Image, blobs: dict[str, bytes | Path]) -> dict[str, Any]:
    layers = []
    for path in image.layers:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        blobs[digest] = path
        layers.append(_descriptor(digest, path.stat().st_size, "layer.v1.tar"))
    settings: dict[str, Any] = {"Entrypoint": list(image.entrypoint), "WorkingDir": "/"}
    settings["Env"] = [f"{name}={value}" for name, value in image.env.items()]
    if image.user:
        settings["User"] = image.user
    config = {
        **_PLATFORM,
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [one["digest"] for one in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": _json(config, "config.v1+json", blobs),
        "layers": layers,
    }
    described = _json(manifest, "manifest.v1+json", blobs)
    annotations = {
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
    }
    return {**described, "platform": _PLATFORM, "annotations": annotations}


def _json(content: Any, kind: str, blobs: dict[str, bytes | Path]) -> dict[str, Any]:
    text = json.dumps(content).encode()
    digest = hashlib.sha256(text).hexdigest()
    blobs[digest] = text
    return _descriptor(digest, len(text), kind)


def _descriptor(digest: str, size: int, kind: str) -> dict[str, Any]:
    return {"mediaType": f"{_MEDIA}.{kind}", "digest": f"sha256:{digest}", "size": size}


def _add(out: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    out.addfile(member, io.BytesIO(content))
