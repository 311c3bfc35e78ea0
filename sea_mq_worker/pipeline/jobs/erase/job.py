"""Erase events: delete them from streams, tables and lake, with all older versions of the lake's tables.

The record of erased IDs is committed first, so that nothing brings the events back. A part that can name the
events of an aggregate or key is deleted after the parts that cannot: a run that was killed can be repeated.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from uuid import UUID

import asyncpg

from sea_mq_worker.nats.connection import api, reading
from sea_mq_worker.nats.errors import ApiRefusedError
from sea_mq_worker.nats.message import stored
from sea_mq_worker.operators.changes import recorded
from sea_mq_worker.operators.prune import foreign_keys
from sea_mq_worker.operators.tables import open_tables
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.archive.outbox import deletion
from sea_mq_worker.pipeline.jobs.erase.lake_rows import (
    EventChoice,
    LakeRows,
    delete_old_versions,
    delete_rows,
    find_rows,
)
from sea_mq_worker.pipeline.jobs.typed.typed_tables import tables_of
from sea_mq_worker.pipeline.lake.erased_ids import ID_HEADERS, id_hash, record_erased
from sea_mq_worker.pipeline.lake.schemas import ARCHIVE, BRONZE, IDS, SILVER
from sea_mq_worker.pipeline.lake.table import check_lake
from sea_mq_worker.pipeline.sources.jetstream.state import connected
from sea_mq_worker.postgres.pool import fetch, fetch_with_long_timeout
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings

_SQL = load_queries("pipeline_erase")


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseResult:
    """Result of a run.

    Attributes:
        events: number of message IDs.
        rows: rows that were deleted, or would be, by table of the database or of the lake.
        stream_messages: messages that were deleted from streams.
        unused_files: files of the lake that no version contains, but that a run may be writing.
        dry_run: whether nothing was changed.
    """

    events: int
    rows: Mapping[str, int]
    stream_messages: int = 0
    unused_files: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class FoundEvents:
    """The events of a choice, before they are erased.

    Attributes:
        lake_rows: their rows in the lake.
        copies: (stream, sequence) of copies that the streams may still contain.
        result: the result of a dry run.
    """

    lake_rows: LakeRows
    copies: frozenset[tuple[str, int]]
    result: EraseResult


def find(settings: Settings, lake: str, choice: EventChoice) -> FoundEvents:
    """Find the events of a choice, without a change.

    Raises:
        PipelineError: there is no lake, or an event is still to be published or handled.
    """
    check_lake(lake)
    return asyncio.run(_find(settings, lake, choice))


def erase(
    settings: Settings, lake: str, found: FoundEvents, *, actor: str, reason: str, streams: bool
) -> EraseResult:
    """Erase the events for good; with ``streams`` delete their messages from the streams, too.

    Raises:
        PipelineError: an archive is running, or an event was replayed in the meantime.
        ContractError: the NATS user may not delete messages.
    """
    with deletion(settings, actor=actor, reason=reason):  # holds the lock that keeps archives out
        return asyncio.run(_erase(settings, lake, found, actor, reason, streams=streams))


async def _find(settings: Settings, lake: str, choice: EventChoice) -> FoundEvents:
    kind, identity = choice.aggregate or (None, None)
    async with open_tables(settings, purpose="erase") as pool:
        chosen = (_uuids(choice.ids), kind, identity, choice.key)
        events = await fetch_with_long_timeout(pool, _SQL["events"], *chosen)
        of_table = [row["id"] for row in events]
        found = await asyncio.to_thread(find_rows, lake, choice, of_table)
        messages = await fetch(pool, _SQL["messages"], _uuids(found.ids))
        await _check_unreferenced(pool, found.ids)
    _check_finished([row["id"] for row in (*events, *messages) if row["is_open"]])
    copies = {(row["stream"], row["stream_seq"]) for row in (*events, *messages) if row["stream_seq"]}
    copies |= {(position.stream, position.seq) for position in found.positions}
    rows = {"outbox": len(events), "inbox": len(messages), **found.counts}
    return FoundEvents(found, frozenset(copies), EraseResult(events=len(found.ids), rows=rows, dry_run=True))


async def _erase(
    settings: Settings, lake: str, found: FoundEvents, actor: str, reason: str, *, streams: bool
) -> EraseResult:
    ids, positions, header_positions, _ = found.lake_rows
    selection = {"id_sha256": sorted(map(id_hash, ids)), "lake": lake, "streams": streams}
    async with (
        open_tables(settings, purpose="erase") as pool,
        recorded(pool, "erase", selection, actor=actor, reason=reason) as action,
    ):
        await asyncio.to_thread(record_erased, lake, ids)
        deleted = await _delete_messages(settings, found) if streams else 0
        rows = {"inbox": await _delete_rows(pool, "delete_messages", ids, action)}
        # After bronze, these places could no longer be found.
        first = await asyncio.to_thread(delete_rows, lake, SILVER, ids, header_positions)
        for schema in (*tables_of(lake), BRONZE, IDS, SILVER):
            rows[schema.name] = await asyncio.to_thread(delete_rows, lake, schema, ids, positions)
        rows[SILVER.name] += first
        rows["outbox"] = await _delete_rows(pool, "delete_events", ids, action)
        rows[ARCHIVE.name] = await asyncio.to_thread(delete_rows, lake, ARCHIVE, ids, positions)
        unused = await asyncio.to_thread(delete_old_versions, lake)
    return EraseResult(events=len(ids), rows=rows, stream_messages=deleted, unused_files=unused)


async def _delete_rows(pool: asyncpg.Pool, statement: str, ids: Iterable[str], action: int) -> int:
    [row] = await fetch(pool, _SQL[statement], _uuids(ids), action)
    _check_finished(row["open"])
    return int(row["count"])


async def _delete_messages(settings: Settings, found: FoundEvents) -> int:
    """Delete the messages that still have one of the IDs; a recreated stream reuses the sequences."""
    deleted = 0
    async with connected(settings) as connection:
        for stream, seq in sorted(found.copies):
            try:
                answer = await api(connection, f"STREAM.MSG.GET.{stream}", {"seq": seq})
            except ApiRefusedError as error:
                if error.code != HTTPStatus.NOT_FOUND:
                    raise
                continue
            with reading(f"STREAM.MSG.GET.{stream}"):
                message = stored(answer["message"], stream=stream, consumer="", deliveries=0)
            named = [value for name, value in message.headers.items() if name.lower() in ID_HEADERS]
            if not found.lake_rows.ids.isdisjoint([*named, *map(str.lower, named)]):
                await api(connection, f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": False})
                deleted += 1
    return deleted


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


def _check_finished(ids: Collection[str]) -> None:
    if ids:
        raise PipelineError(
            f"still to be published or handled: {', '.join(sorted(set(ids)))}; wait for these events, or end "
            "them by `outbox mark-dead` or `inbox close`, then run again"
        )


def _uuids(ids: Iterable[str]) -> list[UUID]:
    """Return the IDs that the database can have."""
    found = []
    for each in ids:
        with suppress(ValueError):
            found.append(UUID(each))
    return found
