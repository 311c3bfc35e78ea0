"""The workloads of a relay: a backlog that is there when it starts, and events at a steady rate."""

import asyncio
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import quantiles

import asyncpg

from benchmarks.peer_run import Measured, PeerError, PeerRun, at, peer_run, per_100000, rate_of
from benchmarks.relay import Description, Event
from tests.support.servers import database_connection

_KEYS_AT_ONCE = 10
_PER_TRANSACTION = 100
_PRODUCERS = 16
_WARM_UP_SECONDS = 1.0


async def drain(
    description: Description, *, work: Path, events: int, per_key: int, timeout_seconds: float
) -> Measured:
    """Write a backlog, then start the relay; ``per_key`` events have a key in common, 0: no keys.

    Raises:
        PeerError: the relay ended or stopped, or did not store every event once, unaltered and in order.
        RelayError: a command of the relay failed, or names an unknown placeholder.
    """
    written = orders(events, per_key)
    async with peer_run(description, work=work) as run:
        await _write(run, written)
        async with run.relay:
            first = await run.grown_to(1, timeout_seconds=timeout_seconds)
            before = run.cpu()
            await run.settled(events, timeout_seconds=timeout_seconds)
            if first == events:
                raise PeerError(f"all {events} events were stored at the first reading: use more events")
            cost = per_100000(before, run.cpu(), events - first)
        _, stamps = await run.read(written)
    return Measured(rate=rate_of(stamps), cpu_seconds_per_100000=cost)


async def steady(
    description: Description, *, work: Path, events: int, per_second: int, timeout_seconds: float
) -> Measured:
    """Commit events in time, each by a transaction of its own, to a relay that has published one before.

    Raises:
        PeerError: as for ``drain``; the time runs from the last commit.
        RelayError: a command of the relay failed, or names an unknown placeholder.
    """
    first, *written = orders(events + 1, 0)
    async with peer_run(description, work=work) as run, run.relay:
        await _insert(run.database, *description.insertion(first))
        await run.settled(1, timeout_seconds=timeout_seconds)
        before = run.cpu()
        sent = await _produce(run, written, per_second)
        await run.settled(1 + events, timeout_seconds=timeout_seconds)
        cost = per_100000(before, run.cpu(), events)
        stored, stamps = await run.read([first, *written])
    ids = [at(body, description.message.body)["event"] for body in stored]
    found = [
        (stamp.timestamp() - sent[event_id]) * 1e3
        for event_id, stamp in zip(ids, stamps, strict=True)
        if event_id in sent
    ]
    return Measured(rate=rate_of(stamps[1:]), cpu_seconds_per_100000=cost, latency_ms=_percentiles(found))


def orders(count: int, per_key: int) -> list[Event]:
    """Make events; ten keys take turns, so that events of a key are not neighbours."""
    return [_order(number, per_key) for number in range(count)]


def _order(number: int, per_key: int) -> Event:
    key = None
    if per_key:
        group = number // (per_key * _KEYS_AT_ONCE)
        key = f"order-{group * _KEYS_AT_ONCE + number % _KEYS_AT_ONCE}"
    event_id = str(uuid.uuid4())
    body = {
        "event": event_id,
        "order": number,
        "customer": f"customer-{number % 997}",
        "currency": "EUR",
        "total": number * 125,
        "lines": [{"article": number % 89, "quantity": 2}],
    }
    return Event(id=event_id, key=key, body=json.dumps(body))


async def _write(run: PeerRun, events: Sequence[Event]) -> None:
    """Write the events, 100 to a transaction, then analyze the tables and force a checkpoint."""
    for start in range(0, len(events), _PER_TRANSACTION):
        rows = [run.description.insertion(each) for each in events[start : start + _PER_TRANSACTION]]
        async with run.database.transaction():
            await run.database.executemany(rows[0][0], [arguments for _, arguments in rows])
    await run.database.execute("ANALYZE")
    await run.database.execute("CHECKPOINT")


async def _produce(run: PeerRun, events: Sequence[Event], per_second: int) -> Mapping[str, float]:
    """Commit each event when it is due; return when its COMMIT was sent, without those of the warm-up."""
    sent: dict[str, float] = {}
    turns = iter(enumerate(events))

    async def commit_in_time(connection: asyncpg.Connection, began: float) -> None:
        for number, event in turns:
            due_seconds = number / per_second
            await asyncio.sleep(began + due_seconds - time.perf_counter())
            at_commit = await _insert(connection, *run.description.insertion(event))
            if due_seconds >= _WARM_UP_SECONDS:
                sent[event.id] = at_commit

    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(database_connection(run.dsn)) for _ in range(_PRODUCERS)
        ]
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(commit_in_time(connection, began))
    return sent


async def _insert(connection: asyncpg.Connection, statement: str, arguments: Sequence[object]) -> float:
    """Insert in a transaction; return when its COMMIT was sent."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(statement, *arguments)
    at_commit = time.time()
    await transaction.commit()
    return at_commit


def _percentiles(ms: Sequence[float]) -> dict[str, float]:
    cuts = quantiles(ms, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98], "max": max(ms)}
