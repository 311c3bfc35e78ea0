"""The plan of faults, drawn from a seed so that a seed repeats a plan, and how each is caused and undone."""

import asyncio
import contextlib
import random
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import asyncpg

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.nats.connection import api
from tests.soak.deployment import CONTEXT, SIDES, STOP_SECONDS, WORKERS, Stage, Worker
from tests.support.jetstream import stored_messages
from tests.support.processes import frozen
from tests.support.worker import running

MORTAL = ("w1", "w2")
"""Workers that faults may end. The third never ends, so that its memory can be measured over time."""
CALM_SECONDS = 3.0
"""Time before the first fault, so that work is in progress."""

_LANES = 2
_DELETIONS_END = 0.3
"""Share of the time in which the consumer may be deleted, since its loss ends every worker."""
_REPLAYS_END_SECONDS = 25.0
"""Time before the end without replays, since a replay waits for the stream's deduplication window."""


class Kind(NamedTuple):
    """A kind of fault: how often it is drawn, and the range of its duration in seconds."""

    weight: float
    shortest: float
    longest: float


KINDS = {
    "worker.kill": Kind(6, 0.2, 2),
    "worker.freeze": Kind(5, 4, 8),
    "worker.freeze_with_claims": Kind(4, 4, 8),
    "worker.stop": Kind(3, 0.2, 2),
    "broker.kill": Kind(3, 0.2, 3),
    "broker.freeze": Kind(2, 1, 6),
    "broker.full": Kind(2, 2, 6),
    "broker.full_dead_letters": Kind(1, 2, 6),
    "broker.forbid": Kind(2, 2, 5),
    "broker.delete_consumer": Kind(0.7, 1, 3),
    "database.restart": Kind(3, 0.2, 2),
    "database.freeze": Kind(2, 1, 5),
    "database.freeze_backend": Kind(3, 1, 6),
    "database.terminate": Kind(2, 0.1, 0.5),
    "proxy.stall": Kind(4, 1, 8),
    "proxy.cut": Kind(3, 0.1, 0.5),
    "proxy.refuse": Kind(3, 1, 6),
    "proxy.delay": Kind(2, 2, 6),
    "proxy.drop_to_server": Kind(3, 1, 6),
    "proxy.drop_to_client": Kind(3, 1, 6),
    "producer.cut": Kind(2, 0.1, 0.5),
    "handler.fails": Kind(2, 2, 6),
    "handler.hangs": Kind(1.5, 2, 6),
    "handler.resets": Kind(1.5, 2, 6),
    "handler.works_then_resets": Kind(2, 2, 6),
    "handler.busy": Kind(1, 2, 5),
    "handler.garbles": Kind(1, 2, 5),
    "operator.replay": Kind(1.5, 1, 2),
    "operator.redrive": Kind(1.5, 1, 2),
}
"""By ``victim.effect``; a victim is hit by one fault at a time."""


class Fault(NamedTuple):
    """One fault: seconds after the start, kind, victim, duration, and a random number for further choices."""

    at: float
    kind: str
    victim: str
    seconds: float
    draw: int

    @property
    def end(self) -> float:
        return self.at + self.seconds


def draw(seed: int, seconds: float, *, only: frozenset[str] = frozenset()) -> list[Fault]:
    """Draw two lanes of faults with short pauses; every kind comes once before kinds are drawn by weight.

    ``seconds`` is the duration of the traffic; ``only`` are the kinds of faults to draw, empty: all.
    """
    chance = random.Random(seed)
    kinds = [name for name in KINDS if not only or name in only]
    untried = list(kinds)
    chance.shuffle(untried)
    lanes = [CALM_SECONDS] * _LANES
    planned: list[Fault] = []
    while (at := min(lanes)) < seconds - 1:
        lane = lanes.index(at)
        weights = [KINDS[name].weight for name in kinds]
        kind = chance.choice(untried) if untried else chance.choices(kinds, weights)[0]
        fault = _fault(chance, kind, at, seconds)
        if kind in untried and (fault is None or not _collides(fault, planned)):
            untried.remove(kind)
        if fault is None or _collides(fault, planned):
            lanes[lane] = at + 0.1
        else:
            planned.append(fault)
            lanes[lane] = fault.end + chance.uniform(0.2, 1.2)
    return sorted(planned)


def _fault(chance: random.Random, kind: str, at: float, end: float) -> Fault | None:
    """Draw victim and duration; None: it is too late for such a fault."""
    length = min(chance.uniform(KINDS[kind].shortest, KINDS[kind].longest), end - at)
    victim = kind.partition(".")[0]
    if victim == "worker":
        victim = chance.choice(WORKERS if "freeze" in kind else MORTAL)
    elif victim == "proxy":
        victim = f"{chance.choice(WORKERS)}:{chance.choice(SIDES)}"
    if kind == "broker.delete_consumer" and at > CALM_SECONDS + end * _DELETIONS_END:
        return None
    if kind == "operator.replay" and at > end - _REPLAYS_END_SECONDS:
        return None
    return Fault(round(at, 2), kind, victim, round(length, 2), chance.getrandbits(32))


def _collides(fault: Fault, planned: Sequence[Fault]) -> bool:
    """Return whether another fault hits its victim at the same time, or with too short a pause."""
    return any(
        fault.at <= other.end + 0.5
        and other.at <= fault.end + 0.5
        and fault.victim.split(":")[0] == other.victim.split(":")[0]
        for other in planned
    )


_COMMAND_SECONDS = 25.0
_COMMIT_SECONDS = 2.0
_TRIES = 50
_CLAIM_TRIES = 100
_GONE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
_EVENTS, _DEAD_LETTERS = f"{CONTEXT.upper()}_EVENTS", f"{CONTEXT.upper()}_DLQ"
_REDRIVABLE = (
    "SELECT message_id::text FROM inbox_messages WHERE dead_lettered_at IS NOT NULL"
    " AND dead_letter_reason = 'REJECTED'"
)
_REPLAYABLE = (
    "SELECT id::text FROM outbox_events WHERE state = 'PUBLISHED' ORDER BY md5(id::text || $1) LIMIT 5"
)
_CLAIMS = "SELECT count(*) FROM outbox_events WHERE state = 'CLAIMED' AND claimed_by LIKE $1"
_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE usename LIKE 'w_' ORDER BY pid"


T = TypeVar("T")


class Injected(NamedTuple):
    """A fault as it happened, in wall-clock time."""

    kind: str
    victim: str
    began: float
    ended: float
    note: str = ""


@dataclass
class Chaos:
    """Carries out a plan of faults."""

    stage: Stage
    done: list[Injected] = field(default_factory=list)
    _turns: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """Faults of one victim wait for each other: undoing one may take longer than planned."""

    async def run(self, plan: list[Fault]) -> None:
        """Cause every fault at its time; return after the last one is undone."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
                group.create_task(self._in_turn(fault))

    async def _in_turn(self, fault: Fault) -> None:
        async with self._turns[fault.victim.split(":")[0]]:
            await self._cause(fault)

    async def _cause(self, fault: Fault) -> None:
        """Cause a fault for its time, and undo it."""
        side, _, kind = fault.kind.partition(".")
        began = time.time()
        note = ""
        match side:
            case "operator":
                note = await getattr(self, f"_{kind}")(fault)
            case "proxy":
                worker, _, which = fault.victim.partition(":")
                await self._bend(self.stage.workers[worker].proxies[which], kind, fault)
            case "producer":
                await self._cut_producers(fault)
            case "handler":
                self.stage.service.mood = kind
                await asyncio.sleep(fault.seconds)
                self.stage.service.mood = "well"
            case "worker":
                async with self._worker(self.stage.workers[fault.victim], kind):
                    await asyncio.sleep(fault.seconds)
            case _:
                async with getattr(self, f"_{side}_{kind}")(fault):
                    await asyncio.sleep(fault.seconds)
        self.done.append(Injected(fault.kind, fault.victim, began, time.time(), note))

    async def _cut_producers(self, fault: Fault) -> None:
        """Disconnect the producers, every second time during a commit."""
        if fault.draw % 2:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stage.to_producers.drop_behind(0, b"COMMIT"), _COMMIT_SECONDS)
            self.stage.to_producers.heal()
        self.stage.to_producers.cut()

    async def _bend(self, proxy: Any, how: str, fault: Fault) -> None:
        if how == "delay":
            proxy.delay(random.Random(fault.draw).choice((0.05, 0.2, 1.0)))
        else:
            getattr(proxy, how)()
        await asyncio.sleep(fault.seconds)
        proxy.heal()

    @asynccontextmanager
    async def _worker(self, worker: Worker, how: str) -> AsyncIterator[None]:
        process = worker.process
        if how.startswith("freeze"):
            if how == "freeze_with_claims":
                await self._until_it_holds_claims(worker)
            with frozen(process.process.pid, children=False):
                worker.proxies["broker"].heal()
                yield
            return
        await (process.kill() if how == "kill" else process.stop(within=STOP_SECONDS))
        yield
        await process.start()

    async def _until_it_holds_claims(self, worker: Worker) -> None:
        """Wait until the worker has claims that it cannot publish; others reap them while it is frozen."""
        with contextlib.suppress(*_GONE):
            async with self.stage.database() as connection:
                worker.proxies["broker"].stall()
                for _ in range(_CLAIM_TRIES):
                    if await connection.fetchval(_CLAIMS, f"{worker.name}#%"):
                        return
                    await asyncio.sleep(0.01)

    @asynccontextmanager
    async def _broker_kill(self, _: Fault) -> AsyncIterator[None]:
        await self.stage.nats.kill()
        yield
        await self.stage.nats.start()

    @asynccontextmanager
    async def _broker_freeze(self, _: Fault) -> AsyncIterator[None]:
        with frozen(self.stage.nats.pid, children=False):
            yield

    @asynccontextmanager
    async def _broker_full(self, _: Fault, stream: str = _EVENTS) -> AsyncIterator[None]:
        """Make a stream full."""
        info = await self._request(f"STREAM.INFO.{stream}")
        config = info["config"]
        await self._request(f"STREAM.UPDATE.{stream}", config | {"max_bytes": max(info["state"]["bytes"], 1)})
        yield
        await self._request(f"STREAM.UPDATE.{stream}", config)

    def _broker_full_dead_letters(self, fault: Fault) -> Any:
        return self._broker_full(fault, _DEAD_LETTERS)

    @asynccontextmanager
    async def _broker_forbid(self, fault: Fault) -> AsyncIterator[None]:
        """Forbid the workers to publish: events, or dead letters."""
        what = "event" if fault.draw % 2 else "dlq"
        self.stage.permit({"publish": {"deny": [f"{CONTEXT}.{what}.>"]}})
        yield
        self.stage.permit({})

    @asynccontextmanager
    async def _broker_delete_consumer(self, _: Fault) -> AsyncIterator[None]:
        """Delete the durable consumer; it is created again later, and delivers everything again."""
        target = self.stage.direct
        await self._request(f"CONSUMER.DELETE.{target.upstream_stream}.{target.durable}")
        yield
        await _retried(self.stage.apply_streams)

    @asynccontextmanager
    async def _database_restart(self, _: Fault) -> AsyncIterator[None]:
        await self.stage.postgres.kill()
        yield
        await self.stage.postgres.start()

    @asynccontextmanager
    async def _database_freeze(self, _: Fault) -> AsyncIterator[None]:
        """Freeze the postmaster: existing sessions work, and no new one can connect."""
        with frozen(self.stage.postgres.pid, children=False):
            yield

    @asynccontextmanager
    async def _database_freeze_backend(self, fault: Fault) -> AsyncIterator[None]:
        pids = await self._backends()
        with frozen(*pids[fault.draw % max(1, len(pids)) :][:1], children=False):
            yield

    @asynccontextmanager
    async def _database_terminate(self, fault: Fault) -> AsyncIterator[None]:
        chance = random.Random(fault.draw)
        with contextlib.suppress(*_GONE):
            async with self.stage.database() as connection:
                for pid in await self._backends():
                    if chance.random() < 0.5:
                        await connection.execute("SELECT pg_terminate_backend($1)", pid)
        yield

    async def _backends(self) -> list[int]:
        with contextlib.suppress(*_GONE):
            async with self.stage.database() as connection:
                return [row["pid"] for row in await connection.fetch(_BACKENDS)]
        return []

    async def _request(self, subject: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await _retried(lambda: api(self.stage.broker, subject, payload))

    async def _replay(self, fault: Fault) -> str:
        try:
            async with self.stage.database() as connection:
                ids = [row["id"] for row in await connection.fetch(_REPLAYABLE, str(fault.draw))]
        except _GONE:
            ids = []
        if not ids:
            return "nothing to replay"
        code = await command(self.stage, "outbox", "replay", *ids, "--reason", "soak", "--actor", "chaos")
        return f"replay of {len(ids)}: exit {code}"

    async def _redrive(self, _: Fault) -> str:
        """Let the handler accept a few rejected messages from now on, and redrive them."""
        try:
            async with self.stage.database() as connection:
                dead = {row["message_id"] for row in await connection.fetch(_REDRIVABLE)}
            letters = await stored_messages(self.stage.broker, _DEAD_LETTERS)
        except (*_GONE, WorkerError):
            return "nothing to redrive"
        found = {letter.seq: letter.headers["Dlq-Message-Id"] for letter in letters}
        chosen = [seq for seq, message_id in found.items() if message_id in dead][:3]
        if not chosen:
            return "nothing to redrive"
        self.stage.service.rejects -= {found[seq] for seq in chosen}
        self.stage.pardoned.update(chosen)
        return f"redrive of {len(chosen)}: exit {await redrive(self.stage, chosen)}"


async def redrive(stage: Stage, seqs: list[int]) -> int:
    """Run the operator's command."""
    return await command(stage, "dlq", "redrive", *map(str, seqs), "--reason", "soak", "--actor", "chaos")


async def command(stage: Stage, *words: str) -> int:
    """Run a worker command without the proxies; if it hangs, kill it and return -9."""
    async with running(stage.direct, stage.folder / f"{words[0]}.log", *words) as process:
        with contextlib.suppress(AssertionError):
            return await process.ended(within=_COMMAND_SECONDS)
    return -signal.SIGKILL


async def _retried(call: Callable[[], Awaitable[T]]) -> T:
    """Retry, because every fault must be undone."""
    for _ in range(_TRIES):
        with contextlib.suppress(WorkerError):
            return await call()
        await asyncio.sleep(0.2)
    return await call()
