"""Operators' queries by their names in the table: commands, and queries of the worker's page."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import asyncpg
from typer.testing import CliRunner

from benchmarks.past import DEAD_TYPE
from benchmarks.stage import Run
from sea_mq_worker.admin.api import OperatorApi
from sea_mq_worker.admin.http import Request
from sea_mq_worker.admin.status import DEPTH_MAX
from sea_mq_worker.cli import app
from sea_mq_worker.connections import open_pool
from sea_mq_worker.operators.tables import BY_INDEX, depth, overview

Question: TypeAlias = Callable[[], Awaitable[object]]

_COMMANDS = (
    "depth",
    "outbox list",
    "outbox list --state PENDING",
    "outbox list --state DEAD",
    "outbox list --state DEAD --type {type}",
    "outbox list --state DEAD --error acknowledgement",
    "outbox list --state DEAD --since 1h --until 10m",
    "outbox list --after {dead}",
    "outbox list --key {key}",
    "outbox list --aggregate order/{aggregate}",
    "outbox list --type {type} --key {key} --error acknowledgement --since 3h",
    "outbox list --error nothing-says-this",
    "outbox list --correlation {correlation}",
    "outbox summary",
    "outbox show {event}",
    "inbox list",
    "inbox list --state DEAD_LETTERED --reason REJECTED --since 1h",
    "inbox list --state WAITING --consumer sea-inbox --error 503",
    "inbox list --subject nobody.event.sends.v1",
    "inbox list --after {waiting}",
    "inbox summary",
    "inbox show {message}",
    "where {event}",
    "where {dead}",
    "where {message}",
    "where {beginning}",
    "where {correlation}",
    "outbox list --state PUBLISHED",
    "outbox list --state PUBLISHED --since 10m",
    "outbox list --state PUBLISHED --until 1h --type order.created",
    "outbox list --state PUBLISHED --after {event}",
    "outbox list --state PUBLISHED --aggregate order/{aggregate}",
    "outbox list --state PUBLISHED --key {key}",
    "outbox list --state PUBLISHED --key {key} --read 0",
    "inbox list --state PROCESSED",
    "inbox list --state PROCESSED --since 10m",
    "inbox list --state PROCESSED --consumer nobody",
)
"""The last commands select finished rows by columns without an index."""
_EXAMPLES = """
SELECT p.id::text AS event, left(p.id::text, 8) AS beginning, p.correlation_id::text AS correlation,
       d.id::text AS dead, d.ordering_key AS key, d.aggregate_id AS aggregate,
       i.message_id::text AS message, w.message_id::text AS waiting
  FROM (SELECT * FROM outbox_events WHERE published_at IS NOT NULL ORDER BY id LIMIT 1) p,
       (SELECT * FROM outbox_events WHERE state = 'DEAD' AND ordering_key IS NOT NULL
         ORDER BY occurred_at LIMIT 1 OFFSET 100) d,
       (SELECT * FROM inbox_messages WHERE processed_at IS NOT NULL ORDER BY message_id LIMIT 1) i,
       (SELECT * FROM inbox_messages WHERE processed_at IS NULL ORDER BY received_at LIMIT 1 OFFSET 5000) w
"""
_TIMEOUTS = {"SEA_MQ_DATABASE_TIMEOUT_SECONDS": "60", "SEA_MQ_OUTBOX_LEASE_SECONDS": "120"}
"""Time limits for commands that read a whole table on a slow machine."""


@asynccontextmanager
async def questions(run: Run) -> AsyncIterator[Mapping[str, Question]]:
    """Choose example rows, and keep a worker's connection for samples open meanwhile."""
    examples = {**await run.database.fetchrow(_EXAMPLES), "type": DEAD_TYPE}
    names = {name: name.upper() for name in examples} | {"type": DEAD_TYPE}
    environment = {**run.settings, **_TIMEOUTS}
    commands: dict[str, Question] = {
        command.format_map(names): partial(_command, command.format_map(examples).split(), environment)
        for command in _COMMANDS
    }
    pool = await open_pool(run.own, purpose="upkeep", hints=BY_INDEX)
    try:
        yield {
            "python -m sea_mq_worker depth": partial(_process, ["depth"], environment),
            **_page(OperatorApi(run.own), examples),
            **_samples(pool),
            **commands,
        }
    finally:
        await pool.close()


async def _process(args: list[str], environment: Mapping[str, str]) -> None:
    """Run a command as a process, including Python's start."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sea_mq_worker", *args),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.DEVNULL,
    )
    if await process.wait():
        raise RuntimeError(f"{args}: exit code {process.returncode}")


async def _command(args: list[str], environment: Mapping[str, str]) -> None:
    """Run a command in this process, without Python's start."""
    result = await asyncio.to_thread(CliRunner().invoke, app, args, env=environment)
    if result.exit_code:
        raise RuntimeError(f"{args}: exit code {result.exit_code}: {result.output}")


def _page(api: OperatorApi, examples: Mapping[str, str]) -> Mapping[str, Question]:
    def get(path: str, **query: str) -> Question:
        return partial(api.answer, Request(method="GET", path=f"/api/{path}", query=query))

    return {
        "page: search EVENT": get("lookup", id=examples["event"]),
        "page: search CORRELATION": get("lookup", id=examples["correlation"]),
        "page: dead events": get("events"),
        "page: dead events of a type and an error": get("events", type=DEAD_TYPE, error="acknowledgement"),
        "page: EVENT": get(f"events/{examples['event']}"),
    }


def _samples(pool: asyncpg.Pool) -> Mapping[str, Question]:
    """Return the worker's own periodic queries: the depth, and reasons of dead events."""

    async def both_depths() -> None:
        await depth(pool, "outbox", limit=DEPTH_MAX)
        await depth(pool, "inbox", limit=DEPTH_MAX)

    return {
        "page: sample of the depth": both_depths,
        "page: sample of reasons": partial(overview, pool, sessions="sea_mq_worker upkeep"),
    }
