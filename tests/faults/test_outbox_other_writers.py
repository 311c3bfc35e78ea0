"""Whatever other writers do on the stream, PUBLISHED and its sequence tell the truth."""

import asyncio
import json
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from sea_mq_worker.producer import enqueue
from tests.support.builders import enqueueable
from tests.support.jetstream import stored_messages
from tests.support.site import Site

FOREIGN = b'{"of": "another writer"}'


class Intruder:
    """Another writer: as many messages of its own as it takes ids of events."""

    def __init__(self, site: Site) -> None:
        self._subject = f"{site.target.context}.event.order.created.v1"
        self._publisher = NatsJetStreamPublisher(
            connection=site.broker, stream=site.target.stream, mode="pipeline"
        )
        self._started = False

    async def write(self, taken: Sequence[uuid.UUID]) -> None:
        if not self._started:
            await self._publisher.start()
            self._started = True
        ids = [str(each) for one in taken for each in (uuid.uuid4(), one)]
        batch = [OutboundMessage(each, self._subject, FOREIGN, {MSG_ID: each}) for each in ids]
        await self._publisher.publish_batch(batch, timeout_seconds=10)


async def commit(site: Site, ids: Sequence[uuid.UUID]) -> None:
    """Commit events in one transaction, half of them with one of five keys."""
    events = [
        enqueueable(id=each, payload={"n": place}, ordering_key=f"k{place % 5}" if place % 2 else None)
        for place, each in enumerate(ids)
    ]
    async with site.database.transaction():
        await enqueue(site.database, *events)


async def counted(site: Site) -> Counter[str]:
    """Count the rows by state, and those whose state or sequence the stream contradicts."""
    messages = await stored_messages(site.broker, site.target.stream)
    at = {seq: (headers[MSG_ID], body) for seq, _, body, headers in messages}
    foreign = {name for name, body in at.values() if body == FOREIGN}
    found = Counter({"stored": len(at)})
    for row in await site.database.fetch("SELECT * FROM outbox_events"):
        event_id, state = str(row["id"]), row["state"]
        found[state] += 1
        if state == "PUBLISHED":
            name, body = at.get(row["stream_seq"], ("", b"null"))
            right = name == event_id and json.loads(body) == json.loads(row["payload"])
        else:
            right = event_id in foreign and row["publish_error"].startswith("ID_TAKEN")
        found["wrong"] += not right
    return found


@pytest.mark.fault("S14")
@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("taken", [0, 1, 2, 10, 300])
@pytest.mark.parametrize("mode", ["auto", "pipeline", "atomic"])
async def test_no_event_is_published_that_the_stream_does_not_have(
    shared: Site, mode: str, taken: int, workers: int
) -> None:
    before, during = ([uuid.uuid4() for _ in range(taken)] for _ in range(2))
    events = [*before, *during, *(uuid.uuid4() for _ in range(2 * taken + 300))]
    random.Random(47).shuffle(events)
    intruder = Intruder(shared)
    await intruder.write(before)
    async with AsyncExitStack() as stack:
        for number in range(workers):
            worker = shared.worker(name=f"w{number}", outbox_publish_mode=mode)
            await (await stack.enter_async_context(worker)).ready()

        async def intrude() -> None:
            for each in during:
                await intruder.write([each])

        await asyncio.gather(commit(shared, events), intrude())
        await shared.published()
    found = await counted(shared)
    assert found["PUBLISHED"] + found["DEAD"] == len(events)
    assert found["DEAD"] >= taken
    assert found["wrong"] == 0, found
