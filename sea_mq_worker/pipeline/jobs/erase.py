"""Erase events for good: from streams, tables and lake, with all older versions of the lake's tables.

First the lake records the erased IDs, as hashes, so that nothing brings the events back. What can name the
events of an aggregate or a key is deleted last: a run that was killed is completed by the same command.
"""

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import NamedTuple
from uuid import UUID

import asyncpg
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

from sea_mq_worker.nats.connection import api, reading
from sea_mq_worker.nats.errors import ApiRefusedError
from sea_mq_worker.nats.message import stored
from sea_mq_worker.operators.changes import recorded
from sea_mq_worker.operators.prune import foreign_keys
from sea_mq_worker.operators.tables import open_tables
from sea_mq_worker.pipeline.errors import PipelineError, translated
from sea_mq_worker.pipeline.jetstream.state import connected
from sea_mq_worker.pipeline.jobs.archive import exclusive
from sea_mq_worker.pipeline.jobs.typed import QUARANTINE
from sea_mq_worker.pipeline.lake import ARCHIVE, BRONZE, ERASED, SILVER, Lake
from sea_mq_worker.pipeline.session import configured, properties_set
from sea_mq_worker.postgres.pool import fetch, fetch_with_long_timeout
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings

ID_HEADERS = ("nats-msg-id", "ce-id", "dlq-message-id")
"""Lowercase names of the headers with the ID of a message, or of the message that became a dead letter."""

_PLACE_DDL = "stream STRING, incarnation STRING, seq BIGINT"
_OLD_IDS = "ids"
"""A table of release 1.0: an index of message IDs."""

_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_SAME_PLACE = "t.{0}stream = s.stream AND t.{0}incarnation = s.incarnation AND t.{0}seq = s.seq"
_SAME_OLD_PLACE = "t.watermark = concat(s.stream, ' ', s.incarnation) AND t.seq = s.seq"

_VACUUM = {
    # Old versions have what is erased, so they are deleted whatever their age.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # The usual 10,000 tasks for the list of files take longer than all else.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}
_SQL = load_queries("pipeline_erase")


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseResult:
    """Result of a run.

    Attributes:
        events: number of message IDs.
        rows: rows that were deleted, or would be, by table of the database or of the lake.
        stream_messages: messages that were deleted from streams.
        dry_run: whether nothing was changed.
    """

    events: int
    rows: Mapping[str, int]
    stream_messages: int = 0
    dry_run: bool = False


class _Choice(NamedTuple):
    """The events that match any part."""

    ids: frozenset[str]
    aggregate: tuple[str, str] | None
    key: str | None


class _Place(NamedTuple):
    """Where a message is stored: a sequence of an incarnation of a stream."""

    stream: str
    incarnation: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Events: their IDs, the places of all copies, and those where silver has a dead letter's own ID."""

    ids: frozenset[str]
    places: frozenset[_Place]
    dead_letters: frozenset[_Place]
    typed: frozenset[str]
    stored_at: frozenset[tuple[str, int]]
    rows: Mapping[str, int]


def find(
    spark: SparkSession,
    settings: Settings,
    *,
    lake: str,
    ids: Iterable[str] = (),
    aggregate: tuple[str, str] | None = None,
    key: str | None = None,
) -> EraseResult:
    """Find the events that ``erase`` would erase, and change nothing. Arguments and errors are the same."""

    async def run() -> EraseResult:
        async with open_tables(settings, purpose="erase") as pool:
            found = await _find(pool, Lake(spark, lake), _Choice(frozenset(ids), aggregate, key))
        return EraseResult(events=len(found.ids), rows=found.rows, dry_run=True)

    with configured(spark), asyncio.Runner() as runner:
        return runner.run(run())


def erase(
    spark: SparkSession,
    settings: Settings,
    *,
    lake: str,
    ids: Iterable[str] = (),
    aggregate: tuple[str, str] | None = None,
    key: str | None = None,
    actor: str,
    reason: str,
    streams: bool = False,
) -> EraseResult:
    """Erase the events that match any part of the choice. No other job may write to the lake meanwhile.

    The logs of the lake's tables keep the least and the greatest message ID of deleted files, until Delta
    Lake removes old entries: at a checkpoint (each tenth commit) after ``delta.logRetentionDuration``.

    Args:
        spark: the session.
        settings: name the database and, for streams, the NATS server.
        lake: the lake's address.
        ids: message IDs; a UUID in lower case.
        aggregate: type and ID of an aggregate.
        key: ordering key or partition key.
        actor: who erases, for the audit.
        reason: why, for the audit.
        streams: whether to delete and overwrite the messages in the streams, too.

    Raises:
        PipelineError: an event is still to be published or handled, a foreign key keeps its row, silver lacks
            messages of bronze, there is no lake, or an archive is running; nothing was changed.
        ContractError: the NATS user may not delete messages.
    """
    with configured(spark), exclusive(settings, purpose="erase"), asyncio.Runner() as runner:
        choice = _Choice(frozenset(ids), aggregate, key)
        return runner.run(_erase(settings, Lake(spark, lake), choice, actor, reason, streams=streams))


async def _erase(
    settings: Settings, lake: Lake, choice: _Choice, actor: str, reason: str, *, streams: bool
) -> EraseResult:
    """Erase what the rest is found by last. Spark may block this event loop, in which nothing else runs."""
    async with open_tables(settings, purpose="erase") as pool:
        found = await _find(pool, lake, choice)
        hashes = sorted(map(id_hash, found.ids))
        selection = {"id_sha256": hashes, "lake": lake.address, "streams": streams}
        async with recorded(pool, "erase", selection, actor=actor, reason=reason) as action:
            with translated():
                _record(lake, hashes)
                deleted = await _delete_messages(settings, found) if streams else 0
                rows = {"inbox": await _delete_rows(pool, "delete_messages", found.ids, action)}
                places = _frame(lake, found.places, _PLACE_DDL)
                for name in sorted({*found.typed, QUARANTINE.name}):
                    rows |= _delete(lake, name, places, _SAME_PLACE.format("_"))
                    _vacuum(lake, name)
                # After bronze, nothing could find these rows.
                dead_letters = _frame(lake, found.dead_letters, _PLACE_DDL)
                first = _delete(lake, SILVER.name, dead_letters, _SAME_PLACE.format(""))
                rows |= _delete(lake, BRONZE.name, places, _SAME_PLACE.format(""))
                rows |= _delete(lake, _OLD_IDS, places, _SAME_OLD_PLACE)
                rows |= _delete(lake, SILVER.name, places, _SAME_PLACE.format(""))
                rows |= {name: count + rows[name] for name, count in first.items()}
                rows["outbox"] = await _delete_rows(pool, "delete_events", found.ids, action)
                ids = _frame(lake, ((each,) for each in found.ids), "id STRING")
                rows |= _delete(lake, ARCHIVE.name, ids, "t.id = s.id")
                for name in (BRONZE.name, _OLD_IDS, SILVER.name, ARCHIVE.name):
                    _vacuum(lake, name)
    return EraseResult(events=len(found.ids), rows=rows, stream_messages=deleted)


# --- Find the events.


async def _find(pool: asyncpg.Pool, lake: Lake, choice: _Choice) -> _Found:
    lake.require([BRONZE.name, SILVER.name, ARCHIVE.name])
    kind, identity = choice.aggregate or (None, None)
    args = _uuids(choice.ids), kind, identity, choice.key
    events = await fetch_with_long_timeout(pool, _SQL["events"], *args)
    ids = choice.ids.union(row["id"] for row in events)
    in_archive, in_silver = fn.lit(False), fn.lit(False)
    if choice.aggregate:
        in_archive |= (fn.col("aggregate_type") == kind) & (fn.col("aggregate_id") == identity)
        in_silver |= fn.col("aggregate") == f"{kind}/{identity}"
    if choice.key is not None:
        in_archive |= (fn.col("ordering_key") == choice.key) | (fn.col("partition_key") == choice.key)
        in_silver |= fn.col("partition_key") == choice.key
    archived = frozenset(row["id"] for row in _chosen(lake, ARCHIVE.name, ["id"], ids, in_archive))
    ids |= archived
    of_message = ["message_id", *_Place._fields, "event_type", "event_version"]
    silver = _chosen(lake, SILVER.name, of_message, ids, in_silver)
    ids = ids.union(row["message_id"] for row in silver)
    own, copies = frozenset(map(_place, silver)), _copies(lake, ids)
    _check_silver(lake, copies)
    dead_letters: list[Row] = []
    if lake.exists(SILVER.name):
        others = fn.broadcast(_frame(lake, copies - own, _PLACE_DDL))
        found = lake.read(SILVER.name).join(others, [*_Place._fields], "left_semi")
        dead_letters = found.select(of_message).collect()
    messages = await fetch(pool, _SQL["messages"], _uuids(ids))
    await _check_unreferenced(pool, ids)
    _check_finished(row["id"] for row in (*events, *messages) if row["is_open"])
    stored_at = {(row["stream"], row["stream_seq"]) for row in (*events, *messages) if row["stream_seq"]}
    counts = {"outbox": len(events), "inbox": len(messages), "bronze": len(own | copies)}
    return _Found(
        ids=ids,
        places=own | copies,
        dead_letters=frozenset(map(_place, dead_letters)),
        typed=frozenset(f"typed/{row[-2]}.v{row[-1]}" for row in (*silver, *dead_letters)),
        stored_at=frozenset(stored_at.union((place.stream, place.seq) for place in own | copies)),
        rows=counts | {"archive": len(archived), "silver": len(silver) + len(dead_letters)},
    )


def _place(row: Row) -> _Place:
    return _Place(row["stream"], row["incarnation"], row["seq"])


def _frame(lake: Lake, rows: Iterable[tuple[object, ...]], ddl: str) -> DataFrame:
    """Return what was found as a DataFrame: unlike a text of SQL, it does not reach the log of a table."""
    return lake.spark.createDataFrame(list(rows), ddl)


def _chosen(lake: Lake, table: str, columns: list[str], ids: Collection[str], others: Column) -> list[Row]:
    """Return the rows that have one of the IDs in the first of the columns, and others."""
    if not lake.exists(table):
        return []
    rows = lake.read(table)
    known = fn.broadcast(_frame(lake, ((each,) for each in ids), "known STRING"))
    named = rows.join(known, rows[columns[0]] == known["known"], "left_semi")
    return named.select(columns).union(rows.where(others).select(columns)).distinct().collect()


def _copies(lake: Lake, ids: Collection[str]) -> frozenset[_Place]:
    """Return the places of bronze's messages that have one of the IDs, also in a header beside another."""
    if not lake.exists(BRONZE.name):
        return frozenset()
    bronze = lake.read(BRONZE.name)
    if "message_id" not in bronze.columns:
        raise _is_behind(lake, "release 1.0")
    named = bronze.select(*_Place._fields, fn.explode(message_ids(bronze)).alias("known"))
    known = fn.broadcast(_frame(lake, ((each,) for each in ids), "known STRING"))
    return frozenset(map(_place, named.join(known, "known", "left_semi").distinct().collect()))


def _check_silver(lake: Lake, erased: Collection[_Place]) -> None:
    """Require that silver has the ID of each message of bronze but the erased: only silver has its event."""
    if not lake.exists(BRONZE.name):
        return
    within = fn.when(~fn.col("message_id").rlike(_UUID), fn.col("stream"))
    key = fn.xxhash64("message_id", within).alias("key")
    behind = lake.read(BRONZE.name).where("message_id IS NOT NULL").select(*_Place._fields, key)
    if lake.exists(SILVER.name):
        behind = behind.join(lake.read(SILVER.name).select(key), "key", "left_anti")
    places = fn.broadcast(_frame(lake, erased, _PLACE_DDL))
    for row in behind.join(places, [*_Place._fields], "left_anti").select("stream").limit(1).collect():
        raise _is_behind(lake, row["stream"])


def _is_behind(lake: Lake, stream: str) -> PipelineError:
    return PipelineError(f"{lake.table(SILVER.name)} lacks messages of {stream}; run `pipeline land` first")


async def _check_unreferenced(pool: asyncpg.Pool, ids: Iterable[str]) -> None:
    """Require that no foreign key keeps a row, before anything is erased."""
    for table, column in (("outbox_events", "id"), ("inbox_messages", "message_id")):
        for key in await foreign_keys(pool, table):
            statement = (
                f"SELECT old.{column}::text AS id FROM {table} old WHERE old.{column} = ANY ($1::uuid[])"  # noqa: S608
            )
            if kept := await fetch(pool, f"{statement} AND {key.condition}", _uuids(ids)):
                raise PipelineError(
                    f"foreign key {key} keeps {', '.join(sorted(row['id'] for row in kept))} in {table}; "
                    "delete what references them, then run again"
                )


def _check_finished(ids: Iterable[str]) -> None:
    if is_open := ", ".join(sorted(set(ids))):
        raise PipelineError(
            f"still to be published or handled: {is_open}; wait for these events, or end them by `outbox "
            "mark-dead` or `inbox close`, then run again"
        )


def _uuids(ids: Iterable[str]) -> list[UUID]:
    """Return the IDs that the database can have."""
    found = []
    for each in ids:
        with suppress(ValueError):
            found.append(UUID(each))
    return found


# --- The deletions.


async def _delete_messages(settings: Settings, found: _Found) -> int:
    """Delete the messages that still have one of the IDs; a recreated stream reuses the sequences."""
    deleted = 0
    async with connected(settings) as connection:
        for stream, seq in sorted(found.stored_at):
            try:
                answer = await api(connection, f"STREAM.MSG.GET.{stream}", {"seq": seq})
            except ApiRefusedError as error:
                if error.code != HTTPStatus.NOT_FOUND:
                    raise
                continue
            with reading(f"STREAM.MSG.GET.{stream}"):
                message = stored(answer["message"], stream=stream, consumer="", deliveries=0)
            named = [value for name, value in message.headers.items() if name.lower() in ID_HEADERS]
            if not found.ids.isdisjoint([*named, *map(str.lower, named)]):
                await api(connection, f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": False})
                deleted += 1
    return deleted


async def _delete_rows(pool: asyncpg.Pool, statement: str, ids: Iterable[str], action: int) -> int:
    [row] = await fetch(pool, _SQL[statement], _uuids(ids), action)
    _check_finished(row["open"])
    return int(row["count"])


def _delete(lake: Lake, table: str, gone: DataFrame, same: str) -> dict[str, int]:
    """Delete rows, if the lake has the table; return their number by its name."""
    if not lake.exists(table):
        return {}
    merge = f"MERGE INTO {lake.table(table)} AS t USING {{gone}} AS s ON {same} WHEN MATCHED THEN DELETE"
    [counts] = lake.spark.sql(merge, gone=gone).collect()
    return {table: counts["num_deleted_rows"]}


def _vacuum(lake: Lake, table: str) -> None:
    """Delete all files but those of the current version."""
    if lake.exists(table):
        with properties_set(lake.spark, _VACUUM):
            lake.spark.sql(f"VACUUM {lake.table(table)} RETAIN 0 HOURS")


# --- The record of erased IDs.


def _record(lake: Lake, hashes: Iterable[str]) -> None:
    lake.create(ERASED)
    rows = _frame(lake, ((each, datetime.now(UTC)) for each in hashes), ERASED.ddl)
    lake.insert_new(ERASED.name, rows, "t.id_sha256 = s.id_sha256")


def without_erased(lake: Lake, frame: DataFrame) -> DataFrame:
    """Return the messages without those that have an erased ID, also in a header with another ID.

    Args:
        lake: the lake with the record of erased IDs.
        frame: ``stream``, ``incarnation`` or ``created``, ``seq``, ``message_id``, ``headers`` and what else
            there is. It is read twice, so persist it if it is costly. No row is shuffled: the places of the
            erased messages, which are few, are sent to all executors.
    """
    if not lake.exists(ERASED.name):
        return frame
    place = [name for name in (*_Place._fields, "created") if name in frame.columns]
    named = frame.select(*place, fn.explode(message_ids(frame)).alias("id"))
    hashes = lake.read(ERASED.name).select(fn.col("id_sha256").alias("hash"))
    erased = named.join(hashes, fn.sha2("id", 256) == fn.col("hash"), "left_semi").select(*place)
    return frame.join(fn.broadcast(erased), place, "left_anti")


def message_ids(frame: DataFrame) -> Column:
    """Return all IDs by which a message may be known, as they are and in lower case."""
    headers = fn.coalesce(frame["headers"], fn.array())
    named = fn.filter(headers, lambda header: fn.lower(header["key"]).isin(*ID_HEADERS))
    values = fn.transform(named, lambda header: header["value"])
    given = fn.array_compact(fn.concat(values, fn.array(frame["message_id"])))
    return fn.array_distinct(fn.concat(given, fn.transform(given, fn.lower)))


def id_hash(message_id: str) -> str:
    """Return the hash under which an erased message ID is recorded."""
    return hashlib.sha256(message_id.encode()).hexdigest()
