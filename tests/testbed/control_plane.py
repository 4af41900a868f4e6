"""The command lines of etcd and the control plane, on 127.0.0.1 unless there are real nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.certificates import ADDRESS, Authority, Certificate

SERVICE_RANGE = "10.0.0.0/16"


@dataclass(frozen=True)
class Keys:
    """All certificates and keys of one control plane."""

    authority: Authority
    server: Certificate
    admin: Certificate
    controller_manager: Certificate
    scheduler: Certificate
    front_proxy: Certificate
    kubelet_client: Certificate
    tokens: tuple[Path, Path]
    """Private and public key that service account tokens are signed with."""

    @classmethod
    def issue(cls, folder: Path, *names: str) -> Keys:
        """Issue everything into *folder*; *names* are more names and addresses of the API server."""
        authority = Authority(folder)
        return cls(
            authority=authority,
            server=authority.issue("kube-apiserver", names=("kubernetes.default.svc", "10.0.0.1", *names)),
            admin=authority.issue("admin", group="system:masters"),
            controller_manager=authority.issue("system:kube-controller-manager"),
            scheduler=authority.issue("system:kube-scheduler"),
            kubelet_client=authority.issue("kube-apiserver-kubelet-client", group="system:masters"),
            front_proxy=authority.issue("front-proxy"),
            tokens=authority.key_pair("service-accounts"),
        )


def etcd(program: Path, *, data: Path, port: int, peer_port: int) -> list[str | Path]:
    """etcd without fsync: the data is thrown away with the cluster."""
    client = f"http://{ADDRESS}:{port}"
    return [
        program,
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls=http://{ADDRESS}:{peer_port}",
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    ]


def apiserver(
    program: Path,
    keys: Keys,
    *,
    port: int,
    etcd_port: int,
    nodes_at: str | None = None,
    extra: Sequence[str],
    gates: Mapping[str, bool],
) -> list[str | Path]:
    """kube-apiserver with RBAC and the aggregator; real nodes reach it at the address *nodes_at*."""
    ca = keys.authority.certificate
    private, public = keys.tokens
    return [
        program,
        f"--etcd-servers=http://{ADDRESS}:{etcd_port}",
        *(_alone() if nodes_at is None else _with_nodes(keys, nodes_at)),
        f"--secure-port={port}",
        f"--tls-cert-file={keys.server.chain}",
        f"--tls-private-key-file={keys.server.key}",
        f"--client-ca-file={ca}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={private}",
        f"--service-account-key-file={public}",
        f"--requestheader-client-ca-file={ca}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={keys.front_proxy.chain}",
        f"--proxy-client-key-file={keys.front_proxy.key}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--allow-privileged=true",
        *_gates(gates),
        *extra,
    ]


def _alone() -> list[str]:
    return [
        f"--bind-address={ADDRESS}",
        f"--advertise-address={ADDRESS}",
        # The Endpoints of the Service `kubernetes` may not hold a loopback address, and nobody here asks for
        # them.
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
    ]


def _with_nodes(keys: Keys, address: str) -> list[str]:
    return [
        "--bind-address=0.0.0.0",
        f"--advertise-address={address}",
        "--authorization-mode=Node,RBAC",
        # It is on the network of the pods, but not behind a kube-proxy.
        "--enable-aggregator-routing=true",
        f"--kubelet-client-certificate={keys.kubelet_client.chain}",
        f"--kubelet-client-key={keys.kubelet_client.key}",
        f"--kubelet-certificate-authority={keys.authority.certificate}",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def controller_manager(
    program: Path, keys: Keys, *, kubeconfig: Path, gates: Mapping[str, bool]
) -> list[str | Path]:
    """kube-controller-manager, each controller under its own service account."""
    return [
        program,
        *_client(kubeconfig),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={keys.tokens[0]}",
        f"--root-ca-file={keys.authority.certificate}",
        f"--flex-volume-plugin-dir={keys.authority.certificate.parent}/no-plugins",
        *_gates(gates),
    ]


def scheduler(program: Path, *, kubeconfig: Path, gates: Mapping[str, bool]) -> list[str | Path]:
    """kube-scheduler."""
    return [program, *_client(kubeconfig), *_gates(gates)]


def _client(kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        # The default of 20 requests a second would make tests with many pods wait for the client, not the
        # server.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def _gates(gates: Mapping[str, bool]) -> list[str]:
    if not gates:
        return []
    return ["--feature-gates=" + ",".join(f"{name}={str(on).lower()}" for name, on in sorted(gates.items()))]
