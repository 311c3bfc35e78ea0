"""The choice of a publish mode for each batch; every mode reports each message's true place in the stream."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.headers import MSG_ID, encode
from sea_mq_worker.nats.message import OutboundMessage, SearchedId, SearchProgress, Stored
from sea_mq_worker.outbox.jetstream import NatsJetStreamPublisher
from tests.contract.test_jetstream_publisher import again, message, stored
from tests.integration.test_publisher_faults import BATCHES, Mode, created, every_mode, started, update
from tests.support.jetstream import connected, create_stream, store, stored_messages
from tests.support.proxy import proxied
from tests.support.waiting import eventually


async def publish(publisher: NatsJetStreamPublisher, batch: list[OutboundMessage]) -> list[Stored]:
    return stored(list(await publisher.publish_batch(batch, timeout_seconds=10)))


async def places(connection: NatsConnection, stream: str) -> dict[str, int]:
    return {row[3][MSG_ID]: row[0] for row in await stored_messages(connection, stream)}


@pytest.mark.parametrize(
    ("flags", "ordered"),
    [({}, False), (BATCHES, True)],
)
async def test_auto_goes_the_way_that_the_stream_allows(
    connection: NatsConnection, names: str, flags: dict[str, Any], ordered: bool
) -> None:
    await create_stream(connection, names, f"{names}.>", **flags)
    publisher = await started(connection, names)

    assert publisher.keeps_order is ordered
    assert await publish(publisher, [message(names) for _ in range(3)]) == [
        Stored(names, seq) for seq in (1, 2, 3)
    ]


@every_mode
async def test_other_writers_in_between_do_not_falsify_a_place(
    connection: NatsConnection, nats_url: str, names: str, mode: Mode
) -> None:
    await create_stream(connection, names, f"{names}.>", **BATCHES)
    async with connected(nats_url) as other:
        mine = await started(connection, names, mode)
        theirs = await started(other, names, "pipeline")
        batches = [[message(names) for _ in range(200)] for _ in range(10)]

        results = await asyncio.gather(
            *(publish(mine, batch) for batch in batches[:5]),
            *(publish(theirs, batch) for batch in batches[5:]),
        )

    true = await places(connection, names)
    for batch, outcomes in zip(batches, results, strict=True):
        assert [outcome.seq for outcome in outcomes] == [true[each.id] for each in batch]
        assert not any(outcome.duplicate for outcome in outcomes)


async def test_auto_sends_no_batch_for_a_while_after_a_refusal(
    connection: NatsConnection, names: str
) -> None:
    publisher = await created(connection, names, max_msg_size=1000)
    await publisher.publish_batch([message(names, b"x" * 2000), message(names)], timeout_seconds=5)

    assert not publisher.keeps_order


async def test_a_known_id_does_not_keep_the_others_from_their_batch(
    connection: NatsConnection, names: str
) -> None:
    """A known id refuses a whole batch, so that a repeated message is sent alone."""
    publisher = await created(connection, names, "atomic")
    old = [message(names) for _ in range(2)]
    await publish(publisher, old)
    new = [message(names) for _ in range(4)]

    outcomes = await publish(publisher, [*new[:2], *again(old[:1]), *new[2:]])

    assert [outcome.seq for outcome in outcomes] == [3, 4, 1, 5, 6]
    batches = {row[0]: row[3].get("Nats-Batch-Id") for row in await stored_messages(connection, names)}
    assert batches[3] == batches[4] is not None
    assert batches[5] == batches[6] is not None


async def test_a_flag_that_is_taken_away_costs_nothing_but_speed(
    connection: NatsConnection, names: str
) -> None:
    publisher = await created(connection, names, "atomic")
    await publish(publisher, [message(names) for _ in range(3)])
    await update(connection, names, allow_atomic=False)

    assert [o.seq for o in await publish(publisher, [message(names) for _ in range(3)])] == [4, 5, 6]
    assert [o.seq for o in await publish(publisher, [message(names) for _ in range(3)])] == [7, 8, 9]
    assert not publisher.keeps_order


async def test_an_edited_window_is_known_when_it_is_read_again(
    connection: NatsConnection, names: str
) -> None:
    publisher = await created(connection, names, "auto")
    await update(connection, names, duplicate_window=5 * 10**9)
    assert await publisher.read_duplicate_window() == publisher.duplicate_window_seconds == 5


async def test_a_recreated_stream_is_noticed_at_the_next_reconnect(
    connection: NatsConnection, nats_url: str, names: str
) -> None:
    """P34."""
    reported: list[tuple[str, str]] = []
    await create_stream(connection, names, f"{names}.>", **BATCHES)
    async with proxied(nats_url) as (proxy, url), connected(url) as own:
        publisher = await started(own, names, "auto")
        own.listen(lambda event, text: reported.append((event, text)))
        await publish(publisher, [message(names) for _ in range(5)])
        await api(connection, f"STREAM.DELETE.{names}")
        await create_stream(connection, names, f"{names}.>", duplicate_window=5 * 10**9)
        proxy.cut()
        await eventually(lambda: ("reconnected", "") in reported)

        outcomes = await publish(publisher, [message(names) for _ in range(3)])

    assert sorted(outcome.seq for outcome in outcomes) == [1, 2, 3]
    assert publisher.duplicate_window_seconds == 5
    assert [text for event, text in reported if event == "stream" and names in text]


@every_mode
async def test_a_claim_larger_than_every_batch_arrives_whole(
    connection: NatsConnection, names: str, mode: Mode
) -> None:
    """More messages than a batch may have, then more bytes."""
    publisher = await created(connection, names, mode)

    many = await publish(publisher, [message(names) for _ in range(2500)])
    assert [outcome.seq for outcome in many] == list(range(1, 2501))

    large = await publish(publisher, [message(names, b"x" * 600_000) for _ in range(20)])
    assert [outcome.seq for outcome in large] == list(range(2501, 2521))


@every_mode
async def test_a_message_of_exactly_max_payload_arrives_in_a_batch(
    connection: NatsConnection, names: str, mode: Mode
) -> None:
    publisher = await created(connection, names, mode)
    broken: list[str] = []
    connection.listen(lambda event, _text: broken.append(event))
    whole = message(names)
    used = encode(whole, publisher.max_payload).size  # type: ignore[union-attr]
    whole = whole._replace(payload=whole.payload + b" " * (publisher.max_payload - used))

    outcomes = await publish(publisher, [message(names), whole, message(names)])

    assert [outcome.seq for outcome in outcomes] == [1, 2, 3]
    assert broken == []


async def test_a_long_stream_is_searched_to_its_end(connection: NatsConnection, names: str) -> None:
    publisher = await created(connection, names, "auto")
    batch = [message(names) for _ in range(3500)]
    await publish(publisher, batch)

    found = await publisher.find([SearchedId(each.id, 60) for each in batch])

    assert [found[each.id] for each in batch] == [
        Stored(names, seq, duplicate=True) for seq in range(1, 3501)
    ]
    info = await api(connection, f"STREAM.INFO.{names}")
    assert info["state"]["consumer_count"] == 0


async def test_a_stream_made_anew_is_searched_from_its_beginning(
    connection: NatsConnection, names: str
) -> None:
    publisher = await created(connection, names, "auto")
    late = message(names)
    await publish(publisher, [message(names)])
    looked = (await publisher.find([SearchedId(late.id, 60)]))[late.id]
    assert isinstance(looked, SearchProgress)

    await api(connection, f"STREAM.DELETE.{names}")
    await create_stream(connection, names, f"{names}.>", **BATCHES)
    for each in (late, message(names)):
        await store(connection, each.subject, each.payload, headers={MSG_ID: each.id})

    found = await publisher.find([SearchedId(late.id, 60, looked=looked)])
    assert found[late.id] == Stored(names, 1, duplicate=True)


async def test_a_stream_that_renames_subjects_is_searched_whole(
    connection: NatsConnection, names: str
) -> None:
    renaming = {"src": f"{names}.>", "dest": f"renamed.{names}.>"}
    publisher = await created(connection, names, "pipeline", subject_transform=renaming)
    [one] = batch = [message(names)]
    await publish(publisher, batch)

    found = await publisher.find([SearchedId(one.id, 60, one.subject)])

    assert found[one.id] == Stored(names, 1, duplicate=True)


async def test_a_stream_behind_a_mapping_of_the_account_is_searched_whole(tmp_path: Path) -> None:
    async with (
        EmbeddedNats(tmp_path, config={"mappings": {"sea.>": "stored.sea.>"}}) as server,
        connected(server.url) as connection,
    ):
        await create_stream(connection, "SEA", "stored.sea.>")
        publisher = NatsJetStreamPublisher(connection=connection, stream="SEA")
        await publisher.start()
        [one] = batch = [message("sea")]
        await publish(publisher, batch)

        found = await publisher.find([SearchedId(one.id, 60, one.subject)])

        assert found[one.id] == Stored("SEA", 1, duplicate=True)
