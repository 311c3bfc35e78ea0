"""Which copies in a stream an operator has asked for: those that an audited replay explains.

A replay explains a further copy of an event when its record in ``operator_actions`` selects the event, by id
or by what else it names (type, key, correlation id, time of creation), and was made between the copy before
and this one. State and error at that time are not known any more; a replay that chose by them counts for all
events that its other filters select.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

_SKEW_SECONDS = 5
"""How far the clocks of database and broker may be apart."""

_MOMENT = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("at", _MOMENT),
        *((name, pa.string()) for name in ("by_id", "by_type", "by_key", "by_correlation")),
        *((name, _MOMENT) for name in ("since", "until")),
    ]
)
_FILTERS = {"by_type": "event_type", "by_key": "ordering_key", "by_correlation": "correlation_id"}


@dataclass(frozen=True, slots=True)
class Replay:
    """One audited replay: when, and ``selection`` as it was recorded."""

    at: datetime
    selection: Mapping[str, Any]


def unexplained(copies: DataFrame, replays: Iterable[Replay]) -> DataFrame:
    """Leave out what a replay explains.

    Args:
        copies: ``id``, ``event_type``, ``ordering_key``, ``correlation_id`` and ``created_at`` of the event,
            and the times ``earlier`` and ``later`` between which a replay would have been asked for; more
            columns are kept.
        replays: the audit's.
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


def _rows(replay: Replay) -> list[dict[str, Any]]:
    given = replay.selection
    row = {name: given.get(column) for name, column in _FILTERS.items()}
    row |= {name: _moment(given.get(name)) for name in ("since", "until")}
    return [row | {"at": replay.at, "by_id": each} for each in given.get("ids") or [None]]


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
    for name, column in _FILTERS.items():
        holds &= F.col(name).isNull() | (F.col(name) == copies[column])
    return holds


def parse(at: datetime, selection: str) -> Replay:
    """Read a record of the audit."""
    return Replay(at=at, selection=json.loads(selection))
