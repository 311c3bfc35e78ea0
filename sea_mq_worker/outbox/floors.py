"""Where the unfinished events of a busy key begin in its index.

Entries of published events stay in the index while any transaction is older than they are: an idle session, a
dump, a standby's query. A claim that read a key from its first entry would read all of them, each time more.
So a claim reads a busy key from its *floor*: every event of the key before that is finished.

When an event that a claim took is published, so is every earlier one of its key that this claim could see. It
could not see those of transactions that were running. Their sequences are lower if they inserted earlier and
commit later, so a floor has to stay below them::

    seconds   0         1         2         3         4         5         6
              seq 10              seq 20              seq 30    the claim of seq 40

    a transaction that has run for less than two seconds    has a seq above 10, which a claim saw then
    one that has run for longer, and still runs             hides its events from the claim anyway
    one that has run for longer, and has ended              has one above that of the claim that first saw it

So each claim names the old transactions to the next one. PostgreSQL then tells which have ended, by the very
snapshot in which their events become visible.
"""

import json
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

_BUSY = 100
"""Published events from which on a key counts as busy; the index has few entries of any other."""
_PASSED_MAX = 1_000
"""Busy keys, those published last, that a claim reads from their floors."""
_REMEMBERED_MAX = 10_000
_OLD = timedelta(seconds=2)
_MARGIN = timedelta(seconds=3)
"""A second more than ``_OLD``: a number is drawn a moment before its transaction can be seen to run."""
_MARK = timedelta(seconds=0.5)
_KEPT = timedelta(minutes=15)
"""Longer than the lease of any claim."""
_BUILT = timedelta(seconds=0.5)
_LOWEST = -(2**63)


class _Running(NamedTuple):
    """When a claim first saw a transaction, and a number that is below all of its sequences."""

    since: datetime
    from_seq: int


class KeyFloors:
    """The floors of busy keys; all times are those of claims, by the database's clock."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._floors: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Of each key the number of its published events, and its floor; the last key was published last."""
        self._at: datetime | None = None
        self._greatest = _LOWEST
        self._seen: list[tuple[datetime, int]] = []
        """The greatest sequence that a claim had seen, at growing times."""
        self._running: dict[str, _Running] = {}
        self._ended: deque[tuple[datetime, int]] = deque()
        """When a claim first saw an old transaction no more, and the number that is below its sequences."""
        self._text = "{}"
        self._built_at: datetime | None = None

    def bind(self) -> dict[str, object]:
        """Return the parameters of the next claim."""
        if self._built_at is None or (self._at and self._at - self._built_at >= _BUILT):
            floors = self._floors.items()
            busy = [(key, floor) for key, (count, floor) in floors if count >= _BUSY and floor > _LOWEST]
            self._text, self._built_at = json.dumps(dict(busy[-_PASSED_MAX:])), self._at
        old = {xid: each for xid, each in self._running.items() if self._at and self._at - each.since > _OLD}
        return {
            "floors": self._text,
            "running": list(old),
            "running_from": [each.from_seq for each in old.values()],
        }

    def claimed(self, at: datetime, seqs: Iterable[int], running: Collection[str]) -> None:
        """Note a claim: its time, what it took, and which transactions ran that may have inserted."""
        if self._at and at < self._at:  # the clock was set back
            self._clear()
        self._at = at
        below = self._seen_before(at)
        for xid in self._running.keys() - set(running):
            since, from_seq = self._running.pop(xid)
            if at - since > _OLD:
                self._ended.append((at, from_seq))
                for key, (count, floor) in self._floors.items():
                    self._floors[key] = count, min(floor, from_seq)
                self._built_at = None
        for xid in running:
            self._running.setdefault(xid, _Running(at, below))
        self._greatest = max(self._greatest, *seqs, _LOWEST)
        if not self._seen or at - self._seen[-1][0] >= _MARK:
            self._seen.append((at, self._greatest))
        while self._seen[0][0] < at - _KEPT:
            del self._seen[0]
        while self._ended and self._ended[0][0] < at - _KEPT:
            self._ended.popleft()

    def published(self, at: datetime, events: Iterable[tuple[str, int]]) -> None:
        """Raise the floors of keys of which events, by key and sequence, were published.

        ``at``: the time of the claim that took them, or of the first of several.
        """
        if not self._at or not self._at - _KEPT < at <= self._at:
            return
        bound = min([self._seen_before(at), *(from_seq for ended, from_seq in self._ended if at < ended)])
        for key, seq in events:
            count, floor = self._floors.pop(key, (0, _LOWEST))
            self._floors[key] = count + 1, max(floor, min(seq, bound))
        while len(self._floors) > _REMEMBERED_MAX:
            self._floors.popitem(last=False)

    def forget(self, keys: Iterable[str]) -> None:
        """Forget keys of which an earlier event may be open again."""
        for key in keys:
            if self._floors.pop(key, (0, 0))[0] >= _BUSY:
                self._built_at = None

    def _seen_before(self, at: datetime) -> int:
        """Return the greatest sequence that a claim had seen some seconds before a time."""
        place = bisect_right(self._seen, at - _MARGIN, key=lambda mark: mark[0])
        return self._seen[place - 1][1] if place else _LOWEST
