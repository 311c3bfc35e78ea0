"""``python -m benchmarks.pipeline``: the Spark jobs over generated events, beside plain readers. Linux only.

The generator: a million orders are inserted into the outbox by one statement, ten to an ordering key
(``backlog.write_backlog``), and published by the worker itself, so that rows and messages are real ones.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import nats

from benchmarks.backlog import write_backlog
from benchmarks.stage import Run, open_stage

_PER_KEY = 10
_LOOK_SECONDS = 0.25
_FETCH = 1_000
_QUIET_WORKER = {"SEA_MQ_CONSUMERS": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The figures of one program.

    Attributes:
        cpu_seconds: processor time of the program and all its children, without the servers; 0: not measured.
        peak_bytes: most memory held at once by the program and all its children, shared pages counted once;
            0: not measured.
    """

    name: str
    rows: int
    seconds: float
    cpu_seconds: float = 0.0
    peak_bytes: int = 0

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


def main() -> None:
    """Read the options, run, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="events to generate (1000000)")
    parser.add_argument("--json", type=Path, default=Path("benchmarks-pipeline.json"), help="file to write")
    parser.add_argument(
        "--keep", type=Path, help="folder for the lake and the report; a temporary one unless given"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sea-mq-benchmarks-") as folder:
        output = options.keep or Path(folder) / "output"
        output.mkdir(parents=True, exist_ok=True)
        figures = asyncio.run(measure(Path(folder), output, options.events))
    options.json.write_text(
        json.dumps([asdict(each) | {"rate": each.rate} for each in figures], indent=2) + "\n"
    )
    print(f"{'program':32}{'rows':>10}{'seconds':>9}{'rows/s':>9}{'CPU s':>9}{'peak MB':>9}")
    for each in figures:
        peak = f"{each.peak_bytes / 1e6:,.0f}" if each.peak_bytes else "-"
        cpu = f"{each.cpu_seconds:,.1f}" if each.cpu_seconds else "-"
        print(f"{each.name:32}{each.rows:>10}{each.seconds:>9.1f}{each.rate:>9,.0f}{cpu:>9}{peak:>9}")


async def measure(folder: Path, output: Path, count: int) -> list[Figure]:
    """Generate the events, then run plain readers and jobs one after the other."""
    async with open_stage(folder) as stage, stage.run() as run:
        _say(f"writing {count} events")
        await write_backlog(run.database, count=count, per_key=_PER_KEY)
        _say("publishing them with the worker")
        await run.work(_QUIET_WORKER, lambda: _is_published(run))
        await run.database.execute("VACUUM ANALYZE outbox_events")
        lake, report = str(output / "lake"), str(output / "report.html")
        figures = [await _read_stream(run, count), await _read_table(run, count)]
        jobs = (
            ("land", "--lake", lake),
            ("reconcile", "--lake", lake),
            ("report", "--lake", lake, "--out", report),
            ("archive", "--lake", lake, "--before", "0s", "--reason", "benchmark"),
            ("reconcile", "--lake", lake),
        )
        return figures + [await _job(run, count, *job) for job in jobs]


async def _is_published(run: Run) -> bool:
    left: bool = await run.database.fetchval(
        "SELECT EXISTS (SELECT FROM outbox_events WHERE published_at IS NULL)"
    )
    return not left


async def _read_stream(run: Run, count: int) -> Figure:
    """Read all messages with nats-py's pull consumer, and do nothing with them."""
    broker = await nats.connect(run.stage.nats.url)
    try:
        began = time.perf_counter()
        consumer = await broker.jetstream().pull_subscribe(
            "", stream="SEA_EVENTS", config=nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE)
        )
        read = 0
        while read < count:
            read += len(await consumer.fetch(_FETCH))
        return Figure(name="nats-py, pull", rows=read, seconds=time.perf_counter() - began)
    finally:
        await broker.close()


async def _read_table(run: Run, count: int) -> Figure:
    """Read all rows with an asyncpg cursor, and do nothing with them."""
    began = time.perf_counter()
    async with run.database.transaction():
        read = 0
        async for _ in run.database.cursor("SELECT * FROM outbox_events", prefetch=_FETCH):
            read += 1
    if read != count:
        raise RuntimeError(f"{read} of {count} rows were read")
    return Figure(name="asyncpg, cursor", rows=read, seconds=time.perf_counter() - began)


async def _job(run: Run, count: int, *command: str) -> Figure:
    """Run a job as its user does, from the start of its process to the end."""
    _say(" ".join(command))
    began, cpu_before = time.perf_counter(), _cpu_seconds_of_ended_children()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sea_mq_worker", "pipeline", *command, "--json",
        env={**os.environ, **run.settings, **_QUIET_WORKER}, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    ended = asyncio.ensure_future(process.wait())
    peak = 0
    while not ended.done():
        peak = max(peak, await asyncio.to_thread(_tree_bytes, process.pid))
        await asyncio.wait([ended], timeout=_LOOK_SECONDS)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    seconds = time.perf_counter() - began
    return Figure(
        name=f"pipeline {command[0]}",
        rows=count,
        seconds=seconds,
        cpu_seconds=_cpu_seconds_of_ended_children() - cpu_before,
        peak_bytes=peak,
    )


def _cpu_seconds_of_ended_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _tree_bytes(root: int) -> int:
    """Memory of a process and all its descendants, in proportional shares."""
    parents, shares = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            shares[pid] = (entry / "smaps_rollup").read_text()
        except OSError:
            continue  # the process has just ended, or is not ours
    family = {root}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(_pss(shares.get(pid, "")) for pid in family)


def _pss(rollup: str) -> int:
    lines = [line for line in rollup.splitlines() if line.startswith("Pss:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
