"""Operators' actions that explain further copies in a stream, and rows that are gone.

A replay explains another copy of an event if its record in ``operator_actions`` selects the event, by ID or
by other filters (types, keys, correlation ID, creation time), and was written between the previous copy and
this one. The event's former state, error and publishing time are unknown. The IDs are unknown if the record
contains only their number. Such a replay then applies to all events that its other filters select.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.pipeline.snapshot import Snapshot

_SKEW = timedelta(seconds=5)
"""Tolerance between the clocks of database and broker."""

_MOMENT = pa.timestamp("us", tz="UTC")
_FILTERS = {
    "types": ("event_type", "event_types"),
    "keys": ("ordering_key", "ordering_keys"),
    "correlations": ("correlation_id", "correlation_ids"),
}
"""Names of each column's filter in records of the worker's replay, and of the pipeline's, with lists."""

_SCHEMA = pa.schema(
    [("at", _MOMENT), ("since", _MOMENT), ("until", _MOMENT), ("by_id", pa.string())]
    + [(name, pa.list_(pa.string())) for name in _FILTERS]
)


@dataclass(frozen=True, slots=True)
class AuditedReplay:
    """One audited replay: its time, and its recorded ``selection``."""

    at: datetime
    selection: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Operators' actions; each time is the limit of rows that may be gone, None without such an action."""

    replays: Sequence[AuditedReplay] = ()
    outbox_pruned_before: datetime | None = None
    inbox_pruned_before: datetime | None = None
    archived_before: datetime | None = None


def read_audit(moment: Snapshot) -> Audit:
    """Read the operators' actions as of a snapshot."""
    rows = moment.rows(load_queries("pipeline_reconcile", "actions")["actions"])
    actions = [(row["action"], row["at"], json.loads(row["selection"])) for row in rows]

    def latest(wanted: str) -> datetime | None:
        limits = [
            datetime.fromisoformat(chosen["before"]) for action, _, chosen in actions if action == wanted
        ]
        return max(limits, default=None)

    return Audit(
        replays=[AuditedReplay(at, chosen) for action, at, chosen in actions if action == "replay"],
        outbox_pruned_before=latest("prune_outbox"),
        inbox_pruned_before=latest("prune_inbox"),
        archived_before=latest("archive"),
    )


def unexplained(copies: DataFrame, replays: Iterable[AuditedReplay]) -> DataFrame:
    """Remove the copies that a replay explains.

    Args:
        copies: ``id``, ``event_type``, ``ordering_key``, ``correlation_id`` and ``created_at`` of the event,
            and the times ``earlier`` and ``later`` between which a replay must be recorded; other columns are
            kept.
        replays: the audited replays.
    """
    rows = [row for replay in replays for row in _rows(replay)]
    between = (F.col("at") > F.col("earlier") - F.lit(_SKEW)) & (F.col("at") < F.col("later") + F.lit(_SKEW))
    left = copies
    if by_id := [row for row in rows if row["by_id"] is not None]:
        chosen = _frame(copies.sparkSession, by_id)
        left = left.join(chosen, (F.col("by_id") == F.col("id")) & between, "left_anti")
    if by_filter := [row for row in rows if row["by_id"] is None]:
        left = left.join(
            F.broadcast(_frame(copies.sparkSession, by_filter)), _selects() & between, "left_anti"
        )
    return left


def _rows(replay: AuditedReplay) -> list[dict[str, Any]]:
    given = replay.selection
    row: dict[str, Any] = {name: _several(given, *names) for name, names in _FILTERS.items()}
    row |= {name: given.get(name) and datetime.fromisoformat(given[name]) for name in ("since", "until")}
    ids = given.get("ids")
    return [row | {"at": replay.at, "by_id": each} for each in (ids if isinstance(ids, list) else [None])]


def _several(given: Mapping[str, Any], one: str, several: str) -> list[str] | None:
    return given.get(several) or ([given[one]] if given.get(one) else None)


def _frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=_SCHEMA), from_arrow_schema(_SCHEMA))


def _selects() -> Column:
    created = F.col("created_at")
    holds = (F.col("since").isNull() | (created >= F.col("since"))) & (
        F.col("until").isNull() | (created < F.col("until"))
    )
    for name, (column, _) in _FILTERS.items():
        named = F.coalesce(F.array_contains(name, F.col(column)), F.lit(False))
        holds &= F.col(name).isNull() | named
    return holds
