"""Update silver: typed columns, one row per message ID.

A repeat is a message whose ID was landed before, from any stream and at any time. The copy landed first is
kept; within a batch, the one with the lowest sequence. Later copies exist only in bronze.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jobs.land.event_columns import to_silver
from sea_mq_worker.pipeline.jobs.land.repeats import find_repeats, to_ids
from sea_mq_worker.pipeline.jobs.land.stream_progress import StreamProgress
from sea_mq_worker.pipeline.jobs.land.tasks import committed, rewrite
from sea_mq_worker.pipeline.lake.schemas import BRONZE, IDS, SILVER
from sea_mq_worker.pipeline.lake.storage import filesystem, reachable
from sea_mq_worker.pipeline.lake.table import LakeTable, Watermark
from sea_mq_worker.pipeline.lake.write_files import TableRows

SERIAL = "commits"
"""Watermark that every commit increments. A commit depends on all rows of the table, so of two concurrent
commits one must fail."""


class Silver:
    """Silver and the index of its IDs."""

    def __init__(
        self, spark: SparkSession | None, lake: str, *, rows_max: int, dedupe_days: int | None
    ) -> None:
        """Take sequences per commit, and days before a batch to search for repeats; None: no limit."""
        self._spark, self._rows_max, self._dedupe_days = spark, rows_max, dedupe_days
        self._bronze, self._silver, self._ids = (LakeTable(lake, each) for each in (BRONZE, SILVER, IDS))

    def catch_up(self, progress: StreamProgress) -> int:
        """Update silver to the progress of bronze; return the number of new rows."""
        added = 0
        while (taken := self._silver.watermarks()(progress.name)) < progress.landed:
            first = pc.min(self._bronze.entries(progress.rows(taken, progress.landed))["min.seq"]).as_py()
            upto = min(progress.landed, max(taken, (first or progress.landed) - 1) + self._rows_max)
            rest = progress.rows(taken, upto)
            files, matching = self._bronze.entries(rest), pq.filters_to_expression(rest)
            description = f"land {progress.stream} {taken + 1}-{upto}: silver"
            entries = rewrite(self._spark, description, self._bronze, files, rows_of, matching=matching)
            added += self.add(progress, entries, after=taken, upto=upto)
        return added

    def add(self, progress: StreamProgress, entries: pa.Table, *, after: int, upto: int) -> int:
        """Commit files with the messages after a sequence up to another one; return the number of new rows.

        Raises:
            ConflictError: another run is landing this stream into this lake.
        """
        return committed(lambda: self._commit(progress, entries, after, upto))

    def index(self) -> None:
        """Write the index of a lake that has none: its folder is lost, or an older version wrote the lake."""
        if self._ids.open() is None and self._silver.open() is not None:
            reached = self._silver.watermarks()
            files = self._silver.entries()
            entries = rewrite(self._spark, "land: index of IDs", self._silver, files, _index_of)
            self._ids.commit(self._ids.files(entries), Watermark(SERIAL, reached(SERIAL)))

    def _commit(self, progress: StreamProgress, entries: pa.Table, after: int, upto: int) -> int:
        reached = self._silver.watermarks()
        ids, files = self._ids.files(entries), self._silver.files(entries)
        columns = ["high", "low", "seq", "published_at"]
        keys = self._ids.load(ids.paths, columns)
        repeats = find_repeats(self._spark, self._ids, keys, reached, self._dedupe_days)
        replaced: set[str] = set()
        if len(repeats):
            description = f"land {progress.stream} {after + 1}-{upto}: repeated IDs"
            silver, others = entries.filter(pc.field("table") == SILVER.name), ~pc.field("seq").isin(repeats)
            replaced = set(files.paths)
            entries = rewrite(self._spark, description, self._silver, silver, _unchanged, matching=others)
            files = self._silver.files(entries)
        metadata = progress.metadata(after + 1, upto)
        # Rows of the index count only from silver's commit on.
        self._ids.commit(ids, Watermark(progress.name, upto), metadata=metadata)
        serial = reached(SERIAL)
        watermarks = Watermark(progress.name, upto, after=after), Watermark(SERIAL, serial + 1, after=serial)
        if not self._silver.commit(files, *watermarks, metadata=metadata):
            return 0
        with reachable(self._silver.uri):
            for path in replaced:
                filesystem(self._silver.uri).delete_file(path)
        return files.rows


def rows_of(bronze: pa.RecordBatch) -> list[TableRows]:
    """Return the rows of silver and of the index of IDs."""
    silver = to_silver(bronze)
    return [(SILVER, silver), *_index_of(silver)]


def _index_of(silver: pa.RecordBatch) -> list[TableRows]:
    return [(IDS, to_ids(silver))]


def _unchanged(silver: pa.RecordBatch) -> list[TableRows]:
    return [(SILVER, silver)]
