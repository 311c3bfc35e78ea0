"""Workload: a backlog that appears at once, published at full speed."""

from functools import partial

from benchmarks.backlog import outbound_messages, write_backlog
from benchmarks.counters import Cost, Figure
from benchmarks.floors.broker import (
    frames_of_a_batch,
    frames_to_acknowledge,
    publish_acknowledged,
    publish_batch,
)
from benchmarks.floors.database import claim_and_settle
from benchmarks.stage import Run, Stage, Worker

STREAM = "SEA_EVENTS"
OUTBOX_ALONE = {"SEA_MQ_CONSUMERS": ""}
_LAST_SEQ = (
    "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('outbox_events', 'seq')::regclass), 0)"
)
_SPAN = """
SELECT count(published_at) AS done,
       extract(epoch FROM max(published_at) - min(first_attempt_at))::float8 AS seconds
  FROM outbox_events
 WHERE seq > $1
"""


async def drain(stage: Stage, *, count: int, per_key: int) -> dict[str, Figure]:
    """Publish a backlog, and let each server do its part of it alone; ``per_key`` as in ``write_backlog``."""
    async with stage.run() as run:
        await write_backlog(run.database, count=count, per_key=per_key)
        messages = await outbound_messages(run.database)
        statements = claim_and_settle(run.own, count=count, ordered=per_key > 0)
        database = await run.floor(count, statements)
    async with stage.run() as run:
        frames = frames_to_acknowledge(messages)
        acknowledged = await run.floor(count, publish_acknowledged(stage.nats.url, frames))
        await check_stream(run, count)
        await run.empty_stream(STREAM)
        frames = frames_of_a_batch(messages)
        batched = await run.floor(count, publish_batch(stage.nats.url, frames))
        await check_stream(run, count)
    async with stage.run() as run, run.worker(OUTBOX_ALONE) as worker:
        return {
            "worker": await drain_with(worker, count=count, per_key=per_key),
            "floor: database": database,
            "floor: broker, acknowledged": acknowledged,
            "floor: broker, batched": batched,
        }


async def drain_with(
    worker: Worker, *, count: int, per_key: int, key: str = "", padding: int = 0, checkpoint: bool = False
) -> Figure:
    """Show an idle worker a backlog, by one commit, and wait until all of it is published.

    The stream has to be empty. With ``checkpoint``, PostgreSQL makes one between the inserts and the commit.
    """
    run = worker.run
    last_seq: int = await run.database.fetchval(_LAST_SEQ)

    async with run.database.transaction():
        await write_backlog(run.database, count=count, per_key=per_key, key=key, padding=padding)
        if checkpoint:
            await run.server.execute("CHECKPOINT")
        before = await worker.read()
    await worker.until(partial(is_drained, run, count))
    cost = Cost.between(before, await worker.read())
    await check_stream(run, count)
    seconds = await span_seconds(run, count, last_seq=last_seq)
    return Figure(count=count, rate=count / seconds, cost=cost, peak_bytes=worker.peak_bytes())


async def is_drained(run: Run, count: int) -> bool:
    """Return whether the stream has that many messages and every event is published."""
    if (await run.stream.stream_info(STREAM)).state.messages < count:
        return False
    left: bool = await run.database.fetchval(
        "SELECT EXISTS (SELECT FROM outbox_events WHERE published_at IS NULL)"
    )
    return not left


async def span_seconds(run: Run, count: int, *, last_seq: int = 0) -> float:
    """Return the seconds from the first claim of the events behind ``last_seq`` to the last settlement."""
    row = await run.database.fetchrow(_SPAN, last_seq)
    if row["done"] != count:
        raise RuntimeError(f"of {count} events, {row['done']} are published")
    return float(row["seconds"])


async def check_stream(run: Run, count: int) -> None:
    """Require exactly one message for each event."""
    stored = (await run.stream.stream_info(STREAM)).state.messages
    if stored != count:
        raise RuntimeError(f"{count} events went out, {stored} messages are in the stream")
