"""Build a statement from the options of the sources ``outbox`` and ``inbox``; no option can inject SQL.

ADBC reads by COPY, which takes no parameters. So times and ids are parsed and formatted again, and texts are
passed as hexadecimal digits.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sea_mq_worker.adapters.postgres.schema.leaf_partitions import PageRange
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.pipeline.errors import PipelineError

FIRST_TIME = datetime(2, 1, 1, tzinfo=UTC)
"""The earliest time that is read exactly: Python has no earlier one in every time zone."""

LAST_TIME = datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
"""The latest time that is read exactly."""

_SNAPSHOT = re.compile(r"[0-9A-F]{1,16}(-[0-9A-F]{1,16}){1,3}")
_COMMON = frozenset(
    {"snapshot", "columns", "partition", "firstpage", "endpage", "pagesperpartition", "config"}
)
_PAGES_PER_PARTITION = 4096


@dataclass(frozen=True, slots=True)
class Filter:
    """An option that filters rows by one column.

    Attributes:
        column: the column's name in the table.
        operator: a SQL operator, or ``any`` for a JSON list of values.
        kind: type of the value: time, text, uuid or state.
    """

    column: str
    operator: str
    kind: str


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the source: columns with their kinds, and the options that filter rows."""

    name: str
    columns: Mapping[str, str]
    filters: Mapping[str, Filter]


DDL = {
    "uuid": "string",
    "json": "string",
    "text": "string",
    "int": "int",
    "bigint": "bigint",
    "boolean": "boolean",
    "bytes": "binary",
    "time": "timestamp",
}
"""Spark's type for each kind of column."""

OUTBOX = SourceTable(
    name="outbox_events",
    columns={
        "id": "uuid",
        "aggregate_type": "text",
        "aggregate_id": "text",
        "event_type": "text",
        "event_version": "int",
        "payload": "json",
        "occurred_at": "time",
        "correlation_id": "uuid",
        "causation_id": "uuid",
        "seq": "bigint",
        "created_at": "time",
        "partition_key": "text",
        "ordering_key": "text",
        "headers": "json",
        "metadata": "json",
        "bytes": "int",
        "available_at": "time",
        "is_open": "boolean",
        "publish_attempts": "int",
        "failures": "int",
        "first_attempt_at": "time",
        "stream": "text",
        "stream_seq": "bigint",
        "state": "text",
        "claimed_at": "time",
        "claimed_by": "text",
        "published_at": "time",
        "publish_error": "text",
    },
    filters={
        "states": Filter("state", "any", "state"),
        "publishedBefore": Filter("published_at", "<", "time"),
        "createdSince": Filter("created_at", ">=", "time"),
        "createdBefore": Filter("created_at", "<", "time"),
        "eventTypes": Filter("event_type", "any", "text"),
        "orderingKeys": Filter("ordering_key", "any", "text"),
        "ids": Filter("id", "any", "uuid"),
    },
)

INBOX = SourceTable(
    name="inbox_messages",
    columns={
        "message_id": "uuid",
        "subject": "text",
        "received_at": "time",
        "processed_at": "time",
        "attempts": "int",
        "last_error": "text",
        "consumer": "text",
        "stream": "text",
        "stream_seq": "bigint",
        "content_hash": "bytes",
        "locked_until": "time",
        "locked_by": "text",
        "reply": "text",
        "dead_letter_reason": "text",
        "dead_letter_begun_at": "time",
        "dead_lettered_at": "time",
    },
    filters={
        "receivedSince": Filter("received_at", ">=", "time"),
        "receivedBefore": Filter("received_at", "<", "time"),
        "consumers": Filter("consumer", "any", "text"),
        "ids": Filter("message_id", "any", "uuid"),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuery:
    """The read of one DataFrame.

    Attributes:
        table: the table.
        columns: names of the columns, in order.
        conditions: SQL conditions, joined by AND.
        snapshot: ID of the exported snapshot; empty: none.
        partition: the only leaf to read; empty: all leaves.
        pages: first page, and the page after the last (None: to the end), of each leaf.
        pages_per_partition: number of pages that one task reads; None: one task reads all.
    """

    table: SourceTable
    columns: tuple[str, ...]
    conditions: tuple[str, ...]
    snapshot: str
    partition: str
    pages: tuple[int, int | None]
    pages_per_partition: int | None

    @property
    def ddl(self) -> str:
        """The schema in Spark's DDL."""
        return ", ".join(f"{name} {DDL[self.table.columns[name]]}" for name in self.columns)

    @property
    def is_whole(self) -> bool:
        """Whether one statement reads the whole table."""
        return self.pages_per_partition is None and self.pages == (0, None) and not self.partition

    def sql(self, table: str, pages: PageRange | None) -> str:
        """Return the statement that reads a range of pages; None: the whole table, given as a SQL name."""
        chosen = ", ".join(_shown(name, self.table.columns[name]) for name in self.columns)
        where = [*self.conditions, *(_within(pages) if pages else ())]
        relation = pages.leaf if pages and pages.leaf else table
        source = f"SELECT {chosen} FROM {relation}"  # noqa: S608 - see above
        return f"{source} WHERE {' AND '.join(where)}" if where else source


def table_query(table: SourceTable, options: Mapping[str, str]) -> TableQuery:
    """Parse the options of a source.

    Raises:
        PipelineError: an option is unknown or wrong.
    """
    given = {name.lower(): value for name, value in options.items()}
    filters = {name.lower(): (name, filter_) for name, filter_ in table.filters.items()}
    if unknown := sorted(given.keys() - filters.keys() - _COMMON):
        raise PipelineError(f"{table.name}: unknown option {unknown[0]!r}")
    conditions = [_condition(*filters[name], given[name]) for name in given if name in filters]
    snapshot = given.get("snapshot", "")
    if snapshot and not _SNAPSHOT.fullmatch(snapshot):
        raise PipelineError("option 'snapshot': expected a value returned by pg_export_snapshot()")
    # IDs are found by an index; and without a snapshot, only a single statement is consistent.
    is_whole = not snapshot or "ids" in given
    end = given.get("endpage")
    return TableQuery(
        table=table,
        columns=_columns(table, given.get("columns")),
        conditions=tuple(conditions),
        snapshot=snapshot,
        partition=given.get("partition", ""),
        pages=(
            _number("firstPage", given.get("firstpage", "0")),
            None if end is None else _number("endPage", end),
        ),
        pages_per_partition=None
        if is_whole
        else _number("pagesPerPartition", given.get("pagesperpartition", str(_PAGES_PER_PARTITION)), least=1),
    )


def _columns(table: SourceTable, given: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.split(",")) if given is not None else tuple(table.columns)
    if unknown := [name for name in names if name not in table.columns]:
        raise PipelineError(f"{table.name} has no column {unknown[0]!r}")
    if len(set(names)) < len(names):
        raise PipelineError("option 'columns': a column is named twice")
    return names


def _number(name: str, text: str, *, least: int = 0) -> int:
    if not re.fullmatch(r"\d{1,10}", text) or int(text) < least:
        raise PipelineError(f"option {name!r}: expected a whole number, at least {least}, not {text!r}")
    return int(text)


def _condition(name: str, filter_: Filter, text: str) -> str:
    is_list = filter_.operator == "any"
    try:
        values = [_LITERALS[filter_.kind](value) for value in (_list(text) if is_list else [text])]
    except (ValueError, TypeError, AttributeError):
        wanted = f"a JSON list of {filter_.kind} values" if is_list else "an ISO 8601 time"
        raise PipelineError(f"option {name!r}: expected {wanted}") from None
    if not is_list:
        return f"{filter_.column} {filter_.operator} {values[0]}"
    cast = "uuid" if filter_.kind == "uuid" else "text"
    return f"{filter_.column} = ANY (ARRAY[{', '.join(values)}]::{cast}[])"


def _list(text: str) -> list[Any]:
    values = json.loads(text)
    if not isinstance(values, list):
        raise TypeError(text)
    return values


def _text(value: Any) -> str:
    return f"convert_from(decode('{value.encode().hex()}', 'hex'), 'UTF8')"


def _uuid(value: Any) -> str:
    return f"'{UUID(value)}'"


def _state(value: Any) -> str:
    return f"'{EventState(value).value}'"


def _time(value: Any) -> str:
    moment = datetime.fromisoformat(value)
    at = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return f"'{at.isoformat()}'::timestamptz"


_LITERALS: Mapping[str, Callable[[Any], str]] = {"text": _text, "uuid": _uuid, "state": _state, "time": _time}


def _within(pages: PageRange) -> tuple[str, str]:
    return f"ctid >= '({pages.first},0)'::tid", f"ctid < '({pages.end},0)'::tid"


def _shown(name: str, kind: str) -> str:
    """Return a column in a form that Spark can hold; times outside its range become the nearest limit."""
    if kind in {"uuid", "json"}:
        return f"{name}::text AS {name}"
    if kind == "time":
        first, last = _time(FIRST_TIME.isoformat()), _time(LAST_TIME.isoformat())
        cases = f"WHEN {name} < {first} THEN {first} WHEN {name} > {last} THEN {last}"
        return f"CASE {cases} ELSE {name} END AS {name}"
    return name
