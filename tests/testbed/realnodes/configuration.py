"""The configuration files of a node's containerd, CNI and kubelet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAUSE = "testbed.local/pause:1"
SOCKET = "/run/containerd/containerd.sock"

_UNUSED_PLUGINS = (
    "io.containerd.differ.v1.erofs",
    "io.containerd.internal.v1.tracing",
    "io.containerd.nri.v1.nri",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.tracing.processor.v1.otlp",
)

KERNEL_SETTINGS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
"""What the kubelet wants to find below /proc/sys. It is shown files that say so: these settings have no
namespaces, and the machine's own stay as they are."""


def containerd(*, programs: Path, cni: Path, runc: Path, may_raise_priority: bool) -> str:
    """containerd's configuration; its data are in /var/lib/containerd.

    Without CAP_SYS_RESOURCE (*may_raise_priority* false) no process may be made less likely to be OOM-killed
    than its parent: no pod would start.
    """
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = {list(_UNUSED_PLUGINS)}
[grpc]
  address = "{SOCKET}"
[plugins.'io.containerd.internal.v1.opt']
  path = "/var/lib/containerd/opt"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = {str(not may_raise_priority).lower()}
  enable_cdi = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{programs}"]
    conf_dir = "{cni}"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false
"""


def cni(pods: str) -> dict[str, Any]:
    """A bridge on the node with the addresses *pods*; no address is ever translated."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni-addresses",
    }
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def kubelet(
    *, address: str, ca: Path, certificate: Path, key: Path, resolver: Path, reserved: dict[str, str]
) -> dict[str, Any]:
    """The kubelet's configuration; *reserved* is what is taken from the node's capacity."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": ["pods"],
        "systemReserved": reserved,
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "address": address,
        "healthzBindAddress": "127.0.0.1",
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(ca)},
        },
        "authorization": {"mode": "Webhook"},
        "failSwapOn": False,
        "protectKernelDefaults": True,
        "makeIPTablesUtilChains": False,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "evictionPressureTransitionPeriod": "5s",
        "resolvConf": str(resolver),
        "clusterDomain": "cluster.local",
        "clusterDNS": ["10.0.0.10"],
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
        "containerLogMaxSize": "10Mi",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }
