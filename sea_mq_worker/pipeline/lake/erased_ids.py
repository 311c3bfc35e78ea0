"""The lake's record of erased message IDs, which keeps their messages from returning.

The record contains only hashes, so that it does not itself contain what was erased.
"""

import hashlib
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import write_deltalake

from sea_mq_worker.pipeline.lake.schemas import TableSchema
from sea_mq_worker.pipeline.lake.storage import reachable
from sea_mq_worker.pipeline.lake.table import LakeTable

ERASED = TableSchema(
    name="erased",
    schema=pa.schema([("id_sha256", pa.string()), ("erased_at", pa.timestamp("us", tz="UTC"))]),
    partition_by=(),
)
"""One row per erased message ID: the hexadecimal SHA-256 of its UTF-8 text."""


def id_hash(message_id: str) -> str:
    """Return the hash under which an erased message ID is recorded."""
    return hashlib.sha256(message_id.encode()).hexdigest()


def erased_hashes(lake: str) -> frozenset[str]:
    """Return the hashes of all erased message IDs.

    Raises:
        PipelineError: the lake cannot be read.
    """
    return frozenset(LakeTable(lake, ERASED).peek((), ["id_sha256"])["id_sha256"].to_pylist())


def without_erased(rows: pa.RecordBatch, message_ids: pa.Array, hashes: Collection[str]) -> pa.RecordBatch:
    """Return the rows whose message IDs are not erased."""
    return rows.filter(pa.array([id_hash(each) not in hashes for each in message_ids.to_pylist()]))


def record_erased(lake: str, message_ids: Iterable[str]) -> None:
    """Record message IDs as erased; those that are recorded already change nothing.

    Raises:
        PipelineError: the lake cannot be written.
    """
    if added := sorted({id_hash(each) for each in message_ids} - erased_hashes(lake)):
        rows = pa.table([added, [datetime.now(UTC)] * len(added)], schema=ERASED.schema)
        uri = LakeTable(lake, ERASED).uri
        with reachable(uri):
            write_deltalake(uri, rows, mode="append")
