"""What the driver learns of a stream, and how messages become columns; without Spark."""

import asyncio
from datetime import UTC, datetime

import pytest

from sea_mq_worker.adapters.nats.server_info import StreamInfo
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.pipeline.sources.jetstream.columns import Frame, to_batch
from sea_mq_worker.pipeline.sources.jetstream.state import message_time, stream_state
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Stream
from tests.support.jetstream import connected


async def test_a_state_has_the_bounds_of_a_stream(nats_url: str, names: str) -> None:
    settings = Settings.model_validate({"nats_url": nats_url})

    async def told() -> StreamInfo:
        return await asyncio.to_thread(stream_state, settings, names)

    async with connected(nats_url) as connection:
        stream = Stream(connection, names)
        await stream.create()
        fresh = await told()
        await stream.store(5)
        await stream.delete(1, 3)
        full = await told()
        second, third = [await asyncio.to_thread(message_time, settings, names, seq) for seq in (2, 3)]
        await stream.purge(seq=6)
        empty = await told()

    assert (fresh.first_seq, fresh.last_seq, fresh.messages, fresh.last_time) == (1, 0, 0, None)
    assert (full.first_seq, full.last_seq, full.messages, full.created) == (2, 5, 3, fresh.created)
    assert (full.first_time, third) == (second, None)
    assert (empty.first_seq, empty.last_seq, empty.first_time) == (6, 5, None)
    assert empty.last_time == full.last_time
    with pytest.raises(ContractError, match=f"stream {names}x does not exist"):
        await asyncio.to_thread(message_time, settings, f"{names}x", 1)


def frame(time: str) -> Frame:
    """Return a message as a direct get answers."""
    added = f"Nats-Stream: S\r\nNats-Subject: s.ö\r\nNats-Sequence: 7\r\nNats-Time-Stamp: {time}\r\n"
    return f"NATS/1.0\r\n{added}Nats-Num-Pending: 0\r\n\r\n".encode(), b""


def test_times_are_read_at_every_precision_and_cut_to_microseconds() -> None:
    written = ["2026-11-21T07:51:22Z", "2026-11-21T07:51:22.1Z", "2026-11-21T07:51:22.123456999Z"]
    batch = to_batch("S", "then", [frame(text) for text in written])
    assert batch.column("subject").unique().to_pylist() == ["s.ö"]
    times = batch.column("time").to_pylist()
    assert times == [datetime(2026, 11, 21, 7, 51, 22, us, UTC) for us in (0, 100_000, 123_456)]
