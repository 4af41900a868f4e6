"""Services in front of two API servers, killed, drained and renewed: nothing is lost.

That a call of the webhook is never lost in a rolling restart is shown in ``test_admission_rollout``, what a
lease and a watch do by themselves in ``tests/faults``; here all three are at work.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from tests.cluster import roles
from tests.cluster.balancer import Balancer
from tests.cluster.recommending import Shop
from tests.cluster.rendering import COMPONENTS
from tests.cluster.replicas import LEASES, Replica, clean_up, is_sized
from tests.testbed.certificates import ADDRESS, Authority
from tests.testbed.cluster import Cluster
from tests.testbed.nodes import FakeNodes

pytestmark = pytest.mark.cluster

REPLICAS = 4
LEASE = 15
PATIENT = (
    f"--leader-elect-lease-duration={LEASE}s",
    "--leader-elect-renew-deadline=10s",
    "--leader-elect-retry-period=2s",
)
"""The defaults: who has to wait until a lease runs out is told from who does not."""
NAMES = itertools.count()


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """One cluster with two API servers."""
    with Cluster(apiservers=2, nodes=[FakeNodes()]) as running:
        yield running


@dataclass
class Scene:
    """A shop whose pods use more than they ask for, and two replicas of each service."""

    shop: Shop
    webhooks: Balancer
    authority: Authority
    kubeconfig_of: str
    """The address of the API server, as the services have it."""
    flags: tuple[str, ...] = ()
    election: tuple[str, ...] = ()
    replicas: list[Replica] = field(default_factory=list)

    def start(self, component: str) -> Replica:
        """One more replica."""
        account = self.shop.cluster.service_account("kube-system", f"vpa-{component}")
        roles.ours(component).grant_to(account)
        flags = [*self.flags, *(self.election if component in LEASES else ())]
        if component == "updater":
            flags.append("--wait-for-history=false")  # a minute is all that there is
        made = Replica(
            component,
            shop=self.shop,
            account=account,
            balancer=self.webhooks,
            authority=self.authority,
            name=f"{component}-{next(NAMES)}",
            kubeconfig=account.kubeconfig_to(self.kubeconfig_of),
            flags=flags,
        )
        self.replicas.append(made)
        return made

    def of(self, component: str) -> list[Replica]:
        """Its replicas that run, the leader first."""
        found = [each for each in self.replicas if each.component == component and each.process.running]
        return sorted(found, key=lambda each: -each.rounds()) if component in LEASES else found

    def holder(self, component: str) -> str:
        lease = self.shop.api.get("Lease", LEASES[component], "kube-system")
        return str(lease["spec"].get("holderIdentity") or "")

    def order(self, name: str, mode: str = "Recreate") -> None:
        """A workload that is too small, and its VPA."""
        self.shop.workload(name, replicas=REPLICAS)
        self.shop.use(name, cpu=0.5, memory=400)
        self.shop.vpa(name, updatePolicy={"updateMode": mode})

    def wait_until_sized(self, name: str) -> None:
        leaders = [self.of(each)[0].process for each in LEASES]
        self.shop.wait(f"{name} to be sized", lambda: is_sized(self.shop, name, REPLICAS), *leaders)


@contextlib.contextmanager
def opened(
    cluster: Cluster,
    namespace: str,
    address: str,
    *flags: str,
    replicas: int = 2,
    election: tuple[str, ...] = (),
) -> Iterator[Scene]:
    """A scene with *replicas* of each service."""
    shop = Shop(cluster, namespace)
    cluster.create_namespace(namespace)
    with Balancer() as webhooks:
        authority = Authority(cluster.folder / namespace)
        scene = Scene(shop, webhooks, authority, address, flags, election)
        try:
            for component in COMPONENTS:
                for _ in range(replicas):
                    scene.start(component)
            yield scene
        finally:
            for each in scene.replicas:
                each.process.kill()
            clean_up(shop)
            cluster.metrics.reset()
            cluster.api.delete("Namespace", namespace)


class Watch:
    """Looks at the pods of an app all the time: how few of them ran at once?"""

    def __init__(self, shop: Shop, app: str) -> None:
        self.fewest = REPLICAS
        self._shop, self._app = shop, app
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            pods = self._shop.api.list("Pod", self._shop.namespace, labelSelector=f"app={self._app}")
            running = [
                pod
                for pod in pods
                if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            ]
            self.fewest = min(self.fewest, len(running))


def test_when_leaders_are_killed_the_others_go_on_with_what_they_left(pair: Cluster) -> None:
    with opened(pair, "killed", pair.server) as scene:
        shop = scene.shop
        shop.remember("web", "web", days=(9, 1), buckets=(25, 23), weight=10.0)
        saved = shop.checkpoint("web", "web")["totalSamplesCount"]
        scene.order("web")
        shop.wait("usage", lambda: shop.has_cpu("web", "587m"))
        with Watch(shop, "web") as watch:
            shop.wait("the first eviction", lambda: watch.fewest < REPLICAS)
            recommended = shop.status("web")["recommendation"]["containerRecommendations"][0]["target"]
            for component in LEASES:
                leader, other = scene.of(component)
                assert other.rounds() == 0
                leader.kill()
            killed, left = scene.of("admission-controller")
            killed.kill()
            scene.wait_until_sized("web")
            assert left.process.running
        assert watch.fewest >= REPLICAS / 2, "two leaders of an updater never add up"
        for component in LEASES:
            (new,) = scene.of(component)
            new.wait_for_rounds(2)
        entry = shop.status("web")["recommendation"]["containerRecommendations"][0]
        assert entry["target"] == recommended
        assert scene.of("recommender")[0].process.stop() == 0
        assert shop.checkpoint("web", "web")["totalSamplesCount"] > saved


def test_a_rolling_update_of_all_three_loses_no_loop(pair: Cluster) -> None:
    with opened(pair, "rolled", pair.server, election=PATIENT) as scene:
        scene.order("web", mode="InPlaceOrRecreate")
        scene.wait_until_sized("web")
        for component in COMPONENTS:
            for old in scene.of(component):
                new = scene.start(component)
                leads = component in LEASES and old.rounds() > 0
                asked = time.monotonic()
                assert old.stop() == 0
                if leads:
                    scene.shop.wait(
                        "another to lead",
                        lambda c=component: any(each.rounds() > 0 for each in scene.of(c)),  # type: ignore[misc]
                        new.process,
                    )
                    took = time.monotonic() - asked
                    print(f"{component}: the next loop {took:.2f} s after SIGTERM")
                    assert took < LEASE - 2, "the lease was given back"
        scene.order("late", mode="InPlaceOrRecreate")
        scene.wait_until_sized("late")
        assert scene.webhooks.refused == 0


@pytest.mark.parametrize("how", ["by name", "behind one address"])
def test_when_an_api_server_dies_all_three_go_on_at_the_other(pair: Cluster, how: str) -> None:
    dying = pair.process("kube-apiserver-2")
    ports = [urlsplit(server).port or 0 for server in reversed(pair.servers)]
    with Balancer() as service, contextlib.ExitStack() as stack:
        for port in ports:
            service.add(port)
        address, flags = f"https://{ADDRESS}:{service.port}", []
        if how == "by name":
            flags = [f"--kube-api-servers={','.join(reversed(pair.servers))}"]
            address = pair.servers[1]
        scene = stack.enter_context(
            opened(pair, f"outage-{len(how)}", address, *flags, replicas=1, election=PATIENT)
        )
        scene.order("web", mode="InPlaceOrRecreate")
        scene.wait_until_sized("web")
        before = {component: scene.holder(component) for component in LEASES}
        rounds = {component: scene.of(component)[0].rounds() for component in LEASES}
        dying.kill()
        stack.callback(pair.wait_until_ready)
        stack.callback(dying.start)
        if how != "by name":
            time.sleep(3)  # so long nobody has told the Service
            service.remove(ports[0])
        scene.order("late")
        scene.wait_until_sized("late")
        assert {component: scene.holder(component) for component in LEASES} == before, "no lease is lost"
        for component in LEASES:
            assert scene.of(component)[0].rounds() > rounds[component]
        assert all(each.process.running for each in scene.replicas)
