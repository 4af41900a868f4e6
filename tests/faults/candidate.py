"""A process that wants to lead and, while it leads, writes one object after another.

Each object says who wrote it and in which term, so that their order in the store tells whether two ever led
at once. Lines on stdout tell when it began and ceased to lead. With ``--wall-clock`` its wall clock jumps by
that many seconds, back and forth, at every look.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import time
from datetime import UTC, datetime, timedelta

from vpa.cluster.connection import Connection
from vpa.cluster.errors import RequestError
from vpa.cluster.leases import Election, LeadershipLostError
from vpa.cluster.resources import CONFIG_MAPS
from vpa.cluster.writes import create
from vpa.objects.meta import PartialObject


def say(what: str) -> None:
    print(json.dumps({"at": time.time(), "what": what}), flush=True)


async def write(connection: Connection, election: Election, namespace: str) -> None:
    """Write for as long as we lead; the fence of the connection raises when we don't."""
    while True:
        body = {
            "metadata": {"generateName": "w-", "labels": {"written": "true"}},
            "data": {"who": election.identity, "term": str(election.term)},
        }
        try:
            await create(connection, CONFIG_MAPS, body, kind=PartialObject, namespace=namespace, timeout=1.0)
        except RequestError as error:
            say(f"failed: {error}")
        await asyncio.sleep(0.02)


async def announce(election: Election) -> None:
    """Say once that we have seen who holds the lease: from then on we can take it over."""
    while not election.holder:  # noqa: ASYNC110 - nobody but this test wants to be told
        await asyncio.sleep(0.01)
    say(f"sees {election.holder}")


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("kubeconfig", "namespace", "lease", "identity"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--durations", type=float, nargs=3, required=True)
    parser.add_argument("--wall-clock", type=float, default=0.0)
    arguments = parser.parse_args()
    jumps = itertools.cycle([timedelta(seconds=arguments.wall_clock), timedelta(0)])
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with await Connection.open(kubeconfig=arguments.kubeconfig, qps=0) as connection:
        lease_duration, renew_deadline, retry_period = arguments.durations
        election = Election(
            connection,
            namespace=arguments.namespace,
            name=arguments.lease,
            identity=arguments.identity,
            lease_duration=lease_duration,
            renew_deadline=renew_deadline,
            retry_period=retry_period,
            now=lambda: datetime.now(UTC) + next(jumps),
        )
        connection.fence = election.check
        looking = asyncio.create_task(announce(election))
        try:
            while True:
                try:
                    async with election.held():
                        say("leading")
                        await write(connection, election, arguments.namespace)
                except LeadershipLostError as error:
                    say(f"lost: {error}")
        finally:
            looking.cancel()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        say("stopped")
