"""Find the events of an ordering key that are out of order: the fewest whose removal restores the order.

A comparison of neighbours would report every event that overtook one late event. Therefore the longest
subsequence of events is determined whose stream positions increase with their insert order. The events
outside of it are reported. If two subsequences are equally long, as after a swap of two neighbours, the
overtaken event is reported.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sea_mq_worker.pipeline.jobs.reconcile.audit import AuditedReplay, explained, micros
from sea_mq_worker.pipeline.jobs.reconcile.exchange import Batches, Column, unpack
from sea_mq_worker.pipeline.jobs.reconcile.judging import TROUBLE
from sea_mq_worker.pipeline.jobs.reconcile.result import Verdict


@dataclass(frozen=True, slots=True)
class JudgeOrder:
    """Adds the finding ``out-of-order`` to events, of which it has all of a key; for ``mapInArrow``.

    An event whose first copy has left the stream, so that a replay's copy is the first one, is in order.
    """

    replays: Sequence[AuditedReplay]

    def __call__(self, batches: Batches) -> Batches:
        """Yield the events with a finding."""
        for events in unpack(batches).values():
            findings = events["findings"].to_numpy().copy()
            findings[self._moved(events)] |= Verdict.OUT_OF_ORDER.bit
            place = events.schema.get_field_index("findings")
            judged = events.set_column(place, "findings", pa.array(findings))
            bad = judged.filter(pa.array(findings > 0)).select(TROUBLE.names)
            yield from bad.cast(TROUBLE).to_batches()

    def _moved(self, events: pa.Table) -> Column:
        keys = events["ordering_key"].combine_chunks().dictionary_encode().indices.to_numpy()
        inserted = np.lexsort((events["seq"].to_numpy(), keys))
        # A rank by key and position, so that events of different keys never conflict.
        ranks = np.argsort(np.lexsort((events["position"].to_numpy(), keys)))
        stored = ranks[inserted]
        # An event in order relative to every event of its key needs no joint comparison.
        overtakes = np.minimum.accumulate(stored[::-1])[::-1] < stored
        rows = inserted[overtakes | (np.maximum.accumulate(stored) > stored)]
        chosen = events.take(pa.array(rows))
        rows = rows[~explained(self.replays, chosen, micros(chosen["created_at"]), micros(chosen["time"]))]
        moved: Column = rows[outside_longest_run(ranks[rows].tolist())]
        return moved


def outside_longest_run(positions: Sequence[int]) -> list[int]:
    """Return the indexes outside a longest increasing subsequence."""
    lowest: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, position in enumerate(positions):
        length = bisect_left(lowest, position)
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [index]
        lowest[length : length + 1] = [position]
    run = set()
    index = ends[-1] if ends else -1
    while index >= 0:
        run.add(index)
        index = before[index]
    return [index for index in range(len(positions)) if index not in run]
