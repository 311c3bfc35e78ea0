"""Somebody takes a message id first: the real one is neither called stored nor skipped, but told."""

import uuid

import pytest

from tests.support.jetstream import create_consumer, create_stream, store
from tests.support.site import FAST_CONSUMER, Site
from tests.support.waiting import eventually


@pytest.mark.fault("S14")
@pytest.mark.parametrize("mode", ["pipeline", "fast"])
async def test_an_event_whose_id_is_taken_in_the_stream_is_dead_with_the_reason(
    shared: Site, names: str, mode: str
) -> None:
    ids = await shared.commit(4)
    forged = {"Nats-Msg-Id": ids[1], "ce-type": "order.created", "ce-subject": "order/o-1"}
    await store(shared.broker, f"{names}.event.order.created.v1", b'{"total": 9}', headers=forged)
    async with shared.worker(outbox_publish_mode=mode) as worker:
        await shared.published()
        await worker.tells("event_died")
    taken = await shared.row(ids[1])
    others = [(await shared.row(event_id))["state"] for event_id in ids if event_id != ids[1]]
    assert taken["state"] == "DEAD"
    assert taken["publish_error"].startswith("ID_TAKEN: the stream has another message under this id, at 1")
    assert others == ["PUBLISHED"] * 3


@pytest.mark.fault("S14")
async def test_a_message_whose_id_came_with_another_content_is_dead_lettered_not_skipped(
    shared: Site, names: str
) -> None:
    """The squatter is another context whose stream this service consumes too."""
    other = f"{names}squat"
    durable = f"{names}__from_{other}"
    await create_stream(shared.broker, other.upper(), f"{other}.event.>")
    await create_consumer(shared.broker, other.upper(), durable, max_deliver=20, **FAST_CONSUMER)
    both = f"{shared.target.environment['SEA_MQ_CONSUMERS']},{other.upper()}/{durable}"
    headers = {"Nats-Msg-Id": str(uuid.uuid4())}
    async with shared.worker(consumers=both):
        await store(shared.broker, f"{other}.event.made.v1", b'{"mine": true}', headers=headers)
        await eventually(lambda: shared.effects.taken[headers["Nats-Msg-Id"]] == 1, within=30)
        await store(shared.broker, shared.subject, b'{"real": true}', headers=headers)
        await shared.quiet()
    [letter] = await shared.dead_letters()
    assert letter["Dlq-Reason"] == "CONTENT_CONFLICT"
    assert letter["Dlq-Stream"] == shared.target.upstream_stream
    assert letter["Original-Nats-Msg-Id"] == headers["Nats-Msg-Id"]
