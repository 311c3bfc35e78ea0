"""One soak: traffic and chaos together, then peace, a last stop, and the audit."""

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from kit.soak.behaviour import BEHAVIOUR, rare_paths_were_reached
from kit.soak.chaos import Chaos, Injected, redrive
from kit.soak.checks import CONTENT, Check, judge
from kit.soak.deployment import CONTEXT, STOP_SECONDS, Stage, stage
from kit.soak.evidence import Evidence, gather
from kit.soak.schedule import Fault, draw
from kit.soak.traffic import Producer, Sender
from kit.soak.transactions import Ledger
from kit.soak.watch import Watch
from kit.streams import stored
from sea_mq_worker.adapters.nats.connection import api
from sea_mq_worker.domain.errors import WorkerError
from tests.support.jetstream import consumer_info

DRAIN_SECONDS = 60.0
_RARE_PATHS_SECONDS = 300.0
"""A shorter soak need not have taken every rare path."""
_UNFINISHED = """
SELECT (SELECT count(*) FROM outbox_events WHERE state IN ('PENDING', 'CLAIMED')),
       (SELECT count(*) FROM inbox_messages WHERE processed_at IS NULL AND dead_lettered_at IS NULL)
"""


@dataclass(frozen=True, kw_only=True)
class Soaked:
    """What a soak came to."""

    seed: int
    seconds: float
    bug: str
    planned: int
    drain_seconds: float
    evidence: Evidence
    checks: list[Check]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


async def soak(
    *,
    seed: int,
    seconds: float,
    folder: Path,
    bug: str = "",
    only: frozenset[str] = frozenset(),
    drain_seconds: float = DRAIN_SECONDS,
) -> Soaked:
    """Run a soak.

    Args:
        seed: draws faults and traffic.
        seconds: how long both last.
        folder: for logs and the ledger.
        bug: planted into every worker.
        only: these kinds of faults alone.
        drain_seconds: how soon after the last fault all has to be done.
    """
    plan = draw(seed, seconds, only=only)
    async with stage(folder, seed=seed, bug=bug) as made:
        await asyncio.gather(*(worker.ready() for worker in made.workers.values()))
        watch, over = Watch(made), asyncio.Event()
        async with asyncio.TaskGroup() as watching:
            watching.create_task(watch.run(over))
            hurt = await _hurt(made, plan, seed=seed, seconds=seconds, drain_seconds=drain_seconds)
            for worker in made.workers.values():
                await worker.scrape()
            over.set()
        for worker in made.workers.values():
            await worker.process.stop(within=STOP_SECONDS)
        evidence = await gather(made, acknowledged=hurt.acknowledged, faults=hurt.faults, watch=watch)
    late = f"it took {hurt.drained:.0f} s" if hurt.drained > drain_seconds else ""
    unfinished = tuple(filter(None, (hurt.left, late)))
    end = Check("A0", f"All is done {drain_seconds:g} s after the last fault", unfinished)
    return Soaked(
        seed=seed,
        seconds=seconds,
        bug=bug,
        planned=len(plan),
        drain_seconds=hurt.drained,
        evidence=evidence,
        checks=[end, *_judged(evidence, seconds)],
    )


@dataclass(frozen=True, kw_only=True)
class _Hurt:
    """The faults that happened, what the broker acknowledged, how long the end took, and what is left."""

    faults: list[Injected]
    acknowledged: dict[int, str]
    drained: float
    left: str


async def _hurt(made: Stage, plan: list[Fault], *, seed: int, seconds: float, drain_seconds: float) -> _Hurt:
    """Let traffic and faults go on together, and everything come to its end in peace."""
    ledger = Ledger(made.ledger)
    chaos, sender, stop = Chaos(made), Sender(made, random.Random(seed + 3)), asyncio.Event()
    async with asyncio.TaskGroup() as traffic:
        for number in (1, 2):
            producer = Producer(made, ledger, f"p{number}", random.Random(seed + number))
            traffic.create_task(producer.run(stop))
        traffic.create_task(sender.run(stop))
        began = time.monotonic()
        await chaos.run(plan)
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
        sender.only_good = True
        peace = time.monotonic()
        await _brought_to_an_end(made, drain_seconds)
        stop.set()
    left = await _drained(made, max(10.0, drain_seconds - (time.monotonic() - peace)))
    drained = time.monotonic() - peace
    await _redrive_the_rest(made)
    ledger.close()
    faults = sorted(chaos.done, key=lambda fault: fault.began)
    return _Hurt(faults=faults, acknowledged=sender.acknowledged, drained=drained, left=left)


def _judged(evidence: Evidence, seconds: float) -> list[Check]:
    checks = judge(evidence, CONTENT + BEHAVIOUR)
    if seconds >= _RARE_PATHS_SECONDS:
        checks += judge(evidence, (("A11", rare_paths_were_reached),))
    return checks


async def _brought_to_an_end(made: Stage, seconds: float) -> None:
    """Wait until what was sent is settled, while good messages go on.

    When nothing but bad ones is left, a worker cannot tell them from a sick handler, and lets them wait.
    """
    target = made.direct
    deadline = time.monotonic() + seconds
    last = (await api(made.broker, f"STREAM.INFO.{target.upstream_stream}"))["state"]["last_seq"]
    while time.monotonic() < deadline:
        with contextlib.suppress(WorkerError):
            info = await consumer_info(made.broker, target.upstream_stream, target.durable)
            if info["ack_floor"]["stream_seq"] >= last:
                return
        await asyncio.sleep(0.25)


async def _drained(made: Stage, seconds: float) -> str:
    """Wait until nothing is left to do; tell what is left when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        left = await _left(made)
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.25)


async def _left(made: Stage) -> str:
    target = made.direct
    try:
        async with made.database() as connection:
            events, messages = await connection.fetchrow(_UNFINISHED)
        info = await consumer_info(made.broker, target.upstream_stream, target.durable)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, WorkerError) as error:
        return f"no answer: {error}"
    waiting = (events, messages, info["num_pending"], info["num_ack_pending"])
    if any(waiting):
        return "{} events, {} messages, {} not delivered, {} not acknowledged".format(*waiting)
    return ""


async def _redrive_the_rest(made: Stage) -> None:
    """An operator whose redrive was cut off does it again."""
    letters = await stored(made.broker, f"{CONTEXT.upper()}_DLQ")
    left = sorted(made.pardoned & {letter.seq for letter in letters})
    if left:
        await redrive(made, left)
