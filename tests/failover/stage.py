"""A worker with traffic both ways, and a measure of what a failover costs it.

Settings are the shipped ones unless a test gives others, but for a shorter ack_wait: a message that was under
way to the worker from a leader that died comes again after ack_wait.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import nats.errors

from sea_mq_worker.errors import BrokerUnavailableError, WorkerError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.producer import Event, enqueue
from tests.support.audit import out_of_order
from tests.support.handlers import Call, answer, handler_server
from tests.support.jetstream import SECOND, connected, consumer_info, read_stream, store
from tests.support.servers import database_connection
from tests.support.waiting import eventually
from tests.support.worker import Deployment, WorkerProcess, apply_streams, deployment, running

PACE_SECONDS = 0.02
KEYS = 4
ACK_WAIT_SECONDS = 5
WORK_SECONDS = 0.05
"""Duration of a handler call, so that some messages are in flight at any time."""
QUIET_SECONDS = 120.0
"""More than the outbox lease and the time until the reaper looks: a claim may be lost on its way back."""
_AGAIN_SECONDS = 0.05
_AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, nats.errors.Error, WorkerError)


@dataclass(slots=True)
class Service:
    """An idempotent handler that knows when each effect came."""

    effects: dict[str, float] = field(default_factory=dict)
    calls: int = 0

    async def take(self, call: Call, writer: Any) -> None:
        self.calls += 1
        await asyncio.sleep(WORK_SECONDS)
        known = call.message_id in self.effects
        self.effects.setdefault(call.message_id, time.time())
        await answer(409 if known else 200)(call, writer)


@dataclass(slots=True, kw_only=True)
class Stage:
    """A worker that knows all servers, a handler, and what was given to both sides."""

    target: Deployment
    worker: WorkerProcess
    broker: NatsConnection
    service: Service
    committed: dict[str, str] = field(default_factory=dict)
    """Events whose commit was confirmed, with their keys, in the order of the commits."""
    sent: dict[str, float] = field(default_factory=dict)
    """Messages whose storing was confirmed, and when."""

    async def works(self) -> None:
        """Wait until something passes in each direction that was not there before."""
        effects, stored = len(self.service.effects), len(await self.stored())

        async def passed() -> bool:
            return len(self.service.effects) > effects and len(await self.stored()) > stored

        await eventually(passed, within=QUIET_SECONDS, what="traffic in both directions")

    async def stored(self) -> list[tuple[str, float]]:
        """Return ids and times of what the own stream holds, once it answers."""
        found: list[list[tuple[str, float]]] = []

        async def answered() -> bool:
            with suppress(*_AWAY):
                stored = await read_stream(self.broker, self.target.stream)
                found.append([(m.headers["Nats-Msg-Id"], m.metadata.timestamp.timestamp()) for m in stored])
            return bool(found)

        await eventually(answered, within=QUIET_SECONDS, what=f"{self.target.stream} answers")
        return found[0]

    async def quiet(self) -> None:
        """Wait until no event waits and each message has had its effect.

        An acknowledgement that is lost with its consumer's leader costs a redelivery, and no call.
        """
        try:
            await eventually(
                self._is_quiet, within=QUIET_SECONDS, what="each event and message has its ending"
            )
        except AssertionError as error:
            info = await consumer_info(self.broker, self.target.upstream_stream, self.target.durable)
            missing = sorted(self.sent.keys() - self.service.effects.keys())
            error.add_note(f"without an effect: {missing}; {info}; {self.worker.written[-3000:]}")
            raise

    async def _is_quiet(self) -> bool:
        with suppress(*_AWAY):
            async with database_connection(self.target.environment["SEA_MQ_DATABASE_URL"]) as connection:
                open_rows = await connection.fetchval("SELECT count(*) FROM outbox_events WHERE is_open")
            return not open_rows and self.sent.keys() <= self.service.effects.keys()
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a failover; pauses are the longest in seconds since it began."""

    pause_out: float
    pause_in: float
    lost_out: int
    lost_in: int
    slowest_in: float
    """Longest time from a message's storing to its effect."""
    copies: int
    repeats: int
    disorder: int
    ghosts: int
    """Events in the stream whose rows a failover lost."""
    rows_lost: int
    """Events whose confirmed commits a failover lost, ghosts among them."""

    @property
    def harmless(self) -> bool:
        """Whether it cost time alone: nothing lost, doubled or out of order."""
        return not (self.lost_out or self.lost_in or self.copies or self.disorder)

    def __str__(self) -> str:
        return (
            f"pause out {self.pause_out:.1f} s, in {self.pause_in:.1f} s,"
            f" slowest message {self.slowest_in:.1f} s;"
            f" lost out {self.lost_out}, in {self.lost_in};"
            f" second copies {self.copies}, calls repeated {self.repeats}, out of order {self.disorder};"
            f" commits lost {self.rows_lost}, of them in the stream {self.ghosts}"
        )


@asynccontextmanager
async def stage(
    *, database_url: str, nats_url: str, name: str, folder: Path, replicas: int, **settings: object
) -> AsyncIterator[Stage]:
    """Run a worker on streams of its own until it is ready; ``settings`` go over the shipped ones."""
    service = Service()
    async with AsyncExitStack() as stack:
        handler = await stack.enter_async_context(handler_server(service.take))
        broker = await stack.enter_async_context(connected(nats_url.split(",")))
        target = deployment(
            context=name,
            database_url=database_url,
            nats_url=nats_url,
            handler_url=handler.url,
            handler_timeout_seconds=ACK_WAIT_SECONDS - 1,
            **settings,
        )
        taken = partial(_takes_streams, target, folder / "streams", replicas)
        await eventually(taken, within=QUIET_SECONDS, what="the server takes the streams")
        worker = await stack.enter_async_context(running(target, folder / "worker.log"))
        await worker.answers(200, within=QUIET_SECONDS)
        yield Stage(target=target, worker=worker, broker=broker, service=service)


async def _takes_streams(target: Deployment, folder: Path, replicas: int) -> bool:
    """A cluster may take longer for a stream than its client waits; applying again changes nothing."""
    with suppress(BrokerUnavailableError):
        await apply_streams(
            target, folder, consumer={"ack_wait": ACK_WAIT_SECONDS * SECOND}, replicas=replicas
        )
        return True
    return False


async def cost_of(
    failover: Callable[[], Awaitable[None]],
    on: Stage,
    *,
    rows: Callable[[], Awaitable[set[str]]] | None = None,
) -> Cost:
    """Cause a failover under traffic; return what it cost once all traffic has its end.

    Args:
        failover: returns when the servers can serve again.
        on: where.
        rows: tells which events the database still knows; needed where a failover may lose commits.
    """
    on.committed.clear()
    on.sent.clear()
    before, calls, effects = len(await on.stored()), on.service.calls, len(on.service.effects)
    async with traffic(on):
        await on.works()
        began = time.time()
        await failover()
        await on.works()
        await on.works()
        ended = time.time()
    await on.quiet()
    stored = (await on.stored())[before:]
    first, places = {}, {}
    for place, (event_id, at) in enumerate(stored, 1):
        first.setdefault(event_id, at)
        places.setdefault(event_id, place)
    known = set(first) if rows is None else await rows()
    return Cost(
        pause_out=_longest(first.values(), began, ended),
        pause_in=_longest(on.service.effects.values(), began, ended),
        lost_out=len((set(on.committed) & known if rows else set(on.committed)) - set(first)),
        lost_in=len(on.sent.keys() - on.service.effects.keys()),
        slowest_in=max(on.service.effects[message_id] - at for message_id, at in on.sent.items()),
        copies=len(stored) - len(first),
        repeats=on.service.calls - calls - (len(on.service.effects) - effects),
        disorder=len(out_of_order(on.committed.items(), places)),
        ghosts=len(set(first) - known),
        rows_lost=len(set(on.committed) - known) if rows else 0,
    )


@asynccontextmanager
async def traffic(on: Stage) -> AsyncIterator[None]:
    """Commit events and send messages until the end of the block; all that was confirmed is noted."""
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_commit(on, over))
        group.create_task(_send(on, over))
        try:
            yield
        finally:
            over.set()


async def _commit(on: Stage, over: asyncio.Event) -> None:
    numbers = itertools.count()
    while not over.is_set():
        with suppress(*_AWAY):
            await _commit_on_one_connection(on, over, numbers)
        await asyncio.sleep(_AGAIN_SECONDS)


async def _commit_on_one_connection(on: Stage, over: asyncio.Event, numbers: Iterator[int]) -> None:
    """A commit without a confirmation may have happened or not: it is not noted."""
    url = on.target.environment["SEA_MQ_DATABASE_URL"]
    connection = await asyncpg.connect(url, target_session_attrs="read-write", timeout=2)
    try:
        while not over.is_set():
            number = next(numbers)
            event = Event(
                aggregate_type="order",
                aggregate_id="o",
                event_type="order.created",
                payload={"number": number},
                ordering_key=f"key-{number % KEYS}",
            )
            async with asyncio.timeout(2), connection.transaction():
                [event_id] = await enqueue(connection, event)
            on.committed[str(event_id)] = event.ordering_key or ""
            await asyncio.sleep(PACE_SECONDS)
    finally:
        connection.terminate()


async def _send(on: Stage, over: asyncio.Event) -> None:
    """Send each message until it is confirmed; the stream drops what came twice."""
    subject = f"{on.target.upstream}.event.made.v1"
    while not over.is_set():
        message_id = str(uuid.uuid4())
        while message_id not in on.sent and not over.is_set():
            with suppress(*_AWAY):
                await store(on.broker, subject, headers={"Nats-Msg-Id": message_id}, within=1.0)
                on.sent[message_id] = time.time()
            await asyncio.sleep(PACE_SECONDS)


def _longest(times: Any, began: float, ended: float) -> float:
    """Return the longest time without anything between two moments."""
    moments = sorted([began, *(at for at in times if began < at < ended), ended])
    return max(later - earlier for earlier, later in itertools.pairwise(moments))
