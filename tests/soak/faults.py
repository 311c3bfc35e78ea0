"""The plan of faults, drawn from a seed so that a seed repeats a plan, and how each is caused and undone."""

import asyncio
import contextlib
import random
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

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


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: weight, range of the duration, and the victim, hit by one fault at a time."""

    name: str
    weight: float
    shortest: float
    longest: float
    where: str
    """``worker``, ``proxy`` (of one worker), or the name of a shared part."""


KINDS = (
    Kind("worker.kill", 6, 0.2, 2, "worker"),
    Kind("worker.freeze", 5, 4, 8, "worker"),
    Kind("worker.freeze_with_claims", 4, 4, 8, "worker"),
    Kind("worker.stop", 3, 0.2, 2, "worker"),
    Kind("broker.kill", 3, 0.2, 3, "broker"),
    Kind("broker.freeze", 2, 1, 6, "broker"),
    Kind("broker.full", 2, 2, 6, "broker"),
    Kind("broker.full_dead_letters", 1, 2, 6, "broker"),
    Kind("broker.forbid", 2, 2, 5, "broker"),
    Kind("broker.delete_consumer", 0.7, 1, 3, "broker"),
    Kind("database.restart", 3, 0.2, 2, "database"),
    Kind("database.freeze", 2, 1, 5, "database"),
    Kind("database.freeze_backend", 3, 1, 6, "database"),
    Kind("database.terminate", 2, 0.1, 0.5, "database"),
    Kind("proxy.stall", 4, 1, 8, "proxy"),
    Kind("proxy.cut", 3, 0.1, 0.5, "proxy"),
    Kind("proxy.refuse", 3, 1, 6, "proxy"),
    Kind("proxy.delay", 2, 2, 6, "proxy"),
    Kind("proxy.drop_to_server", 3, 1, 6, "proxy"),
    Kind("proxy.drop_to_client", 3, 1, 6, "proxy"),
    Kind("producer.cut", 2, 0.1, 0.5, "producer"),
    Kind("handler.fails", 2, 2, 6, "handler"),
    Kind("handler.hangs", 1.5, 2, 6, "handler"),
    Kind("handler.resets", 1.5, 2, 6, "handler"),
    Kind("handler.works_then_resets", 2, 2, 6, "handler"),
    Kind("handler.busy", 1, 2, 5, "handler"),
    Kind("handler.garbles", 1, 2, 5, "handler"),
    Kind("operator.replay", 1.5, 1, 2, "operator"),
    Kind("operator.redrive", 1.5, 1, 2, "operator"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: seconds after the start, kind, victim and duration."""

    at: float
    kind: str
    victim: str
    seconds: float
    draw: int
    """A random number for further choices."""

    @property
    def end(self) -> float:
        return self.at + self.seconds


def draw(seed: int, seconds: float, *, only: frozenset[str] = frozenset()) -> list[Fault]:
    """Draw two lanes of faults with short pauses; every kind comes once before kinds are drawn by weight.

    Args:
        seed: the same seed gives the same plan.
        seconds: duration of the traffic.
        only: kinds of faults to draw; empty: all.
    """
    chance = random.Random(seed)
    kinds = [kind for kind in KINDS if not only or kind.name in only]
    untried = list(kinds)
    chance.shuffle(untried)
    lanes = [CALM_SECONDS] * _LANES
    planned: list[Fault] = []
    while (at := min(lanes)) < seconds - 1:
        lane = lanes.index(at)
        kind = chance.choice(untried) if untried else chance.choices(kinds, [k.weight for k in kinds])[0]
        fault = _fault(chance, kind, at, seconds)
        if fault is None and kind in untried:
            untried.remove(kind)
        if fault is None or any(_collide(fault, other) for other in planned):
            lanes[lane] = at + 0.1
            continue
        planned.append(fault)
        lanes[lane] = fault.end + chance.uniform(0.2, 1.2)
        if kind in untried:
            untried.remove(kind)
    return sorted(planned, key=lambda fault: fault.at)


def _fault(chance: random.Random, kind: Kind, at: float, end: float) -> Fault | None:
    length = min(chance.uniform(kind.shortest, kind.longest), end - at)
    victim = kind.where
    if kind.where == "worker":
        victim = chance.choice(WORKERS if "freeze" in kind.name else MORTAL)
    elif kind.where == "proxy":
        victim = f"{chance.choice(WORKERS)}:{chance.choice(SIDES)}"
    if kind.name == "broker.delete_consumer" and at > CALM_SECONDS + end * _DELETIONS_END:
        return None
    if kind.name == "operator.replay" and at > end - _REPLAYS_END_SECONDS:
        return None
    return Fault(round(at, 2), kind.name, victim, round(length, 2), chance.getrandbits(32))


def _collide(one: Fault, other: Fault) -> bool:
    """Return whether two faults hit one victim at the same time, or with too short a pause."""
    if one.at > other.end + 0.5 or other.at > one.end + 0.5:
        return False
    return one.victim.split(":")[0] == other.victim.split(":")[0]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
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
                hurt: Callable[[Fault], AbstractAsyncContextManager[None]]
                hurt = getattr(self, f"_{side}_{kind}")
                async with hurt(fault):
                    await asyncio.sleep(fault.seconds)
        self.done.append(
            Injected(kind=fault.kind, victim=fault.victim, began=began, ended=time.time(), note=note)
        )

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

    def _broker_full_dead_letters(self, fault: Fault) -> AbstractAsyncContextManager[None]:
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
        if not pids:
            yield
            return
        with frozen(pids[fault.draw % len(pids)], children=False):
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
