"""Workload: messages through the worker, and through a consumer of FastStream with a table as inbox."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.comparison import RELAYS
from benchmarks.counters import Cost, Figure, cpu_seconds
from benchmarks.inbox import CONSUMER, fill_stream, inbox, is_consumed
from benchmarks.relay import Description, install
from benchmarks.stage import Run, Stage
from tests.support.processes import KeptProcess

_NAME = "faststream-outbox"
_TABLE = "CREATE TABLE peer_inbox (message_id TEXT PRIMARY KEY, at TIMESTAMPTZ DEFAULT clock_timestamp())"
_SPAN = "SELECT count(*) AS done, extract(epoch FROM max(at) - min(at))::float8 AS seconds FROM peer_inbox"
_LOOK_SECONDS = 0.05


async def inbox_peer(stage: Stage, *, count: int, work: Path) -> dict[str, Figure]:
    """Install FastStream below ``work`` unless it is there, and measure both.

    Raises:
        RelayError: it cannot be installed.
    """
    description = Description.load(RELAYS / f"{_NAME}.toml")
    await asyncio.to_thread(install, description, work / _NAME)
    worker = await inbox(stage, count=count)
    async with stage.run() as run:
        python = work / _NAME / "venv" / "bin" / "python"
        program = KeptProcess(
            name="faststream",
            command=[str(python), str(RELAYS / _NAME / "inbox.py")],
            environment={**os.environ, **_environment(run)},
            folder=stage.folder,
            logs=stage.folder,
        )
        return {"worker": worker["worker"], "FastStream": await _receive(run, program, count)}


def _environment(run: Run) -> Mapping[str, str]:
    stream, durable = CONSUMER
    return {
        "DATABASE_URL": run.settings["SEA_MQ_DATABASE_URL"],
        "NATS_URL": run.stage.nats.url,
        "SUBJECT": "vibespro.event.>",
        "STREAM": stream,
        "DURABLE": durable,
    }


async def _receive(run: Run, program: KeptProcess, count: int) -> Figure:
    """Start the program at a filled stream; its cost is counted from the first row that is seen."""
    await run.database.execute(_TABLE)
    await fill_stream(run, count)
    async with program:
        while not (first := (await run.database.fetchrow(_SPAN))["done"]):
            await _look(program)
        before = await run.read(cpu_seconds(program.process.pid))
        while not await is_consumed(run):
            await _look(program)
        cost = Cost.between(before, await run.read(cpu_seconds(program.process.pid)))
    row = await run.database.fetchrow(_SPAN)
    if row["done"] != count:
        raise RuntimeError(f"of {count} messages, {row['done']} are recorded")
    return Figure(count=count - first, rate=count / row["seconds"], cost=cost)


async def _look(program: KeptProcess) -> None:
    if program.ends:
        raise RuntimeError(f"FastStream ended: {program.lives[0].log.read_text()[-2000:]}")
    await asyncio.sleep(_LOOK_SECONDS)
