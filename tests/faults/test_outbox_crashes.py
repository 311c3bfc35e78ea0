"""A worker that dies or stalls on an event's way loses nothing and sends nothing twice."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import asyncpg
import pytest

from sea_mq_worker.dev.servers import EmbeddedNats
from tests.support.hold import held
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually

# Of whoever comes after the dead: what these held is ended as soon as the settings' relations allow.
HEIR: Mapping[str, Any] = MappingProxyType({
    "outbox_publish_timeout_seconds": 0.6,
    "database_timeout_seconds": 0.9,
    "outbox_lease_seconds": 1.5,
})  # fmt: skip
# Of whoever is to die first: nothing that it waits for ends before.
UNHURRIED: Mapping[str, Any] = MappingProxyType({
    "outbox_publish_timeout_seconds": 10,
    "database_timeout_seconds": 20,
    "outbox_lease_seconds": 30,
})  # fmt: skip
SESSIONS_ENDED = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name LIKE 'sea_mq_worker%'"
)


def claimed(row: asyncpg.Record) -> bool:
    return bool(row["state"] == "CLAIMED")


async def has_come_to_claimed(site: Site, event_id: str) -> None:
    await eventually(lambda: site.row(event_id), until=claimed, what="the event is claimed")


async def has_come_to_the_stream(site: Site, *ids: str) -> None:
    await eventually(site.copies, until=lambda found: found == Counter(ids), what="the stream has the events")


@pytest.mark.fault("P01")
async def test_a_worker_killed_while_it_claims_leaves_the_event_to_the_next(shared: Site) -> None:
    async with (
        held(shared.dsn, table="outbox_events", event="UPDATE", when="NEW.state = 'CLAIMED'") as hold,
        shared.worker(name="killed") as killed,
    ):
        await killed.ready()
        await shared.commit()
        await hold.reached()
        await killed.killed()
    async with shared.worker(**HEIR):
        await shared.quiet()
    await shared.audit()


@pytest.mark.fault("P02")
@pytest.mark.crash
async def test_an_event_whose_worker_died_before_a_frozen_broker_counts_the_crash_and_arrives(
    own_nats: EmbeddedNats, site_with: SiteWith
) -> None:
    async with site_with(nats_url=own_nats.url) as frozen:
        async with frozen.worker(name="killed") as killed:
            await killed.ready()
            os.kill(own_nats.pid, signal.SIGSTOP)
            [event_id] = await frozen.commit()
            await has_come_to_claimed(frozen, event_id)
            await killed.killed()
        os.kill(own_nats.pid, signal.SIGCONT)
        async with frozen.worker(**HEIR):
            await frozen.quiet()
        await frozen.audit()
        row = await frozen.row(event_id)
        assert (row["publish_attempts"], row["failures"]) == (2, 1)


@pytest.mark.fault("P03")
@pytest.mark.crash
async def test_events_whose_acknowledgement_was_lost_with_the_worker_are_stored_once(shared: Site) -> None:
    async with shared.worker(name="killed") as killed:
        await killed.ready()
        shared.to_broker.drop_to_client()
        ids = await shared.commit(3)
        await has_come_to_the_stream(shared, *ids)
        await killed.killed()
    shared.to_broker.heal()
    async with shared.worker(**HEIR) as heir:
        await shared.quiet()
        await eventually(heir.metrics, until=lambda now: now["sea_mq_outbox_duplicates_total"] == 3)
    await shared.audit()


@pytest.mark.fault("P04")
@pytest.mark.crash
async def test_a_worker_killed_before_it_recorded_an_acknowledgement_has_its_events_stored_once(
    shared: Site,
) -> None:
    async with (
        held(shared.dsn, table="outbox_events", event="UPDATE", when="NEW.state = 'PUBLISHED'") as hold,
        shared.worker(name="killed") as killed,
    ):
        await killed.ready()
        ids = await shared.commit(2)
        await hold.reached()
        await killed.killed()
        await shared.database.execute(SESSIONS_ENDED)
        assert await shared.copies() == Counter(ids)
        assert all([claimed(await shared.row(event_id)) for event_id in ids])
    async with shared.worker(**HEIR):
        await shared.quiet()
    await shared.audit()


@pytest.mark.parametrize("mode", ["auto", "atomic"])
@pytest.mark.fault("P05")
@pytest.mark.crash
async def test_a_batch_cut_off_by_a_kill_at_any_message_arrives_whole_and_once(
    shared: Site, mode: str
) -> None:
    frame = f"HPUB {shared.target.context}.event.".encode()
    arrived = 0
    for place in (1, 50, 99):
        async with shared.worker(name=f"killed{place}", outbox_publish_mode=mode, **UNHURRIED) as killed:
            await killed.ready()
            cut = asyncio.create_task(shared.to_broker.drop_behind(place, frame))
            await shared.commit(100)
            await cut
            arrived += (
                place if mode == "auto" else 0
            )  # the stream stores an atomic batch whole, or not at all
            await eventually(
                shared.stream, until=lambda now, all_of=arrived: now["state"]["messages"] == all_of
            )
            await killed.killed()
        shared.to_broker.heal()
    async with shared.worker(outbox_publish_mode=mode, **HEIR):
        await shared.quiet()
    await shared.audit()


@pytest.mark.fault("P07")
async def test_a_settlement_that_comes_after_the_lease_changes_nothing(shared: Site) -> None:
    async with shared.worker(name="late") as late:
        await late.ready()
        shared.to_broker.stall()
        sent_before = shared.to_broker.requests
        [event_id] = await shared.commit()
        await has_come_to_claimed(shared, event_id)
        await eventually(lambda: shared.to_broker.requests > sent_before, what="the worker has its claim")
        shared.to_database.stall()
        shared.to_broker.heal()
        await has_come_to_the_stream(shared, event_id)
        async with shared.worker(name="heir", database_url=shared.dsn, **HEIR):
            await shared.published()
        before = dict(await shared.row(event_id))
        shared.to_database.heal()
        lost = 'sea_mq_leases_lost_total{side="outbox"}'
        await eventually(late.metrics, until=lambda now: now.get(lost) == 1)
        await late.tells("leases_lost")
        assert late.events().count("leases_lost") == 1
    assert dict(await shared.row(event_id)) == before
    await shared.audit()


@pytest.mark.fault("P07")
async def test_a_worker_that_wakes_up_after_its_lease_sends_nothing(shared: Site) -> None:
    async with shared.worker(name="asleep", **{**UNHURRIED, "outbox_publish_timeout_seconds": 1}) as asleep:
        await asleep.ready()
        claims = held(shared.dsn, table="outbox_events", event="UPDATE", when="NEW.state = 'CLAIMED'")
        async with claims as hold:
            ids = await shared.commit(2, ordering_key="k")
            await hold.reached()
            asleep.send(signal.SIGSTOP)
            await hold.on_done()
            async with shared.worker(name="heir", **HEIR):
                await shared.published()
            asleep.send(signal.SIGCONT)
            await asleep.tells("leases_lost")
        assert (await asleep.metrics())["sea_mq_outbox_published_total"] == 0
    await shared.audit()
    assert [(await shared.row(event_id))["publish_attempts"] for event_id in ids] == [2, 2]
