"""One of two workers is sick while its sibling is well: the sibling publishes the events."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from nats.aio.msg import Msg

from sea_mq_worker.dev.servers import EmbeddedNats
from tests.faults.test_outbox_broker import configured
from tests.support.jetstream import connected
from tests.support.nats_cluster import nats_cluster
from tests.support.sick_worker import KINDS, logging_in, own_role, seconds_until, sick_and_well
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually

WITHIN_SECONDS = 15.0
ROOM = 2**27
IN_BOTH_LANES = pytest.mark.parametrize("key", [None, "k"], ids=["unkeyed", "keyed"])

RecordProperty: TypeAlias = Callable[[str, object], None]
"""pytest's own: ``--junitxml`` writes the figures."""


def accounts(*, away: bool = False, **permissions: Any) -> dict[str, Any]:
    """Return the part of a server's configuration that says what the sick worker may do.

    ``away``: its account is another one, without JetStream; a guest is there.
    """
    sick = {"user": "sick", "password": "s", "permissions": permissions}
    home, elsewhere = [{"user": "admin", "password": "a"}], [{"user": "guest", "password": "g"}]
    (elsewhere if away else home).append(sick)
    return {
        "accounts": {"HOME": {"jetstream": "enabled", "users": home}, "AWAY": {"users": elsewhere}},
        "no_auth_user": "admin",
    }


@dataclass(frozen=True, slots=True)
class Ward:
    """A site on a broker that knows the sick worker by its name, as PostgreSQL does."""

    server: EmbeddedNats
    site: Site
    role: str

    @property
    def sick(self) -> dict[str, object]:
        """Settings of the sick worker."""
        return logging_in(self.site, nats_url="sick", database_url=self.role)


@pytest.fixture
async def ward(tmp_path: Path, site_with: SiteWith) -> AsyncIterator[Ward]:
    async with (
        EmbeddedNats(tmp_path / "nats", config=accounts()) as server,
        site_with(nats_url=server.url) as site,
        own_role(site) as role,
    ):
        yield Ward(server, site, role)


async def answers_wrongly(msg: Msg) -> None:
    if msg.reply:
        await msg.respond(b"no JSON at all")


async def says_nothing(_: Msg) -> None:
    pass


@asynccontextmanager
async def account_without_jetstream(server: EmbeddedNats, kind: str) -> AsyncIterator[None]:
    """Let the sick worker be in another account, where a guest may answer for JetStream."""
    async with connected(server.url, user="guest", password="g") as guest:
        if kind != "refused":
            hears = says_nothing if kind == "silent" else answers_wrongly
            await guest.client.subscribe(">", cb=hears)
        with configured(server, **accounts(away=True)):
            yield


@asynccontextmanager
async def trouble(ward: Ward, dependency: str, kind: str) -> AsyncIterator[None]:
    """Cut the sick worker off from one dependency for the length of a block."""
    site, server = ward.site, ward.server
    links = {"NATS": site.to_broker, "PostgreSQL": site.to_database}
    outbox = f"UPDATE ON outbox_events {{}} {ward.role}"
    if link := links.get(dependency):
        KINDS[kind](link)
        yield
        link.heal()
    elif dependency == "the right to publish":
        with configured(server, **accounts(publish={"deny": [f"{site.target.context}.event.>"]})):
            yield
    elif dependency == "the right to replies":
        with configured(server, **accounts(subscribe={"deny": ["_INBOX.>"]})):
            yield
    elif dependency == "the right to write":
        await site.database.execute(f"REVOKE {outbox.format('FROM')}")
        yield
        await site.database.execute(f"GRANT {outbox.format('TO')}")
    else:
        async with account_without_jetstream(server, kind):
            yield


async def commit_some(site: Site, key: str | None) -> None:
    """Commit many transactions, so that both workers find events."""
    for _ in range(60):
        await site.commit(ordering_key=key)


CELLS = [
    *(("NATS", kind) for kind in KINDS),
    *(("PostgreSQL", kind) for kind in KINDS),
    *((f"the right to {what}", "refused") for what in ("publish", "replies", "write")),
    *(("JetStream of the account", kind) for kind in ("refused", "silent", "answers wrongly")),
]


@pytest.mark.long
@IN_BOTH_LANES
@pytest.mark.parametrize(("dependency", "kind"), CELLS)
@pytest.mark.fault("W03")
@pytest.mark.fault("W04")
async def test_the_sibling_of_a_sick_worker_publishes_the_events_once_and_in_order(
    ward: Ward, dependency: str, kind: str, key: str | None, record_property: RecordProperty
) -> None:
    site = ward.site
    async with sick_and_well(site, sick=ward.sick) as (sick, _):
        await commit_some(site, key)
        await site.published()
        async with trouble(ward, dependency, kind):
            await commit_some(site, key)
            seconds = await seconds_until(lambda: site.published(within=WITHIN_SECONDS))
            record_property("seconds", round(seconds, 1))
            await commit_some(site, key)
            record_property("later", round(await seconds_until(lambda: site.published(within=10)), 1))
        await commit_some(site, key)
        await site.published()
        if dependency != "the right to publish":  # only an event proves that it is back
            await sick.answers(200, within=60)
    await site.audit()


@pytest.mark.long
@IN_BOTH_LANES
@pytest.mark.fault("W04")
async def test_the_sibling_of_a_worker_that_reaches_no_leader_publishes_the_events(
    site_with: SiteWith, tmp_path: Path, key: str | None, record_property: RecordProperty
) -> None:
    """The sick worker's NATS server is cut off from the others."""
    async with (
        nats_cluster(tmp_path.joinpath, room_bytes=ROOM, may_be_cut=True) as cluster,
        site_with(nats_url=cluster.nodes[0].url) as site,
    ):
        await site.change_stream(num_replicas=3)
        leader = await eventually(lambda: leading(site.stream), what="the stream has a leader")
        lonely = next(number for number in range(3) if number not in {0, cluster.named(leader)})
        async with sick_and_well(site, sick={"nats_url": cluster.nodes[lonely].url}):
            await commit_some(site, key)
            await site.published()
            cluster.cut_off(lonely)
            await commit_some(site, key)
            record_property("seconds", round(await seconds_until(site.published), 1))
            cluster.join_again()
            await commit_some(site, key)
            await site.published()
        await site.audit()


async def leading(info: Callable[[], Awaitable[dict[str, Any]]]) -> str:
    """Name the leader of a stream or durable once the other nodes have what it has."""
    group = (await info())["cluster"]
    ready = [each.get("current") and not each.get("offline") for each in group.get("replicas", ())]
    return str(group.get("leader", "")) if ready == [True, True] else ""


@pytest.mark.fault("W01")
async def test_a_worker_that_may_not_publish_leaves_keyed_events_to_its_sibling(ward: Ward) -> None:
    site = ward.site
    async with sick_and_well(site, sick=ward.sick):
        await site.commit(5, ordering_key="k")
        await site.published()
        async with trouble(ward, "the right to publish", "refused"):
            await site.commit(30, ordering_key="k")
            await site.published(within=WITHIN_SECONDS)
            await site.commit(30, ordering_key="k")
            await site.published(within=5)
    await site.audit()
