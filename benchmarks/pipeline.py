"""``python -m benchmarks.pipeline``: the Spark jobs over more and more events. Linux only.

Orders are inserted into the outbox by one statement, ten to an ordering key, and published by the worker
itself, so that rows and messages are real ones. Each job is a command, measured from its start. Spark starts
from the archive of ``pipeline prepare``.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.backlog import write_backlog
from benchmarks.backlogs import make_room
from benchmarks.drain import OUTBOX_ALONE, is_drained
from benchmarks.pipeline_figures import LAND, NEW_MESSAGES, SECOND_BATCH, Round, document, table
from benchmarks.pipeline_job import Job
from benchmarks.report import Progress, machine, say, write
from benchmarks.stage import Run, open_stage
from sea_mq_worker.cli import support as table_format
from sea_mq_worker.pipeline.class_archive import write_archive
from sea_mq_worker.pipeline.session import ARCHIVE

SIZES = (100_000, 1_000_000, 10_000_000)
_PACKAGES = ("pyspark", "delta-spark", "pyarrow")
_PER_KEY = 10
_SECOND_BATCH = 1_000_000
_NEW = 100
_LAND_OPTIONS = ("--every", "0.1")
_JOBS = {
    "reconcile": ("--lake", "{lake}"),
    "report": ("--lake", "{lake}", "--since", "1d", "--out", "{page}"),
    "archive": ("--lake", "{lake}", "--before", "0s", "--reason", "benchmark"),
}
_USUAL = ("reconcile", "report")


def main() -> None:
    """Read the options, run, write the JSON file after each size and print the table."""
    options = _options()
    rounds: dict[int, list[Round]] = {count: [] for count in options.events}
    about = machine(*_PACKAGES)
    progress = Progress(len(rounds) * options.rounds)
    if not ARCHIVE.exists():
        write_archive(ARCHIVE, on_progress=say)
    for number in range(1, options.rounds + 1):
        for count, results in rounds.items():
            random_ids = options.ids == "uuidv4"
            results.append(asyncio.run(measure(count, options.job or _USUAL, random_ids=random_ids)))
            write({"machine": about, "ids": options.ids, "sizes": document(rounds)}, options.json)
            progress.tell(f"round {number}, {count:,} events")
    head, *rows = table(document(rounds))
    print(*table_format.table(head, rows, width=None), sep="\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    sizes = " ".join(map(str, SIZES))
    parser.add_argument("--events", type=int, nargs="+", default=SIZES, metavar="N", help=f"sizes ({sizes})")
    parser.add_argument("--rounds", type=int, default=1, help="rounds, each of every size (1)")
    parser.add_argument(
        "--job", action="append", choices=_JOBS, help=f"beside land; may be repeated ({', '.join(_USUAL)})"
    )
    parser.add_argument(
        "--ids", choices=("uuidv7", "uuidv4"), default="uuidv7", help="IDs of events (uuidv7)"
    )
    parser.add_argument("--json", type=Path, default=Path("benchmarks-pipeline.json"), help="file to write")
    return parser.parse_args()


async def measure(count: int, jobs: Sequence[str], *, random_ids: bool) -> Round:
    """Land all events, run the jobs over them, and let the same ``land`` go on with more events."""
    found: Round = {}
    with tempfile.TemporaryDirectory(prefix="sea-mq-benchmarks-") as folder:
        async with open_stage(Path(folder)) as stage, stage.run() as run:
            paths = {"lake": f"{folder}/lake", "page": f"{folder}/report.html"}
            await make_room(run, count + min(count, _SECOND_BATCH) + _NEW)
            await _publish(run, count, total=count, random_ids=random_ids)
            async with Job(run, "land", "--lake", paths["lake"], *_LAND_OPTIONS) as land:
                found[LAND] = await land.measured(count, land.result())
                for name in jobs:
                    options = [option.format_map(paths) for option in _JOBS[name]]
                    async with Job(run, name, *options) as job:
                        found[name] = await job.measured(count, job.end())
                total = count
                for name, more in ((SECOND_BATCH, min(count, _SECOND_BATCH)), (NEW_MESSAGES, _NEW)):
                    total += more
                    await _publish(run, more, total=total, random_ids=random_ids)
                    found[name] = await land.measured(more, land.result())
    return found


async def _publish(run: Run, count: int, *, total: int, random_ids: bool) -> None:
    """Insert events, and publish them by a worker; ``total``: messages in the stream then."""
    await write_backlog(run.database, count=count, per_key=_PER_KEY, random_ids=random_ids)
    await run.work(OUTBOX_ALONE, partial(is_drained, run, total))
    await run.database.execute("VACUUM ANALYZE outbox_events")


if __name__ == "__main__":
    main()
