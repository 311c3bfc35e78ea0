"""A worker that dies on an event's way loses nothing and sends nothing twice."""

import signal

import pytest

from tests.support.hold import held
from tests.support.site import Site


@pytest.mark.fault("P01")
async def test_a_worker_killed_while_it_claims_leaves_the_event_to_the_next(shared: Site) -> None:
    async with (
        held(shared.dsn, table="outbox_events", event="UPDATE", when="NEW.state = 'CLAIMED'") as hold,
        shared.worker(name="killed") as killed,
    ):
        await killed.ready()
        await shared.commit()
        await hold.reached()
        killed.send(signal.SIGKILL)
        await killed.ended()
    async with shared.worker():
        await shared.quiet()
    await shared.audit()
