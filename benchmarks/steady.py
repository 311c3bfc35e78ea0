"""Workload: a worker that is first idle, then publishes events at a steady rate."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles

import asyncpg
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.counters import Cost, Figure
from benchmarks.drain import STREAM
from benchmarks.stage import Run, Stage, Worker
from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.producer import Event, enqueue
from tests.support.servers import database_connection

_PRODUCERS = 16
_TRANSACTIONS_PER_SECOND = 1_000
"""Above this rate a transaction has several events, so that producers and commits do not limit the rate."""
_SETTLE_SECONDS = 3.0
_LOOK_SECONDS = 0.25
_WARM_UP_SECONDS = 1.0
_BACKLOG_SECONDS = 1.0
"""A rate is sustained if the backlog never exceeds the events of this time."""
_FETCH = 1_000
SUSTAINED = "sustained (1) or not (0)"
SENT, RETURNED = "stored after COMMIT sent", "stored after COMMIT returned"
PERCENTS = (50, 90, 99, 99.9)
_STATEMENTS_OF_A_TRANSACTION = 3
_WAITING = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL"


@dataclass(frozen=True, slots=True)
class Commit:
    """Bounds of an event's commit, by the wall clock in nanoseconds."""

    sent_ns: int
    returned_ns: int


@dataclass(slots=True, kw_only=True)
class Production:
    """The producers' results.

    Attributes:
        commits: by the event's id, those of the warm-up left out.
        backlog_max: most events that waited at once.
        statements: that the producers and the watch over the backlog sent.
    """

    commits: dict[str, Commit] = field(default_factory=dict)
    seconds: float = 0.0
    backlog_max: int = 0
    statements: int = 0


async def steady(stage: Stage, *, per_second: int, seconds: int, idle_seconds: float) -> dict[str, Figure]:
    """Measure what a worker costs when idle, and its latency at a rate."""
    async with stage.run() as run, run.worker({}) as worker:
        await asyncio.sleep(min(_SETTLE_SECONDS, idle_seconds))
        idle = await _idle(worker, idle_seconds)
        count = per_second * seconds
        before = await worker.read()
        production = await _produce(run, count, per_second)

        async def is_done() -> bool:
            return (await run.stream.stream_info(STREAM)).state.messages >= count

        await worker.until(is_done)
        cost = Cost.between(before, await worker.read())
        rate = count / production.seconds
        more = idle | await _latencies(run, production, count) | _backlog(production, rate, per_second)
        more["producers' statements"] = production.statements
        return {
            "worker": Figure(count=count, rate=rate, cost=cost, peak_bytes=worker.peak_bytes(), more=more)
        }


async def _idle(worker: Worker, seconds: float) -> dict[str, float]:
    before = await worker.read()
    await asyncio.sleep(seconds)
    cost = Cost.between(before, await worker.read())
    return {
        "idle, % of a core": cost.cpu_seconds["client"] / cost.wall_seconds * 100,
        "idle, statements/s": cost.statements / cost.wall_seconds,
    }


async def _produce(run: Run, count: int, per_second: int) -> Production:
    """Commit each event when it is due, however long the earlier ones take."""
    production = Production()
    dsn = run.settings["SEA_MQ_DATABASE_URL"]
    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(database_connection(dsn)) for _ in range(_PRODUCERS)]
        watching = asyncio.create_task(_watch(run, production))
        together = max(1, per_second // _TRANSACTIONS_PER_SECOND)
        numbers = _groups(count, together)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(_commit_in_time(connection, numbers, began, per_second, production))
        production.seconds = time.perf_counter() - began
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return production


async def _commit_in_time(
    connection: asyncpg.Connection,
    groups: Iterator[Sequence[int]],
    began: float,
    per_second: int,
    to: Production,
) -> None:
    for numbers in groups:
        due_seconds = numbers[0] / per_second
        await asyncio.sleep(began + due_seconds - time.perf_counter())
        events = [_event(number) for number in numbers]
        transaction = connection.transaction()
        await transaction.start()
        await enqueue(connection, *events)
        sent_ns = time.time_ns()
        await transaction.commit()
        to.statements += _STATEMENTS_OF_A_TRANSACTION
        if due_seconds >= _WARM_UP_SECONDS:
            commit = Commit(sent_ns, time.time_ns())
            to.commits.update({str(event.id): commit for event in events})


def _event(number: int) -> Event:
    return Event(
        aggregate_type="order",
        aggregate_id=str(number),
        event_type="order.created",
        payload={"order": number, "customer": f"customer-{number % 997}", "total": number * 1.25},
    )


def _groups(count: int, size: int) -> Iterator[Sequence[int]]:
    return (range(first, min(first + size, count)) for first in range(0, count, size))


async def _watch(run: Run, production: Production) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        production.statements += 1
        production.backlog_max = max(production.backlog_max, await run.database.fetchval(_WAITING))


async def _latencies(run: Run, production: Production, count: int) -> dict[str, float]:
    """Compare with the stream's own time stamps; the true latency is between the two."""
    stored = await _stored_ns(run, count)
    commits = production.commits.items()
    since = {
        SENT: [stored[identity] - commit.sent_ns for identity, commit in commits],
        RETURNED: [stored[identity] - commit.returned_ns for identity, commit in commits],
    }
    found = {
        f"{name}, p{percent:g} ms": quantiles(ns, n=1_000, method="inclusive")[round(percent * 10) - 1] / 1e6
        for name, ns in since.items()
        for percent in PERCENTS
    }
    return found | {f"{name}, max ms": max(ns) / 1e6 for name, ns in since.items()}


async def _stored_ns(run: Run, count: int) -> Mapping[str, int]:
    """Return when the stream stored each event, by the event's id."""
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    consumer = await run.stream.pull_subscribe("", stream=STREAM, config=config)
    found: dict[str, int] = {}
    read = 0
    while read < count:
        for message in await consumer.fetch(_FETCH):
            read += 1
            stored_at = message.metadata.timestamp.timestamp()
            found[(message.headers or {})[MSG_ID]] = int(stored_at * 1e9)
    if read != len(found):
        raise RuntimeError(f"{read} messages of {len(found)} events are in the stream")
    return found


def _backlog(production: Production, rate: float, per_second: int) -> dict[str, float]:
    bounded = production.backlog_max <= per_second * _BACKLOG_SECONDS
    return {
        "backlog, most at once": production.backlog_max,
        SUSTAINED: float(bounded and rate >= 0.99 * per_second),
    }
