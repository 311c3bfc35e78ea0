"""Large events neither fill the worker's memory nor keep others waiting."""

import asyncio
import resource
import time
from functools import partial

import pytest

from tests.support.handlers import Call
from tests.support.jetstream import SECOND
from tests.support.site import SHIPPED, Site, SiteWith
from tests.support.waiting import eventually

MIB = 2**20
CONTAINER = 256 * MIB
"""Of deploy/kubernetes/deployment.yaml for both sides."""
IN_HAND = 33
"""Messages of 1 MiB that fill the 32 MiB of INBOX_BYTES_MAX."""
LARGE, MANY = 950_000, 500
INSERT = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
SELECT gen_random_uuid(), 'order', 'o-1', 'order.created', to_jsonb(repeat('x', $2::int))
  FROM generate_series(1, $1::int)
"""
PUBLISHED = "SELECT count(*) FROM outbox_events WHERE state = 'PUBLISHED'"
DEAD = "SELECT publish_error FROM outbox_events WHERE state = 'DEAD'"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.fault("P46")
@pytest.mark.fault("N27")
async def test_large_events_and_large_messages_at_once_fit_the_memory_of_a_container(
    site_with: SiteWith,
) -> None:
    """As shipped. The handler answers when half of the events are out: until then its side is full."""
    async with site_with(consumer={"ack_wait": 120 * SECOND}, **SHIPPED) as at:
        await at.change_stream(max_bytes=2**30)
        await at.database.execute(INSERT, MANY, LARGE)
        await at.send(50, body=b"[%s0]" % (b"[]," * (MIB // 3 - 100)))
        half_out = asyncio.Event()

        async def answer_late(call: Call, writer: asyncio.StreamWriter) -> None:
            await half_out.wait()
            await at.effects.take(call, writer)

        at.handler.default = answer_late
        async with at.worker() as worker:
            resource.prlimit(worker.process.pid, resource.RLIMIT_DATA, (CONTAINER, CONTAINER))
            began = time.monotonic()
            await at.handler.called(IN_HAND, within=60.0)
            full_seconds = time.monotonic() - began
            out_before = await at.database.fetchval(PUBLISHED)
            await eventually(partial(_half_out, at), within=120.0, what="half of the events are out")
            half_out.set()
            await at.quiet(within=240.0)
            ended_seconds, peak = time.monotonic() - began, worker.peak_bytes
            assert worker.process.returncode is None
        assert await at.database.fetchval(PUBLISHED) == (await at.stream())["state"]["messages"] == MANY
        assert sorted(at.handler.calls_of().values()) == [1] * 50
        assert not await at.dead_letters()
        print(  # noqa: T201 - what it is for
            f"the handler's side full after {full_seconds:.1f} s with {out_before} events out; "
            f"all out after {ended_seconds:.1f} s; peak {peak / MIB:.0f} MiB"
        )
        assert out_before < MANY / 2, "both sides are busy at once"
        assert peak < CONTAINER, f"{peak / MIB:.0f} MiB"


async def _half_out(site: Site) -> bool:
    return await site.database.fetchval(PUBLISHED) >= MANY / 2


@pytest.mark.fault("P49")
async def test_an_event_of_200_mb_is_dead_within_seconds_and_disturbs_no_other(shared: Site) -> None:
    await shared.database.execute(INSERT, 1, 200_000_000)
    good = await shared.commit(100)
    async with shared.worker() as worker:
        await shared.published(within=10)
        [dead] = await shared.database.fetch(DEAD)
        assert dead["publish_error"].startswith("2000000")
        assert "max_payload of 1048576" in dead["publish_error"]
        assert set(await shared.copies()) == set(good)
        assert worker.peak_bytes < 120 * MIB
        await eventually(lambda: "event_died" in worker.events())
