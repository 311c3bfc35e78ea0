"""The start of a worker process without its database: it waits, and ends when it is asked to."""

from tests.support.site import Site


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
