"""Workload: a stream's messages, sent to a handler at full speed."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from benchmarks.counters import Cost, Figure
from benchmarks.floors.broker import frames_to_acknowledge, publish_acknowledged
from benchmarks.floors.handler import ask, encode_requests
from benchmarks.stage import Run, Stage
from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.producer import uuid7

CONSUMER = ("VIBESPRO_EVENTS", "sea__from_vibespro")
_SPAN = """
SELECT count(processed_at) AS done,
       extract(epoch FROM max(processed_at) - min(received_at))::float8 AS seconds
  FROM inbox_messages
"""


async def inbox(
    stage: Stage, *, count: int, bare: bool = False, in_flight: int = 0, batches: bool = False
) -> dict[str, Figure]:
    """Hand messages to the sample handler or the bare one; beside it a load generator does the same.

    ``in_flight`` is the durable's max_ack_pending (0: as shipped); ``batches``: the handler takes batches.
    """
    handler_url = f"{(stage.bare if bare else stage.handler).url}/handle"
    batch_url = f"{stage.handler.url}/handle-batch" if batches else ""
    async with stage.run() as run:
        if in_flight:
            config = (await run.stream.consumer_info(*CONSUMER)).config
            await run.stream.add_consumer(CONSUMER[0], config.evolve(max_ack_pending=in_flight))
        requests = encode_requests(handler_url, [_vibe(number) for number in range(count)])
        asking = ask(handler_url, requests, concurrency=run.own.handler_concurrency)
        floor = await run.floor(count, asking)
        urls = {"SEA_MQ_HANDLER_URL": handler_url, "SEA_MQ_HANDLER_BATCH_URL": batch_url}
        return {"worker": await _receive(run, count, urls), "floor: load generator": floor}


async def _receive(run: Run, count: int, urls: Mapping[str, str]) -> Figure:
    """Let an idle worker at a durable that was paused while its messages came."""
    later = datetime.now(UTC) + timedelta(hours=1)
    await run.stream.pause_consumer(*CONSUMER, pause_until=later.isoformat())
    await fill_stream(run, count)
    async with run.worker({"SEA_MQ_OUTBOX_ENABLED": "false", **urls}) as worker:
        before = await worker.read()
        await run.stream.resume_consumer(*CONSUMER)
        await worker.until(partial(is_consumed, run))
        cost = Cost.between(before, await worker.read())
        peak = worker.peak_bytes()
    row = await run.database.fetchrow(_SPAN)
    if row["done"] != count:
        raise RuntimeError(f"of {count} messages, {row['done']} are processed")
    return Figure(count=count, rate=count / row["seconds"], cost=cost, peak_bytes=peak)


async def fill_stream(run: Run, count: int) -> None:
    """Publish messages, and wait for their acknowledgements."""
    frames = frames_to_acknowledge([_vibe(number) for number in range(count)])
    await publish_acknowledged(run.stage.nats.url, frames)


async def is_consumed(run: Run) -> bool:
    """Return whether the consumer has delivered all messages, each of which is acknowledged."""
    info = await run.stream.consumer_info(*CONSUMER)
    return not (info.num_pending or info.num_ack_pending)


def _vibe(number: int) -> OutboundMessage:
    identity = str(uuid7())
    payload = json.dumps({"vibe": number, "mood": "calm", "tags": ["a", "b", "c"]}).encode()
    return OutboundMessage(
        id=identity,
        subject="vibespro.event.vibe_created.v1",
        payload=payload,
        headers={MSG_ID: identity, "ce-id": identity, "ce-type": "vibe_created"},
    )
