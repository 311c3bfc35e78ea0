"""Invariants of the outbox and its stream, checked after each effect on either."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sea_mq_worker.nats.message import OutboundMessage
from sea_mq_worker.outbox.event import Claim, EventState
from sea_mq_worker.testing.outbox import OutboxRow
from tests.simulation.run import Life
from tests.simulation.servers import Servers

T = TypeVar("T")

PENDING, CLAIMED, PUBLISHED, DEAD = EventState
_TRANSITIONS = {
    (PENDING, PENDING): {"reap"},
    (PENDING, CLAIMED): {"find_unpublished"},
    (CLAIMED, PUBLISHED): {"mark_published"},
    (CLAIMED, PENDING): {"increment_attempts", "release", "reap", "take_over"},
    (CLAIMED, DEAD): {"increment_attempts", "reap", "take_over"},
    (PUBLISHED, PENDING): {"replay"},
    (DEAD, PENDING): {"replay"},
}
_IMMUTABLE = (
    "id", "seq", "event_type", "payload", "created_at", "ordering_key", "partition_key", "headers",
    "metadata", "aggregate_type", "aggregate_id", "event_version", "correlation_id", "causation_id",
)  # fmt: skip
_SESSION_DIGITS = _CLAIM_DIGITS = 8
_SETTLING = {"mark_published", "increment_attempts", "release"}


class OutboxAudit:
    """Watches every change of every row, and what the stream has of it."""

    def __init__(self, servers: Servers, *, lease: float, timeout: float, failures_max: int) -> None:
        self._servers = servers
        self._check = servers.report.check
        self._lease = lease
        self._timeout = timeout
        self._failures_max = failures_max
        self._seen: dict[str, OutboxRow] = {}
        self._owner: dict[str, int] = {}
        self._claims: dict[tuple[object, ...], int] = {}
        self.calls = 0
        self._granted: dict[tuple[int, str], float] = {}
        self._claimed_at: dict[tuple[int, str], float] = {}
        self.sends: Counter[str] = Counter()
        self.replays: Counter[str] = Counter()
        self._earlier: dict[str, int] = {}
        servers.events.on_copy = self._on_copy

    def effect(self, life: Life, name: str, call: Callable[[], T], claim: Claim | None = None) -> T:
        """Let a statement take effect, and look at what it did."""
        self.calls += 1
        result = call()
        changed = list(self._changes())
        for before, after in changed:
            self._look(life, name, claim, before, after)
        if name == "find_unpublished":
            self._look_at_keys({after.ordering_key for _, after in changed})
        if isinstance(result, Claim):
            self.given(result, self.calls)
        if name in _SETTLING and changed == [] and claim is not None:
            self._servers.report.saw("fenced settlement")
        return result

    def given(self, claim: Claim, call: int) -> None:
        """Note which call a claim is the answer to; its settlements are fenced by that."""
        if claim.events:
            self._claims[claim.token, claim.at] = call

    def sending(self, life: Life, messages: Sequence[OutboundMessage]) -> None:
        """Look at what a worker is about to send."""
        now = self._servers.clock()
        for message in messages:
            event_id = message.headers.get("ce-id", "")
            row = self._servers.outbox.rows.get(event_id)
            if row is None:
                self._check(False, "Q2", f"{event_id} was sent and is no row")
                continue
            self.sends[event_id] += 1
            self._check(
                self.sends[event_id] <= row.attempts,
                "I4",
                f"{self.sends[event_id]} publishes of {event_id} with {row.attempts} attempts counted",
            )
            granted = self.granted(life, event_id)
            claimed_at = self._claimed_at[life.number, event_id]
            lost = life.session is not None and life.session.lost_at >= claimed_at
            self._check(not lost, "I9", f"{life.name} sends {event_id}, and may have been taken for gone")
            self._check(
                now <= granted + self._timeout + 1e-9,
                "I9",
                f"{life.name} sends {event_id} past the deadline of its claim",
            )

    def held_back(self, messages: Sequence[OutboundMessage]) -> None:
        """Note that messages were not sent after all."""
        self.sends.subtract(message.headers["ce-id"] for message in messages)

    def granted(self, life: Life, event_id: str) -> float:
        """Tell when a worker was given an event last; -1 for never."""
        return self._granted.get((life.number, event_id), -1.0)

    def answered(self, event_id: str) -> None:
        """Note that the stream refused a message."""
        self._servers.refused.add(event_id)

    def _serial(self, claim: Claim | None, event_id: str) -> int:
        """Return the call that granted the claim under which an event is settled."""
        parts = () if claim is None else claim.parts or (claim,)
        mine = (part for part in parts if event_id in {event.id for event in part.events})
        return next((self._claims.get((part.token, part.at), 0) for part in mine), 0)

    def _changes(self) -> Iterator[tuple[OutboxRow | None, OutboxRow]]:
        for event_id, row in self._servers.outbox.rows.items():
            before = self._seen.get(event_id)
            if before != row:
                self._seen[event_id] = copy.copy(row)
                yield before, row

    def _look(
        self, life: Life, name: str, claim: Claim | None, before: OutboxRow | None, row: OutboxRow
    ) -> None:
        check = self._check
        check((row.state is CLAIMED) == (row.claimed_at is not None), "I2", f"claimed_at of {row}")
        check((row.state is CLAIMED) == (row.claimed_by is not None), "I2", f"claimed_by of {row}")
        check((row.state is PUBLISHED) == (row.published_at is not None), "I2", f"published_at of {row}")
        if before is None:
            check(row.state is PENDING, "I1", f"{row.id} begins as {row.state}")
            return
        changed = [field for field in _IMMUTABLE if getattr(before, field) != getattr(row, field)]
        check(not changed, "I3", f"{changed} of {row.id} changed")
        by = _TRANSITIONS.get((before.state, row.state), set())
        check(name in by, "I1", f"{name} by {life.name}: {before.state} -> {row.state} of {row.id}")
        if name in _SETTLING:
            serial = self._serial(claim, row.id)
            check(
                self._owner.get(row.id) == serial,
                "I9",
                f"{name} by {life.name} under a stale claim of {row.id}",
            )
        self._look_at_counts(name, before, row)
        match row.state:
            case EventState.CLAIMED:
                self._claimed(life, before, row)
            case EventState.PUBLISHED:
                self._published(row)
            case EventState.DEAD:
                self._dead(row)
        if name == "replay":
            self._replayed(before)
        if name == "reap" and before.claimed_at is not None:
            ended = abs(self._servers.database_clock() - before.claimed_at) > self._lease
            check(ended, "I9", f"the lease of {row.id} was taken before its end")
        if name == "take_over" and before.claimed_by is not None:
            self._look_at_takeover(row.id, before.claimed_by)

    def _look_at_takeover(self, event_id: str, token: str) -> None:
        session = self._servers.sessions[token.rpartition("#")[2][:_SESSION_DIGITS]]
        self._check(session.is_gone, "I9", f"the lease of {event_id} was taken from a worker that lives")

    def _look_at_counts(self, name: str, before: OutboxRow, row: OutboxRow) -> None:
        check = self._check
        expected = 0 if name == "replay" else before.attempts + (row.state is CLAIMED)
        check(
            row.attempts == expected,
            "I4",
            f"{name}: attempts of {row.id} {before.attempts} -> {row.attempts}",
        )
        if name == "increment_attempts" and row.failures > before.failures:
            known = row.id in self._servers.refused or self._servers.planned[row.id].row.flaw
            check(known, "Q9", f"{row.id} spent a failure that the stream did not answer")

    def _claimed(self, life: Life, before: OutboxRow, row: OutboxRow) -> None:
        self._owner[row.id] = self.calls
        self._granted[life.number, row.id] = self._servers.clock()
        self._claimed_at[life.number, row.id] = life.clock()
        due = before.available_at <= self._servers.database_clock()
        self._check(due, "I5", f"{row.id} was claimed before it was due")

    def _published(self, row: OutboxRow) -> None:
        planned = self._servers.planned[row.id]
        copies = {entry.seq: entry for entry in self._servers.events.copies.get(row.id, ())}
        entry = copies.get(row.stream_seq)
        if entry is None:
            self._check(
                False, "I6", f"{row.id} is PUBLISHED as {row.stream_seq}, the stream has {sorted(copies)}"
            )
            return
        same = (entry.subject, entry.payload) == (planned.subject, planned.payload)
        self._check(same, "I6", f"the stream has {row.id} as {entry}")
        earlier = self._earlier.get(row.id, 0)
        self._check(
            entry.seq > earlier, "I6", f"the replay of {row.id} is PUBLISHED as its earlier copy {earlier}"
        )

    def _dead(self, row: OutboxRow) -> None:
        flaw = self._servers.planned[row.id].row.flaw
        self._check(flaw, "Q9", f"{row.id} is DEAD without a flaw: {row.error}")
        if flaw == "failing":
            self._check(
                row.failures >= self._failures_max, "Q9", f"{row.id} is DEAD after {row.failures} failures"
            )

    def _replayed(self, before: OutboxRow) -> None:
        self.replays[before.id] += 1
        self.sends[before.id] = 0
        self._earlier[before.id] = before.stream_seq

    def _look_at_keys(self, keys: set[str | None]) -> None:
        """Whoever gets an event of a key has every earlier unfinished one too, and none that has failed."""
        for key in sorted(key for key in keys if key is not None):
            rows = sorted((r for r in self._servers.outbox.rows.values() if r.ordering_key == key), key=_seq)
            done = {PUBLISHED} if self._servers.plan.hold_dead_keys else {PUBLISHED, DEAD}
            unfinished = [row for row in rows if row.state not in done]
            mine = [row for row in unfinished if row.state is CLAIMED and self._owner[row.id] == self.calls]
            run = unfinished[: unfinished.index(mine[-1]) + 1] if mine else []
            owners = {(row.claimed_by or "")[:-_CLAIM_DIGITS] for row in run}
            in_order = len(owners) <= 1 and not any(row.error for row in run[:-1])
            self._check(in_order, "I8", f"an event of key {key} was claimed before an earlier one")

    def _on_copy(self, event_id: str) -> None:
        copies = self._servers.events.copies[event_id]
        bound = 1 + self.replays[event_id]
        self._check(
            len(copies) <= bound, "I7", f"copy {len(copies)} of {event_id}, replayed {bound - 1} times"
        )
        self._check(
            event_id in self._servers.planned, "Q2", f"{event_id} is in the stream and was never committed"
        )


def _seq(row: OutboxRow) -> int:
    return row.seq
