"""Find and delete the rows of chosen events in the lake's tables, by SQL and without Spark."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyarrow.fs import FileSelector

from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.land.stream_progress import incarnations
from sea_mq_worker.pipeline.jobs.land.tasks import committed
from sea_mq_worker.pipeline.jobs.typed.typed_tables import tables_of
from sea_mq_worker.pipeline.lake.erased_ids import ID_HEADERS
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, BRONZE, IDS, SCHEMAS, SILVER, TableSchema
from sea_mq_worker.pipeline.lake.storage import filesystem, reachable
from sea_mq_worker.pipeline.lake.table import Conditions, LakeTable

_WRITING_HOURS_MAX = 1
"""A file that no version contains may be one that a run is writing, until it is this old."""

_VERSION_DIGITS = 20
_HEADERS = """(
SELECT stream, incarnation, seq, lower(header['key']) AS name, header['value'] AS value
  FROM (SELECT stream, incarnation, seq, unnest(headers) AS header FROM t))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventChoice:
    """The events to erase: those that match any part.

    Attributes:
        ids: message IDs.
        aggregate: type and ID of an aggregate.
        key: ordering key or partition key.
    """

    ids: frozenset[str] = frozenset()
    aggregate: tuple[str, str] | None = None
    key: str | None = None


class Position(NamedTuple):
    """The place of a message in an incarnation of a stream."""

    stream: str
    incarnation: str
    seq: int


class LakeRows(NamedTuple):
    """Rows of chosen events in the lake.

    Attributes:
        ids: all message IDs.
        positions: places of all copies.
        header_positions: those that only headers in bronze name, because silver has another message ID there.
        counts: number of rows by table.
    """

    ids: frozenset[str]
    positions: frozenset[Position]
    header_positions: frozenset[Position]
    counts: dict[str, int]


def find_rows(lake: str, choice: EventChoice, ids: Iterable[str]) -> LakeRows:
    """Find the rows of the choice and of further message IDs; read the headers of all messages for it.

    Raises:
        PipelineError: the lake cannot be read, or silver lacks messages of bronze.
    """
    _check_silver(lake)
    known = choice.ids.union(ids)
    in_archive, in_silver = [_is_in("id", known)], []
    if choice.aggregate:
        kind, identity = map(_literal, choice.aggregate)
        in_archive.append(f"aggregate_type = {kind} AND aggregate_id = {identity}")
        in_silver.append(f"aggregate = {_literal('/'.join(choice.aggregate))}")
    if choice.key is not None:
        in_archive.append(f"{_literal(choice.key)} IN (ordering_key, partition_key)")
        in_silver.append(f"partition_key = {_literal(choice.key)}")
    archived = _select(lake, ARCHIVE, "id", " OR ".join(in_archive))
    known = known.union(row["id"] for row in archived)
    position = ", ".join(Position._fields)
    in_silver.append(_is_in("message_id", known))
    silver = _select(lake, SILVER, f"message_id, {position}", " OR ".join(in_silver))
    known = known.union(row.pop("message_id") for row in silver)
    is_named = f"{_is_in('value', known)} OR {_is_in('lower(value)', known)}"
    is_copy = f"{_is_in('name', ID_HEADERS)} AND ({is_named})"
    copies = _select(lake, BRONZE, position, is_copy, source=_HEADERS)
    in_headers, own = (frozenset(Position(**row) for row in rows) for rows in (copies, silver))
    positions = own | in_headers
    counts = {"bronze": len(positions), "archive": len(archived), "silver": len(silver)}
    return LakeRows(known, positions, in_headers - own, counts)


def delete_rows(lake: str, schema: TableSchema, ids: Collection[str], positions: Collection[Position]) -> int:
    """Delete events from the current version of a table; return the number of deleted rows.

    Raises:
        PipelineError: the lake cannot be written, or another run keeps changing it.
    """
    table = LakeTable(lake, schema)
    return sum(committed(partial(table.delete, conditions)) for conditions in _chosen(schema, ids, positions))


def delete_old_versions(lake: str) -> tuple[str, ...]:
    """Delete all versions but the current ones; return the files that no version contains and that stay.

    The log of a version has minima and maxima of columns, among them message IDs, and the conditions of
    deletions. Files that stay are younger than an hour: a run is writing them, or was killed.

    Raises:
        PipelineError: the lake cannot be read or written.
    """
    tables = [LakeTable(lake, schema) for schema in (*SCHEMAS, *tables_of(lake))]
    return tuple(f"{table.uri}/{path}" for table in tables if table.open() for path in _clean(table.uri))


def _check_silver(lake: str) -> None:
    silver = LakeTable(lake, SILVER)
    reached = silver.watermarks()
    for row in _select(lake, BRONZE, "stream"):
        for progress in incarnations(LakeTable(lake, BRONZE), row["stream"]):
            if reached(progress.name) < progress.landed:
                raise PipelineError(
                    f"{silver.uri} lacks messages of {progress.stream}; run `pipeline land` first"
                )


def _clean(uri: str) -> list[str]:
    with reachable(uri):
        store, table = filesystem(uri), DeltaTable(uri)
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        table.vacuum(_WRITING_HOURS_MAX, dry_run=False, enforce_retention_duration=False, full=True)
        table = DeltaTable(uri)
        table.create_checkpoint()
        for file in store.get_file_info(FileSelector("_delta_log")):
            version = file.base_name[:_VERSION_DIGITS]
            if version.isdecimal() and int(version) < table.version():
                store.delete_file(file.path)
        unused = DeltaTable(uri).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
        return [file.path for file in store.get_file_info(unused) if file.is_file]


def _select(
    lake: str, schema: TableSchema, columns: str, condition: str = "true", *, source: str = "t"
) -> list[dict[str, Any]]:
    table = LakeTable(lake, schema).open()
    if table is None:
        return []
    query = f"SELECT DISTINCT {columns} FROM {source} WHERE {condition}"  # noqa: S608 - made of literals
    with reachable(table.table_uri):
        return list(pa.table(QueryBuilder().register("t", table).execute(query).read_all()).to_pylist())


def _chosen(schema: TableSchema, ids: Collection[str], positions: Iterable[Position]) -> Iterator[Conditions]:
    """Yield the conditions of the rows of events: their IDs, or their places in each incarnation."""
    if schema is ARCHIVE:
        yield [("id", "in", list(ids))]
        return
    prefix = "_" if schema.name.startswith("typed/") else ""
    sequences = defaultdict[tuple[str, str], list[int]](list)
    for stream, incarnation, seq in positions:
        sequences[stream, incarnation].append(seq)
    for (stream, incarnation), seqs in sequences.items():
        place = [(f"{prefix}stream", "=", stream), (f"{prefix}incarnation", "=", incarnation)]
        if schema is IDS:
            place = [("watermark", "=", f"{stream} {incarnation}")]
        yield [*place, (f"{prefix}seq", "in", seqs)]


def _is_in(column: str, values: Collection[str]) -> str:
    return f"{column} IN ({', '.join(map(_literal, values))})" if values else "false"


def _literal(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))
