"""``python -m benchmarks.pipeline``: the Spark jobs over more and more events. Linux only.

Orders are inserted into the outbox by one statement, ten to an ordering key, and published by the worker
itself, so that rows and messages are real ones. One session runs all jobs; it is warm, since it has run each
of them on a few events before. The floor reads the same messages and writes them by Spark's own Parquet
writer.
"""

import argparse
import asyncio
import tempfile
import time
from functools import partial
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.backlog import write_backlog
from benchmarks.backlogs import make_room
from benchmarks.drain import OUTBOX_ALONE, is_drained
from benchmarks.pipeline_figures import FLOOR, LAND, NEW_MESSAGES, Round, document, table
from benchmarks.pipeline_job import Session
from benchmarks.report import Progress, machine, write
from benchmarks.stage import Run, open_stage
from sea_mq_worker.cli import support as table_format

SIZES = (100_000, 1_000_000, 10_000_000)
_PACKAGES = ("pyspark", "delta-spark", "pyarrow")
_PER_KEY = 10
_WARM = 20_000
_NEW = 100
_NEW_ROUNDS = 9
_LOOK_SECONDS = 0.05
_JOBS = ("reconcile", "report")


def main() -> None:
    """Read the options, run, write the JSON file after each size and print the table."""
    options = _options()
    rounds: dict[int, list[Round]] = {count: [] for count in options.events}
    about = machine(*_PACKAGES)
    progress = Progress(len(rounds) * options.rounds)
    for number in range(1, options.rounds + 1):
        for count, results in rounds.items():
            results.append(asyncio.run(measure(count, options)))
            given = {"ids": options.ids, "master": options.master}
            write({"machine": about, **given, "sizes": document(rounds)}, options.json)
            progress.tell(f"round {number}, {count:,} events")
    head, *rows = table(document(rounds))
    print(*table_format.table(head, rows, width=None), sep="\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    sizes = " ".join(map(str, SIZES))
    parser.add_argument("--events", type=int, nargs="+", default=SIZES, metavar="N", help=f"sizes ({sizes})")
    parser.add_argument("--rounds", type=int, default=1, help="rounds, each of every size (1)")
    parser.add_argument(
        "--job", action="append", choices=_JOBS, help=f"beside land; may be repeated ({', '.join(_JOBS)})"
    )
    parser.add_argument(
        "--ids", choices=("uuidv7", "uuidv4"), default="uuidv7", help="IDs of events (uuidv7)"
    )
    parser.add_argument("--master", default="local[2]", help="Spark master (local[2])")
    parser.add_argument("--json", type=Path, default=Path("benchmarks-pipeline.json"), help="file to write")
    return parser.parse_args()


async def measure(count: int, options: argparse.Namespace) -> Round:
    """Measure each job over the same events, then a few new messages in a running query."""
    found: Round = {}
    jobs = options.job or _JOBS
    random_ids = options.ids == "uuidv4"
    with tempfile.TemporaryDirectory(prefix="sea-mq-benchmarks-") as folder:
        async with open_stage(Path(folder)) as stage, stage.run() as run:
            await make_room(run, _WARM + count + _NEW * _NEW_ROUNDS)
            await _publish(run, _WARM, total=_WARM, random_ids=random_ids)
            async with Session(run, options.master) as session:
                await session.step("floor", first=1, folder=f"{folder}/warm")
                for name in ("land", *jobs):
                    await session.step(name)
                total = _WARM + count
                await _publish(run, count, total=total, random_ids=random_ids)
                floor = session.step("floor", first=_WARM + 1, folder=f"{folder}/floor")
                found[FLOOR] = await session.measured(count, floor)
                found[LAND] = await session.measured(count, session.step("land"))
                for name in jobs:
                    found[name] = await session.measured(count, session.step(name))
                await session.step("follow")
                few = []
                for _ in range(_NEW_ROUNDS):
                    total += _NEW
                    await _publish(run, _NEW, total=total, random_ids=random_ids)
                    few.append(await session.measured(_NEW, _landed(session.lake, total)))
                found[NEW_MESSAGES] = sorted(few, key=lambda one: one.seconds)[_NEW_ROUNDS // 2]
                await session.step("end")
    return found


async def _publish(run: Run, count: int, *, total: int, random_ids: bool) -> None:
    """Insert events, and publish them by a worker; ``total``: messages in the stream then."""
    await write_backlog(run.database, count=count, per_key=_PER_KEY, random_ids=random_ids)
    await run.work(OUTBOX_ALONE, partial(is_drained, run, total))
    await run.database.execute("VACUUM ANALYZE outbox_events")


async def _landed(lake: Path, total: int) -> None:
    """Wait until silver has this number of events."""

    def look() -> None:
        while DeltaTable(lake / "silver").count() < total:
            time.sleep(_LOOK_SECONDS)

    await asyncio.to_thread(look)


if __name__ == "__main__":
    main()
