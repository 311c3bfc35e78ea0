"""The cost of a failover of NATS or PostgreSQL under traffic in both directions.

The long tests measure it on shipped settings. The short ones cause one failover of each server, on settings
that let nothing wait for a minute, and measure no time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import asyncpg
import nats.errors
import pytest

from sea_mq_worker.dev.servers import EmbeddedPostgres
from sea_mq_worker.errors import BrokerUnavailableError
from sea_mq_worker.nats.connection import api
from sea_mq_worker.postgres.migrations import migrate
from tests.failover.stage import QUIET_SECONDS, Cost, Stage, cost_of, stage
from tests.support.jetstream import connected, create_stream, store
from tests.support.nats_cluster import NODES, NatsCluster, nats_cluster
from tests.support.processes import frozen
from tests.support.proxy import TcpProxy, proxied
from tests.support.servers import QUICK, Database, database_connection
from tests.support.standby import either_of, standby_of
from tests.support.waiting import eventually
from tests.support.worker import running

AWAY_SECONDS = 3.0
"""Duration of a frozen node, a cut or a lost quorum."""
BEHIND_SECONDS = 0.4
"""Lag of an asynchronous standby when its primary dies."""
MOVES_WITHIN_SECONDS = 10.0
"""After the servers can serve again."""

SOON: Mapping[str, object] = MappingProxyType({
    "outbox_publish_timeout_seconds": 2,
    "database_timeout_seconds": 3,
    "outbox_lease_seconds": 5,
    "inbox_lease_seconds": 5,
    "outbox_backoff_max_seconds": 2,
    "inbox_backoff_max_seconds": 2,
})  # fmt: skip
"""A claim or a message that a failover takes away is free again soon."""

Fault = Callable[[NatsCluster, Stage], Awaitable[None]]


async def leader(cluster: NatsCluster, on: Stage, stream: str = "") -> int:
    """Return the number of the node that leads a stream, the own one unless another is named."""

    async def name() -> str:
        with suppress(BrokerUnavailableError):
            info = await api(on.broker, f"STREAM.INFO.{stream or on.target.stream}")
            return str(info["cluster"].get("leader", ""))
        return ""

    return cluster.named(await eventually(name, within=QUIET_SECONDS, what=f"{stream} has a leader"))


async def kill_the_leader(cluster: NatsCluster, on: Stage, stream: str = "") -> None:
    node = cluster.nodes[await leader(cluster, on, stream)]
    await node.kill()
    await node.start()


async def kill_the_upstream_leader(cluster: NatsCluster, on: Stage) -> None:
    await kill_the_leader(cluster, on, on.target.upstream_stream)


async def freeze_the_leader(cluster: NatsCluster, on: Stage) -> None:
    with frozen(cluster.nodes[await leader(cluster, on)].pid):
        await asyncio.sleep(AWAY_SECONDS)


async def cut_the_leader_off(cluster: NatsCluster, on: Stage) -> None:
    cluster.cut_off(await leader(cluster, on))
    await asyncio.sleep(AWAY_SECONDS)
    cluster.join_again()


async def let_the_leaders_step_down(_: NatsCluster, on: Stage) -> None:
    upstream, durable = on.target.upstream_stream, on.target.durable
    for what in (f"CONSUMER.LEADER.STEPDOWN.{upstream}.{durable}", f"STREAM.LEADER.STEPDOWN.{upstream}"):
        await api(on.broker, what)
    await api(on.broker, f"STREAM.LEADER.STEPDOWN.{on.target.stream}")


async def bring_a_node_back_empty(cluster: NatsCluster, on: Stage) -> None:
    await cluster.empty(await leader(cluster, on))


async def lose_the_quorum(cluster: NatsCluster, on: Stage) -> None:
    last = await leader(cluster, on)
    others = [node for number, node in enumerate(cluster.nodes) if number != last]
    await asyncio.gather(*(node.kill() for node in others))
    await asyncio.sleep(AWAY_SECONDS)
    await asyncio.gather(*(node.start() for node in others))


BROKER_FAULTS: dict[str, Fault] = {
    "a leader is killed": kill_the_leader,
    "the upstream's leader is killed": kill_the_upstream_leader,
    "a leader is frozen for 3 s": freeze_the_leader,
    "a leader is cut off for 3 s": cut_the_leader_off,
    "all leaders step down": let_the_leaders_step_down,
    "a leader comes back empty": bring_a_node_back_empty,
    "the quorum is lost for 3 s": lose_the_quorum,
}


def judged(what: str, cost: Cost) -> None:
    """Print a row of the table in docs/proof/failover.md, and hold it against what is promised."""
    print(f"\n{what}: {cost}")  # noqa: T201 - asked for with -s
    assert cost.harmless, (what, cost)
    assert cost.pause_in < AWAY_SECONDS + MOVES_WITHIN_SECONDS, (what, cost)


Clustered = Callable[..., AbstractAsyncContextManager[tuple[NatsCluster, Stage]]]


@pytest.fixture
def clustered(database: Database, names: str, tmp_path_factory: pytest.TempPathFactory) -> Clustered:
    """Three nodes, and a worker whose streams have a copy on each; it takes the worker's settings."""
    return partial(_clustered, database, names, tmp_path_factory.mktemp)


@asynccontextmanager
async def _clustered(
    database: Database, name: str, folder: Callable[[str], Path], **settings: object
) -> AsyncIterator[tuple[NatsCluster, Stage]]:
    async with (
        nats_cluster(folder, room_bytes=2**30, may_be_cut=True) as cluster,
        stage(
            database_url=database.dsn,
            nats_url=cluster.urls,
            name=name,
            folder=folder("stage"),
            replicas=NODES,
            **settings,
        ) as on,
    ):
        yield cluster, on


async def test_a_message_that_its_stream_refuses_does_not_count_as_sent(nats_url: str, names: str) -> None:
    """A cluster refuses a repeat while the first copy is under way, and may lose that copy."""
    async with connected(nats_url) as connection:
        await create_stream(connection, names.upper(), names)
        with pytest.raises(nats.errors.Error, match="expected stream does not match"):
            await store(connection, names, headers={"Nats-Expected-Stream": "OTHER"})


@pytest.mark.fault("P48")
@pytest.mark.long
@pytest.mark.timeout(900)
async def test_every_failover_of_the_cluster_costs_time_alone(clustered: Clustered) -> None:
    async with clustered() as (cluster, on):
        for what, fault in BROKER_FAULTS.items():
            judged(what, await cost_of(partial(fault, cluster, on), on))


@pytest.mark.fault("P48")
@pytest.mark.timeout(600)
@pytest.mark.crash
async def test_a_leader_that_is_killed_loses_and_doubles_nothing(clustered: Clustered) -> None:
    async with clustered(**SOON) as (cluster, on):
        cost = await cost_of(partial(kill_the_leader, cluster, on), on)
    assert cost.harmless, cost


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary, its standby, and the link from which the standby reads."""

    primary: EmbeddedPostgres
    standby: EmbeddedPostgres
    link: TcpProxy

    async def fail_over(self) -> None:
        await self.primary.kill()
        await run(self.standby.dsn, "SELECT pg_promote()")

    async def fail_over_with_loss(self) -> None:
        """Do so while the standby is behind."""
        self.link.stall()
        await asyncio.sleep(BEHIND_SECONDS)
        await self.primary.kill()
        self.link.cut()
        await run(self.standby.dsn, "SELECT pg_promote()")

    async def events(self) -> set[str]:
        """Return the ids of the events that the standby has."""
        return {str(row["id"]) for row in await run(self.standby.dsn, "SELECT id FROM outbox_events")}


@asynccontextmanager
async def replicated(*, waits_for_standby: bool) -> AsyncIterator[Pair]:
    """Run a migrated primary and its standby; a commit waits for the standby or does not."""
    with TemporaryDirectory(prefix="sea-mq-test-") as folder:
        async with (
            EmbeddedPostgres(Path(folder), settings=QUICK) as primary,
            proxied(primary.dsn) as (link, url),
        ):
            await migrate(primary.dsn)
            async with standby_of(primary, primary.folder / "standby", through=url) as standby:
                names = "standby" if waits_for_standby else ""
                await run(primary.dsn, f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
                await run(primary.dsn, "SELECT pg_reload_conf()")
                yield Pair(primary, standby, link)


async def run(dsn: str, statement: str) -> list[asyncpg.Record]:
    async with database_connection(dsn) as connection:
        return list(await connection.fetch(statement))


def staged(
    pair: Pair, nats_url: str, name: str, folder: Path, **settings: object
) -> AbstractAsyncContextManager[Stage]:
    both = either_of(pair.primary, pair.standby)
    return stage(database_url=both, nats_url=nats_url, name=name, folder=folder, replicas=1, **settings)


@pytest.mark.fault("D19")
@pytest.mark.timeout(600)
@pytest.mark.crash
async def test_a_primary_that_is_killed_loses_and_doubles_nothing_where_commits_wait_for_the_standby(
    nats_url: str, names: str, tmp_path: Path
) -> None:
    """A promotion ends all sessions: neither of two workers takes that for the end of the other."""
    async with (
        replicated(waits_for_standby=True) as pair,
        staged(pair, nats_url, names, tmp_path, **SOON) as on,
        running(on.target, tmp_path / "other.log", worker_name="other") as other,
    ):
        await other.ready()
        cost = await cost_of(pair.fail_over, on, rows=pair.events)
        assert "worker_taken_over" not in {*on.worker.events(), *other.events()}
    assert cost.harmless, cost
    assert not cost.rows_lost


@pytest.mark.fault("D19")
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.crash
@pytest.mark.parametrize("standby", ["synchronous", "asynchronous"])
async def test_a_primary_that_dies_costs_time_and_what_an_asynchronous_standby_lacks(
    nats_url: str, names: str, tmp_path: Path, standby: str
) -> None:
    is_behind = standby == "asynchronous"
    async with (
        replicated(waits_for_standby=not is_behind) as pair,
        staged(pair, nats_url, names, tmp_path) as on,
    ):
        failover = pair.fail_over_with_loss if is_behind else pair.fail_over
        cost = await cost_of(failover, on, rows=pair.events)
    judged(f"the primary dies, {standby} standby", cost)
    assert bool(cost.rows_lost) == is_behind
