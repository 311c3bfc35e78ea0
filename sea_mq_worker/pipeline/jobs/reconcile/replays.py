"""Find the copies in a stream that an audited replay explains.

A replay explains another copy of an event if its record in ``operator_actions`` selects the event, by ID or
by other filters (types, keys, correlation ID, creation time), and was written between the previous copy and
this one. The event's former state, error and publishing time are unknown. The IDs are unknown if the record
contains only their number. Such a replay then applies to all events that its other filters select.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

_SKEW_SECONDS = 5
"""Tolerance between the clocks of database and broker."""

_MOMENT = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("at", _MOMENT),
        ("by_id", pa.string()),
        *((name, pa.list_(pa.string())) for name in ("types", "keys", "correlations")),
        *((name, _MOMENT) for name in ("since", "until")),
    ]
)
_FILTERS = {
    "types": ("event_type", "event_types"),
    "keys": ("ordering_key", "ordering_keys"),
    "correlations": ("correlation_id", "correlation_ids"),
}
"""Names of each column's filter in records of the worker's replay, and of the pipeline's, with lists."""


@dataclass(frozen=True, slots=True)
class AuditedReplay:
    """One audited replay: its time, and its recorded ``selection``."""

    at: datetime
    selection: Mapping[str, Any]


def unexplained(copies: DataFrame, replays: Iterable[AuditedReplay]) -> DataFrame:
    """Remove the copies that a replay explains.

    Args:
        copies: ``id``, ``event_type``, ``ordering_key``, ``correlation_id`` and ``created_at`` of the event,
            and the times ``earlier`` and ``later`` between which a replay must be recorded; other columns are
            kept.
        replays: the audited replays.
    """
    rows = [row for replay in replays for row in _rows(replay)]
    by_id = [row for row in rows if row["by_id"] is not None]
    by_filter = [row for row in rows if row["by_id"] is None]
    left = copies
    if by_id:
        chosen = _frame(copies.sparkSession, by_id)
        left = left.join(chosen, (chosen["by_id"] == left["id"]) & _between(left), "left_anti")
    if by_filter:
        chosen = F.broadcast(_frame(copies.sparkSession, by_filter))
        left = left.join(chosen, _selects(left) & _between(left), "left_anti")
    return left


def _rows(replay: AuditedReplay) -> list[dict[str, Any]]:
    given = replay.selection
    row: dict[str, Any] = {name: _several(given, *names) for name, names in _FILTERS.items()}
    row |= {name: _moment(given.get(name)) for name in ("since", "until")}
    ids = given.get("ids")
    return [row | {"at": replay.at, "by_id": each} for each in (ids if isinstance(ids, list) else [None])]


def _several(given: Mapping[str, Any], one: str, several: str) -> list[str] | None:
    return given.get(several) or ([given[one]] if given.get(one) else None)


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=_SCHEMA))


def _between(copies: DataFrame) -> Column:
    skew = F.lit(timedelta(seconds=_SKEW_SECONDS))
    return (F.col("at") > copies["earlier"] - skew) & (F.col("at") < copies["later"] + skew)


def _selects(copies: DataFrame) -> Column:
    holds = (F.col("since").isNull() | (copies["created_at"] >= F.col("since"))) & (
        F.col("until").isNull() | (copies["created_at"] < F.col("until"))
    )
    for name, (column, _) in _FILTERS.items():
        named = F.coalesce(F.array_contains(name, copies[column]), F.lit(False))
        holds &= F.col(name).isNull() | named
    return holds
