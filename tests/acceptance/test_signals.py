"""The life of a worker process: it becomes ready, works, and ends as it was told or as it must."""

import pytest

from tests.support.site import Site

EVENTS = 200


@pytest.mark.fault("L02")
@pytest.mark.clause("POL-047-005")
async def test_it_moves_events_both_ways_and_stops_when_asked(shared: Site) -> None:
    await shared.commit(EVENTS)
    await shared.send(EVENTS)
    async with shared.worker() as worker:
        await worker.ready()
        await shared.quiet()
        await worker.stopped()
    await shared.audit()
    assert set(shared.effects.calls.values()) == {1}


async def test_it_waits_for_a_database_that_comes_later(shared: Site) -> None:
    await shared.commit(3)
    shared.to_database.refuse()
    async with shared.worker() as worker:
        assert "the worker is starting" in await worker.answers(503)
        await worker.tells('"waiting"')
        shared.to_database.heal()
        await worker.ready()
        await shared.published()
    await shared.audit()


async def test_a_stop_while_it_waits_for_a_server_is_graceful(shared: Site) -> None:
    shared.to_database.refuse()
    async with shared.worker() as worker:
        await worker.answers(503)
        await worker.stopped()
