"""The lake's record of erased message IDs, which keeps their messages from returning.

The record contains only hashes, so that it does not itself contain what was erased.
"""

import hashlib
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from sea_mq_worker.pipeline.lake.schemas import TableSchema
from sea_mq_worker.pipeline.lake.storage import reachable
from sea_mq_worker.pipeline.lake.table import LakeTable

ID_HEADERS = ("nats-msg-id", "ce-id", "dlq-message-id")
"""Lowercase names of the headers with the ID of a message, or of the message that became a dead letter."""

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


def without_erased(bronze: pa.RecordBatch, message_ids: pa.Array, hashes: AbstractSet[str]) -> pa.RecordBatch:
    """Return the rows of bronze without those that have an erased ID, also in a header with another ID."""
    headers = bronze.column("headers")
    names, values = pc.list_flatten(headers).flatten()
    is_id = pc.is_in(pc.ascii_lower(names), pa.array(ID_HEADERS))
    rows, named = (each.filter(is_id).to_pylist() for each in (pc.list_parent_indices(headers), values))
    ids = [*enumerate(message_ids.to_pylist()), *zip(rows, named, strict=True)]
    erased = {row for row, value in ids if not hashes.isdisjoint(map(id_hash, (value, value.lower())))}
    return bronze.filter(pa.array([row not in erased for row in range(bronze.num_rows)], pa.bool_()))


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
