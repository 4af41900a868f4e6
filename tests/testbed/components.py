"""What can be built: one Go module per component, since their dependencies don't agree with each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed import folders

KUBERNETES = "v1.37.2"

_KUBERNETES_VERSION = " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in {
        "gitVersion": KUBERNETES,
        "gitMajor": KUBERNETES.removeprefix("v").split(".")[0],
        "gitMinor": KUBERNETES.split(".")[1],
    }.items()
)


@dataclass(frozen=True, kw_only=True)
class Component:
    """One Go module and the programs built from it."""

    name: str
    programs: dict[str, str]
    """Name of the binary → import path of its package."""
    ldflags: str = "-s -w"
    tags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    """Debian packages of C libraries to link with; without any, no C compiler is needed."""
    modules: Path = field(default=folders.HERE / "modules", repr=False)

    @property
    def module(self) -> Path:
        """The folder with this component's go.mod and go.sum."""
        return self.modules / self.name


_UPSTREAM_VPA = "k8s.io/autoscaler/vertical-pod-autoscaler/pkg"

COMPONENTS = {
    component.name: component
    for component in (
        Component(
            name="control-plane",
            programs={
                name: f"k8s.io/kubernetes/cmd/{name}"
                for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
            },
            # Without a version kubectl refuses the server's answers.
            ldflags=f"-s -w {_KUBERNETES_VERSION}",
        ),
        Component(name="etcd", programs={"etcd": "go.etcd.io/etcd/server/v3"}),
        Component(name="kwok", programs={"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
        Component(
            name="upstream-vpa",
            programs={
                f"upstream-{name}": f"{_UPSTREAM_VPA}/{name}"
                for name in ("recommender", "updater", "admission-controller")
            },
        ),
        Component(
            name="prometheus",
            programs={
                name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")
            },
            # The clouds' service discoveries are half of the program; files and HTTP stay.
            tags=("netgo", "remove_all_sd"),
        ),
        Component(
            name="trickster",
            programs={"trickster": "github.com/trickstercache/trickster/v2/cmd/trickster"},
        ),
        Component(
            name="trickster-1",
            programs={"trickster-1": "github.com/tricksterproxy/trickster/cmd/trickster"},
        ),
        Component(
            name="metrics-server",
            programs={"metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server"},
        ),
        Component(name="helm", programs={"helm": "helm.sh/helm/v4/cmd/helm"}),
        Component(
            name="kubelet",
            programs={name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kubelet", "kube-proxy")},
            ldflags=f"-s -w {_KUBERNETES_VERSION}",
        ),
        Component(
            name="containerd",
            programs={
                name: f"github.com/containerd/containerd/v2/cmd/{name}"
                for name in ("containerd", "containerd-shim-runc-v2", "ctr")
            },
            tags=(
                *("netgo", "osusergo", "static_build", "urfave_cli_no_docs"),
                *("no_aufs", "no_btrfs", "no_devmapper", "no_dynamic_plugins", "no_tracing", "no_zfs"),
            ),
        ),
        Component(
            name="runc",
            programs={"runc": "github.com/opencontainers/runc"},
            # Without seccomp it refuses every pod, since containerd asks the kernel only, which has it.
            tags=("netgo", "osusergo", "seccomp"),
            ldflags="-s -w -X main.version=1.5.3 -extldflags=-static",
            libraries=("libseccomp-dev",),
        ),
        Component(
            name="cni",
            programs={
                name: f"github.com/containernetworking/plugins/plugins/{kind}/{name}"
                for kind, name in (("main", "bridge"), ("main", "loopback"), ("ipam", "host-local"))
            },
        ),
        Component(
            name="workloads", programs={name: f"testbed/workloads/{name}" for name in ("pause", "work")}
        ),
    )
}

CLUSTER = ("etcd", "kwok", "control-plane")
"""What a cluster is made of, the quick ones first."""

REAL_NODES = ("workloads", "cni", "runc", "metrics-server", "containerd", "kubelet")
"""What real nodes need beyond `CLUSTER`."""


def component_of(program: str) -> Component:
    """The component that *program* is built from.

    Raises `KeyError` for an unknown program.
    """
    for component in COMPONENTS.values():
        if program in component.programs:
            return component
    raise KeyError(program)
