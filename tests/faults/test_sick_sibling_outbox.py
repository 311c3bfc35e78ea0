"""One of two workers is sick while its sibling is well: the sibling publishes the events."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from sea_mq_worker.embedded import EmbeddedNats
from tests.faults.test_outbox_broker import configured
from tests.support.servers import database_connection
from tests.support.sick_worker import KINDS, seconds_until, sick_and_well
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually

LEFT = "SELECT count(*) FROM outbox_events WHERE state <> 'PUBLISHED'"

RecordProperty: TypeAlias = Callable[[str, object], None]
"""pytest's own: ``--junitxml`` writes the figures."""


@pytest.mark.long
@pytest.mark.parametrize("key", [None, "k"], ids=["unkeyed", "keyed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["broker", "database"])
@pytest.mark.fault("W03")
@pytest.mark.fault("W04")
async def test_a_sibling_whose_links_are_well_publishes_the_events(
    shared: Site, to: str, kind: str, key: str | None, record_property: RecordProperty
) -> None:
    link = {"broker": shared.to_broker, "database": shared.to_database}[to]
    async with sick_and_well(shared):
        await shared.commit(5, ordering_key=key)
        await shared.published()
        KINDS[kind](link)
        await shared.commit(40, ordering_key=key)
        seconds = await seconds_until(shared.published)
        record_property("seconds", round(seconds, 1))
        link.heal()
    await shared.audit()


def rights(**permissions: Any) -> dict[str, Any]:
    """Return the part of a server's configuration that says what the sick worker may do."""
    sick = {"user": "sick", "password": "s", "permissions": permissions}
    return {"authorization": {"users": [sick, {"user": "admin", "password": "a"}]}, "no_auth_user": "admin"}


@pytest.fixture
async def guarded(tmp_path: Path, site_with: SiteWith) -> AsyncIterator[tuple[EmbeddedNats, Site]]:
    """A broker that knows the sick worker by its name, and a site on it."""
    config = rights(publish={"allow": [">"]})
    async with (
        EmbeddedNats(tmp_path / "nats", config=config) as server,
        site_with(nats_url=server.url) as site,
    ):
        yield server, site


def as_sick(site: Site) -> dict[str, object]:
    return {"nats_url": site.target.environment["SEA_MQ_NATS_URL"].replace("nats://", "nats://sick:s@")}


@pytest.mark.fault("W01")
async def test_a_worker_that_may_not_publish_leaves_keyed_events_to_its_sibling(
    guarded: tuple[EmbeddedNats, Site],
) -> None:
    server, site = guarded
    async with sick_and_well(site, sick=as_sick(site)):
        await site.commit(5, ordering_key="k")
        await site.published()
        with configured(server, **rights(publish={"deny": [f"{site.target.context}.event.>"]})):
            await site.commit(30, ordering_key="k")
            await site.published(within=15)
            await site.commit(30, ordering_key="k")
            await site.published(within=5)
        await site.commit(5, ordering_key="k")
        await site.published()
    await site.audit()


@pytest.mark.fault("W02")
async def test_another_programs_session_with_the_lanes_lock_keeps_no_event_waiting(
    shared: Site,
) -> None:
    async with database_connection(shared.dsn) as stranger, shared.worker() as worker:
        await stranger.execute("SELECT pg_advisory_lock(7182, hashtext(current_schema()::text))")
        await worker.ready()

        async def published() -> bool:
            await stranger.execute("SELECT 1")
            return not await shared.database.fetchval(
                "SELECT 1 FROM outbox_events WHERE state <> 'PUBLISHED'"
            )

        for _ in range(3):
            await shared.commit(10, ordering_key="k")
            await eventually(published, within=5)
        await worker.tells("lane_not_served")
        assert f"session {stranger.get_server_pid()} " in worker.written
    await shared.audit()
