"""Somebody takes a message id first: the real one is neither called stored nor skipped, but told."""

import uuid
from pathlib import Path

import pytest

from tests.support.jetstream import create_consumer, create_stream, store
from tests.support.servers import Database
from tests.support.site import FAST_CONSUMER, site
from tests.support.waiting import eventually


@pytest.mark.fault("S14")
@pytest.mark.parametrize("mode", ["pipeline", "fast"])
async def test_an_event_whose_id_is_taken_in_the_stream_is_dead_with_the_reason(
    mode: str, database: Database, nats_url: str, names: str, tmp_path: Path
) -> None:
    async with site(dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path) as place:
        ids = await place.commit(4)
        forged = {"Nats-Msg-Id": ids[1], "ce-type": "order.created", "ce-subject": "order/o-1"}
        await store(place.broker, f"{names}.event.order.created.v1", b'{"total": 9}', headers=forged)
        async with place.worker(outbox_publish_mode=mode) as worker:
            await place.published()
            await worker.tells("event_died")
        taken = await place.row(ids[1])
        others = [(await place.row(event_id))["state"] for event_id in ids if event_id != ids[1]]
    assert taken["state"] == "DEAD"
    assert taken["publish_error"].startswith("ID_TAKEN: the stream has another message under this id, at 1")
    assert others == ["PUBLISHED"] * 3


@pytest.mark.fault("S14")
async def test_a_message_whose_id_came_with_another_content_is_dead_lettered_not_skipped(
    database: Database, nats_url: str, names: str, tmp_path: Path
) -> None:
    """The squatter is another context whose stream this service consumes too."""
    other = f"{names}squat"
    durable = f"{names}__from_{other}"
    async with site(dsn=database.dsn, nats_url=nats_url, name=names, folder=tmp_path) as place:
        await create_stream(place.broker, other.upper(), f"{other}.event.>")
        await create_consumer(place.broker, other.upper(), durable, max_deliver=20, **FAST_CONSUMER)
        both = f"{place.target.environment['SEA_MQ_CONSUMERS']},{other.upper()}/{durable}"
        message_id = str(uuid.uuid4())
        headers = {"Nats-Msg-Id": message_id}
        async with place.worker(consumers=both):
            await store(place.broker, f"{other}.event.made.v1", b'{"mine": true}', headers=headers)
            await eventually(lambda: place.effects.taken[message_id] == 1, within=30)
            await store(place.broker, place.subject, b'{"real": true}', headers=headers)
            await place.quiet()
        letters = await place.dead_letters()
    assert [(letter["Dlq-Reason"], letter["Dlq-Stream"]) for letter in letters] == [
        ("CONTENT_CONFLICT", place.target.upstream_stream)
    ]
    assert letters[0]["Original-Nats-Msg-Id"] == message_id
