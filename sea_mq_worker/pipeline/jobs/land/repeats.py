"""Find repeated message IDs by an index of the IDs in silver.

The index is sorted, so that a search reads the parts of its files that can contain an ID. UUIDs of version 7
grow with time and are therefore in few parts; random ones cost one part per ID and file.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jobs.land.event_columns import UUID
from sea_mq_worker.pipeline.jobs.land.tasks import run_tasks
from sea_mq_worker.pipeline.lake.schemas import IDS
from sea_mq_worker.pipeline.lake.storage import filesystem, reachable
from sea_mq_worker.pipeline.lake.table import LakeTable

_KEY = ["high", "low"]
_KEY_BYTES = 16
_EVER = datetime.min.replace(tzinfo=UTC)


def to_ids(silver: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of the index for rows of silver."""
    high, low = _keys(silver.column("message_id"))
    watermark = pc.binary_join_element_wise(silver.column("stream"), silver.column("incarnation"), " ")
    columns = [high, low, watermark, silver.column("seq"), silver.column("published_at")]
    return pa.RecordBatch.from_arrays(columns, schema=IDS.schema)


def find_repeats(
    spark: SparkSession | None, ids: LakeTable, new: pa.Table, reached: Callable[[str], int], days: int | None
) -> pa.Array:
    """Return the sequences of new messages whose ID another message had before.

    Args:
        spark: the session that searches the index; None: this process does.
        ids: the index.
        new: rows of the index for the new messages, all of one stream.
        reached: silver's watermarks.
        days: ignore IDs of messages that were stored more than this many days before; None: search all.
    """
    if not new.num_rows:
        return new["seq"]
    high = np.unique(new["high"].to_numpy())
    since, first_at = _EVER, pc.min(new["published_at"]).as_py()
    if days is not None:
        since = first_at - timedelta(days=min(days, (first_at - _EVER).days))
    conditions = [("high", ">=", int(high[0])), ("high", "<=", int(high[-1])), ("published_at", ">=", since)]
    search, paths, rows = partial(_rows_with_keys, ids.uri, high), ids.paths(conditions), new.num_rows
    found = run_tasks(spark, "land: search repeated IDs", search, paths, rows=rows, schema=IDS.schema)
    known = found.filter(
        pc.and_(_is_in_silver(found, reached), pc.greater_equal(found["published_at"], since))
    )
    first = (
        new.group_by(_KEY).aggregate([("seq", "min")]).join(known.select(_KEY), _KEY, join_type="left anti")
    )
    return new["seq"].filter(pc.invert(pc.is_in(new["seq"], first["seq_min"])))


def _keys(message_ids: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return 128 bits of each ID, as two numbers."""
    is_uuid = pc.match_substring_regex(message_ids, UUID)
    keys = np.empty((len(message_ids), _KEY_BYTES), np.uint8)
    digits = "".join(pc.replace_substring(message_ids.filter(is_uuid), "-", "").to_pylist())
    others = message_ids.filter(pc.invert(is_uuid)).to_pylist()
    hashes = b"".join(blake2b(other.encode(), digest_size=_KEY_BYTES).digest() for other in others)
    for is_of, values in ((is_uuid, bytes.fromhex(digits)), (pc.invert(is_uuid), hashes)):
        rows = np.frombuffer(values, np.uint8).reshape(-1, _KEY_BYTES)
        keys[is_of.to_numpy(zero_copy_only=False)] = rows
    high, low = keys.view(">i8").astype(np.int64).T
    return pa.array(high), pa.array(low)


def _is_in_silver(found: pa.Table, reached: Callable[[str], int]) -> pa.Array:
    """Return which rows of the index count; a run that was killed before silver's commit wrote the others."""
    names = pc.unique(found["watermark"])
    limits = pa.array([reached(name) for name in names.to_pylist()], pa.int64())
    return pc.less_equal(found["seq"], limits.take(pc.index_in(found["watermark"], names)))


def _rows_with_keys(uri: str, high: np.ndarray, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file of the index whose upper bits are among ``high``, which is sorted."""
    wanted = pa.array(high)
    with reachable(uri), filesystem(uri).open_input_file(path) as source:
        file = pq.ParquetFile(source)
        groups = []
        for group in range(file.num_row_groups):
            ends = file.metadata.row_group(group).column(0).statistics
            if np.searchsorted(high, ends.min) < np.searchsorted(high, ends.max, "right"):
                groups.append(group)
        for rows in file.iter_batches(row_groups=groups):
            yield rows.cast(IDS.schema).filter(pc.is_in(rows.column("high"), wanted))
