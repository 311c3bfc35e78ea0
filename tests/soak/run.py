"""One soak: traffic and faults, then traffic without faults, a stop, and the checks."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.nats.connection import api
from tests.soak.deployment import CONTEXT, STOP_SECONDS, Stage, stage
from tests.soak.evidence import (
    LONG_CHECKS,
    Check,
    Evidence,
    Watch,
    gather,
    judge,
    late_calls,
    slopes,
    sometimes,
)
from tests.soak.faults import Chaos, draw, redrive
from tests.soak.traffic import Producer, Sender, Transaction
from tests.support.jetstream import consumer_info, stored_messages

DRAIN_SECONDS = 60.0
_RARE_PATHS_SECONDS = 300.0
"""Minimum length of a soak that must take every rare path."""
_UNFINISHED = """
SELECT (SELECT count(*) FROM outbox_events WHERE state IN ('PENDING', 'CLAIMED')),
       (SELECT count(*) FROM inbox_messages WHERE processed_at IS NULL AND dead_lettered_at IS NULL)
"""


@dataclass(frozen=True)
class Soaked:
    """The result of a soak."""

    seed: int
    seconds: float
    bug: str
    drain_seconds: float
    evidence: Evidence
    checks: list[Check]

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> dict[str, tuple[str, ...]]:
        """The first offenders of each check that failed."""
        return {check.name: check.offenders[:10] for check in self.checks if check.offenders}

    def data(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        e = self.evidence
        states = Counter(row["state"] for row in e.outbox.values())
        return {
            "passed": self.passed,
            "seed": self.seed,
            "seconds": self.seconds,
            "planted_bug": self.bug,
            "faults": dict(sorted(Counter(fault.kind for fault in e.faults).items())),
            "drain_seconds": round(self.drain_seconds, 1),
            "outbound": {
                "committed": len(e.outbox),
                "published": states["PUBLISHED"],
                "dead": states["DEAD"],
                "extra_copies": len(e.events) - states["PUBLISHED"],
                "replays": e.replays.total(),
            },
            "inbound": {
                "messages": len(e.upstream),
                "processed": sum(row["processed_at"] is not None for row in e.inbox.values()),
                "dead_letters": Counter(letter.headers["Dlq-Reason"] for letter in e.letters),
                "handler_calls": len(e.heard),
                "double_effects": sum(count > 1 for count in e.effects.values()),
                "late_calls": Counter(why or "unexplained" for *_, why in late_calls(e)),
            },
            "exits": Counter(f"{life.code} ({life.signal or 'no signal'})" for life in e.lives),
            "sometimes": sometimes(e),
            "slopes": slopes(e),
            "commands": [f"{fault.kind}: {fault.note}" for fault in e.faults if fault.note],
            "checks": {f"{check.name} {check.title}": len(check.offenders) for check in self.checks},
            "problems": self.problems,
        }


async def soak(
    *,
    seed: int,
    seconds: float,
    folder: Path,
    bug: str = "",
    only: frozenset[str] = frozenset(),
    drain_seconds: float = DRAIN_SECONDS,
) -> Soaked:
    """Run traffic and faults together, then let the deployment drain without faults, and judge what is left.

    Args:
        seed: seed of faults and traffic.
        seconds: duration of both.
        folder: folder for logs.
        bug: bug to plant in every worker.
        only: kinds of faults to cause; empty: all.
        drain_seconds: limit after the last fault until everything is settled.
    """
    async with stage(folder, seed=seed, bug=bug) as made:
        await asyncio.gather(*(worker.ready() for worker in made.workers.values()))
        watch, over = Watch(made), asyncio.Event()
        ledger: dict[str, Transaction] = {}
        chaos, sender, stop = Chaos(made), Sender(made, random.Random(seed + 3)), asyncio.Event()
        watching = asyncio.create_task(watch.run(over))
        async with asyncio.TaskGroup() as traffic:
            for number in (1, 2):
                producer = Producer(made, ledger, f"p{number}", random.Random(seed + number))
                traffic.create_task(producer.run(stop))
            traffic.create_task(sender.run(stop))
            began = time.monotonic()
            await chaos.run(draw(seed, seconds, only=only))
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
            sender.only_good = True
            peace = time.monotonic()
            await _settled_under_traffic(made, drain_seconds)
            stop.set()
        left = await _drained(made, max(10.0, drain_seconds - (time.monotonic() - peace)))
        drained = time.monotonic() - peace
        letters = await stored_messages(made.broker, f"{CONTEXT.upper()}_DLQ")
        if interrupted := sorted(made.pardoned & {letter.seq for letter in letters}):
            await redrive(made, interrupted)  # as an operator would
        for worker in made.workers.values():
            await worker.scrape()
        over.set()
        await watching
        for worker in made.workers.values():
            await worker.process.stop(within=STOP_SECONDS)
        faults = sorted(chaos.done, key=lambda fault: fault.began)
        evidence = await gather(made, watch, ledger=ledger, acknowledged=sender.acknowledged, faults=faults)
    late = f"it took {drained:.0f} s" if drained > drain_seconds else ""
    end = f"Everything is settled {drain_seconds:g} s after the last fault"
    checks = [Check("A0", end, tuple(filter(None, (left, late)))), *judge(evidence)]
    if seconds >= _RARE_PATHS_SECONDS:
        checks += judge(evidence, LONG_CHECKS)
    return Soaked(seed, seconds, bug, drained, evidence, checks)


async def _settled_under_traffic(made: Stage, seconds: float) -> None:
    """Wait until all earlier messages are settled, while good messages continue.

    If only bad messages were left, a worker could not distinguish them from a failing handler, and they would
    wait.
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
    """Wait until nothing is left to do; return the unfinished work if the time is over."""
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
        return f"no response: {error}"
    waiting = (events, messages, info["num_pending"], info["num_ack_pending"])
    if any(waiting):
        return "{} events, {} messages, {} not delivered, {} not acknowledged".format(*waiting)
    return ""
