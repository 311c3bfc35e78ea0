"""The rows of some IDs, column by column: the event of each ID, and its copies by their positions.

Times are microseconds since 1970. A missing time or number is NaN, so every comparison with it is false.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sea_mq_worker.pipeline.jobs.reconcile.audit import is_in, micros, micros_of
from sea_mq_worker.pipeline.jobs.reconcile.exchange import Column
from sea_mq_worker.pipeline.jobs.reconcile.fingerprints import EVENTS, MESSAGES, RECEIVED
from sea_mq_worker.pipeline.lake.erased_ids import id_hash

INBOX = "inbox"
"""Name of the inbox as a source."""


class Rows:
    """All rows of some IDs.

    Attributes:
        event: the event of each ID; null except for ``id`` where there is none. Of several events with one
            ID the table's is used, else the one published last.
        is_judged: whether each ID can be judged: a part of the time has only a part of the events, so an ID
            without an event cannot.
        copies: the messages of all IDs, by ID, stream and position; ``who`` is the place of each one's ID.
    """

    def __init__(
        self, tables: Mapping[str, pa.Table], own: str, *, since: datetime | None, until: datetime | None
    ) -> None:
        """Join the rows by their IDs; of other streams than the own, only messages of this time count."""
        self._tables = tables
        events = self._all(EVENTS).sort_by([("in_table", "ascending"), ("published_at", "ascending")])
        copies = self._all(MESSAGES)
        time = micros(copies["time"])
        is_outside = (time < micros_of(since)) | (time >= micros_of(until))
        copies = copies.filter(pa.array(is_in(copies["stream"], [own]) | ~is_outside))
        ids = pa.chunked_array([*events["id"].chunks, *copies["id"].chunks], pa.string())
        encoded = ids.combine_chunks().dictionary_encode()
        self.count = len(encoded.dictionary)
        row, places = np.full(self.count, -1), encoded.indices.to_numpy()
        row[places[: len(events)]] = np.arange(len(events))
        self.event = events.take(pa.array(row, mask=row < 0)).set_column(0, "id", encoded.dictionary)
        self.is_known = flags(self.event["state"].is_valid())
        self.is_judged = self.is_known | (since is None and until is None)

        who, position = places[len(events) :], copies["position"].to_numpy()
        stream = copies["stream"].combine_chunks().dictionary_encode().indices.to_numpy()
        order = np.lexsort((position, stream, who))
        is_new = np.full(len(order), True)
        # A message that left the stream during the read may come from the lake, too.
        is_new[1:] = np.any([np.diff(column[order]) != 0 for column in (who, stream, position)], axis=0)
        order = order[is_new]
        self.copies = copies.take(pa.array(order))
        self.who, self.position = who[order], position[order]
        self.seq, self.time = self.copies["seq"].to_numpy(), micros(self.copies["time"])
        self.is_own = self.is_in(own)
        self.first_own = self.first(self.is_own)

    @cached_property
    def received(self) -> pa.Table:
        """The row of each ID in the inbox; null where there is none."""
        table = self._tables.get(INBOX, RECEIVED.empty_table())
        return table.take(pc.index_in(self.event["id"], value_set=table["id"].combine_chunks()))

    def is_in(self, stream: str) -> Column:
        """Whether each copy is in a stream."""
        return is_in(self.copies["stream"], [stream])

    def has_hash(self, hashes: Collection[str]) -> Column:
        """Whether the hash of each ID, see ``id_hash``, is one of these."""
        return is_in(self._hashes, hashes) if hashes else np.full(self.count, False)

    @cached_property
    def _hashes(self) -> pa.Array:
        return pa.array(map(id_hash, self.event["id"].to_pylist()), pa.string())

    def differs(self, column: str, expected: pa.ChunkedArray) -> Column:
        """Whether a column of each copy differs from the value expected for its ID; not if that is null."""
        found = pc.not_equal(self.copies[column], expected.take(pa.array(self.who)))
        return flags(found)

    def first(self, chosen: Column) -> Column:
        """Return the place of each ID's first copy among the chosen ones; -1: it has none."""
        found = np.full(self.count, -1)
        places = np.flatnonzero(chosen)[::-1]
        found[self.who[places]] = places
        return found

    def any(self, chosen: Column) -> Column:
        """Whether each ID has a chosen copy."""
        return self.first(chosen) >= 0

    def _all(self, schema: pa.Schema) -> pa.Table:
        tables = [table for table in self._tables.values() if table.schema.equals(schema)]
        return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def at(values: Column, places: Column) -> Column:
    """Return the values at the places; NaN for -1."""
    found: Column = np.append(values, np.nan)[places]
    return found


def numbers(column: pa.ChunkedArray) -> Column:
    """Return a column of numbers; NaN for null."""
    return np.asarray(column.to_numpy(), float)


def flags(column: pa.ChunkedArray) -> Column:
    """Return a column of truth values; false for null."""
    found: Column = pc.fill_null(column, fill_value=False).to_numpy(zero_copy_only=False)
    return found
