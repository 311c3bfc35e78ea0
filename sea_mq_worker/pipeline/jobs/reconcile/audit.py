"""Operators' actions that explain further copies in a stream, and rows that are gone.

A replay explains another copy of an event if its record in ``operator_actions`` selects the event, by ID or
by other filters (types, keys, correlation ID, creation time), and was written between the previous copy and
this one. The event's former state, error and publishing time are unknown. The IDs are unknown if the record
contains only their number. Such a replay then applies to all events that its other filters select.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sea_mq_worker.pipeline.jobs.reconcile.exchange import Column
from sea_mq_worker.pipeline.snapshot import Snapshot
from sea_mq_worker.postgres.queries import load_queries

_SKEW = 5e6
"""Tolerance between the clocks of database and broker, in microseconds."""

_FILTERS = {
    "event_type": ("event_type", "event_types"),
    "ordering_key": ("ordering_key", "ordering_keys"),
    "correlation_id": ("correlation_id", "correlation_ids"),
}
"""Names of each column's filter in records of the worker's replay, and of the pipeline's, with lists."""


@dataclass(frozen=True, slots=True)
class AuditedReplay:
    """One audited replay: its time, and its recorded ``selection``."""

    at: datetime
    selection: Mapping[str, Any]

    def selects(self, events: pa.Table) -> Column:
        """Whether the replay applied to each event."""
        given = self.selection
        if isinstance(given.get("ids"), list):
            return is_in(events["id"], given["ids"])
        chosen = np.ones(events.num_rows, bool)
        for column, (one, several) in _FILTERS.items():
            if values := given.get(several) or ([given[one]] if given.get(one) else None):
                chosen &= is_in(events[column], values)
        created = micros(events["created_at"])
        for limit, compares in (("since", np.greater_equal), ("until", np.less)):
            if text := given.get(limit):
                chosen &= compares(created, micros_of(datetime.fromisoformat(text)))
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Operators' actions; each time is the limit of rows that may be gone, None without such an action.

    ``erased`` are the hashes of erased IDs; their rows are gone, too.
    """

    replays: Sequence[AuditedReplay] = ()
    outbox_pruned_before: datetime | None = None
    inbox_pruned_before: datetime | None = None
    archived_before: datetime | None = None
    erased: frozenset[str] = frozenset()


def read_audit(moment: Snapshot) -> Audit:
    """Read the operators' actions as of a snapshot."""
    rows = moment.rows(load_queries("pipeline_reconcile")["actions"])
    actions = [(row["action"], row["at"], json.loads(row["selection"])) for row in rows]

    def latest(wanted: str) -> datetime | None:
        limits = (chosen["before"] for action, _, chosen in actions if action == wanted)
        return max(map(datetime.fromisoformat, limits), default=None)

    return Audit(
        replays=[AuditedReplay(at, chosen) for action, at, chosen in actions if action == "replay"],
        outbox_pruned_before=latest("prune_outbox"),
        inbox_pruned_before=latest("prune_inbox"),
        archived_before=latest("archive"),
        erased=frozenset(
            each for action, _, chosen in actions if action == "erase" for each in chosen["id_sha256"]
        ),
    )


def explained(replays: Iterable[AuditedReplay], events: pa.Table, earlier: Column, later: Column) -> Column:
    """Whether a replay of each event was recorded between two times, in microseconds."""
    found = np.zeros(events.num_rows, bool)
    for replay in replays:
        at = micros_of(replay.at)
        between = (at > earlier - _SKEW) & (at < later + _SKEW)
        if between.any():
            found |= between & replay.selects(events)
    return found


def is_in(column: pa.ChunkedArray, values: Collection[str]) -> Column:
    """Whether each text is one of the values."""
    found: Column = pc.is_in(column, pa.array(list(values), pa.string())).to_numpy(zero_copy_only=False)
    return found


def micros(times: pa.ChunkedArray) -> Column:
    """Return times as microseconds since 1970; NaN for null."""
    return np.asarray(times.cast(pa.int64()).to_numpy(), float)


def micros_of(moment: datetime | None) -> float:
    """Return a time as microseconds since 1970; NaN for None."""
    return np.nan if moment is None else moment.timestamp() * 1e6
