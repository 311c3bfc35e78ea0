"""Invariants of the inbox, its durable, its dead letters and the handler, checked after each effect."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sea_mq_worker.inbox.dead_letter import Reason
from sea_mq_worker.inbox.message import (
    Accepted,
    HandlerRequest,
    HandlerResult,
    InvalidMessage,
    Lease,
    Poison,
    Receipt,
    Retry,
    content_hash,
    parse_message,
    storage_id,
)
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.testing.inbox import InboxRow
from tests.simulation.run import Life
from tests.simulation.servers import MAX_ACK_PENDING, Servers

T = TypeVar("T")


class InboxAudit:
    """Watches every change of every row, every call of the handler and every acknowledgement."""

    def __init__(self, servers: Servers, *, concurrency: int, attempts_max: int) -> None:
        self._servers = servers
        self._check = servers.report.check
        self._concurrency = concurrency
        self._attempts_max = attempts_max
        self._seen: dict[str, InboxRow] = {}
        self._given: set[tuple[str, str]] = set()
        self.accepted: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.redriven: Counter[str] = Counter()
        self._calling: dict[str, set[int]] = {}
        servers.letters.on_copy = self._on_letter

    def effect(self, life: Life, name: str, call: Callable[[], T], leases: Sequence[Lease] = ()) -> T:
        """Let a statement take effect, and look at what it did."""
        result = call()
        tokens = {lease.message_id: lease.token for lease in leases}
        changed = 0
        for before, row in self._changes():
            changed += 1
            self._look(life, name, tokens, before, row)
        if leases and name != "extend" and not changed:
            self._servers.report.saw("fenced ending")
        return result

    def given(self, receipts: Sequence[Receipt]) -> None:
        """Look at the leases that an answer gives; a token may fence one only."""
        for receipt in receipts:
            if isinstance(receipt, Lease):
                lease = receipt.message_id, receipt.token
                self._check(lease not in self._given, "I9", f"{lease} was given twice")
                self._given.add(lease)

    def row_of(self, message: InboundMessage) -> InboxRow | None:
        """Return the row that accounts for a message, where there is one."""
        rows = self._servers.inbox.rows
        row = rows.get(parse_message(message).message_id)
        if row is not None and row.content_hash == content_hash(message):
            return row
        return rows.get(storage_id(message))

    def acking(self, life: Life, message: InboundMessage) -> None:
        """Look at an acknowledgement that a worker sends; what is being redriven was settled before."""
        row = self.row_of(message)
        settled = row is not None and (row.settled or self.redriven[row.entry.message_id])
        self._check(settled, "I11", f"{life.name} acknowledges {message.seq}, the inbox has {row}")
        if row is not None and row.dead_lettered_at is not None and row.processed_at is None:
            letters = self._servers.letters.copies.get(row.entry.message_id)
            self._check(letters, "I11", f"{life.name} acknowledges {message.seq}, which has no dead letter")

    def naking(self, life: Life, message: InboundMessage, delay_seconds: float) -> None:
        """Look at a message that a worker gives back."""
        message_id = parse_message(message).message_id
        asked = life.asked_to_wait.pop(message_id, 0.0)
        if not life.stop.is_set():
            self._check(
                delay_seconds >= asked,
                "Q10",
                f"{message_id} comes again after {delay_seconds} s, the handler asked for {asked} s",
            )

    def calling(self, life: Life, request: HandlerRequest) -> None:
        """Look at a call of the handler as it begins."""
        message_id = request.message_id
        row = self._servers.inbox.rows.get(message_id)
        self._check(row is not None, "I12", f"{life.name} hands over {message_id}, which it has not recorded")
        processed = row is not None and row.processed_at is not None and not life.hurt
        self._check(not processed, "I12", f"{life.name} hands over {message_id}, which is processed")
        life.calls += 1
        self._check(life.calls <= self._concurrency, "I13", f"{life.name} calls {life.calls} times at once")
        others = self._calling.setdefault(message_id, set()) - {life.number}
        undisturbed = not self._servers.plan.troubles
        self._check(not (others and undisturbed), "I12", f"{message_id} is handled by two workers at once")
        self._calling[message_id].add(life.number)

    def called(self, life: Life, request: HandlerRequest, result: HandlerResult) -> None:
        """Look at the handler's answer as it leaves the handler."""
        message_id = request.message_id
        life.calls -= 1
        self._calling[message_id].discard(life.number)
        life.asked_to_wait.pop(message_id, None)
        match result:
            case Accepted(status):
                self.accepted[message_id] += 1
                if status == 409:
                    self._servers.report.saw("handler answered 409")
            case Poison():
                self.rejected[message_id] += 1
            case Retry(_, after_seconds) if after_seconds:
                life.asked_to_wait[message_id] = after_seconds

    def delivered(self) -> None:
        """Look at the durable after it handed something out."""
        waiting = self._servers.consumer.in_places()
        self._check(waiting <= MAX_ACK_PENDING, "I13", f"{waiting} messages are unanswered")

    def _changes(self) -> Iterator[tuple[InboxRow | None, InboxRow]]:
        for message_id, row in self._servers.inbox.rows.items():
            before = self._seen.get(message_id)
            if before != row:
                self._seen[message_id] = copy.copy(row)
                yield before, row

    def _look(
        self, life: Life, name: str, tokens: dict[str, str], before: InboxRow | None, row: InboxRow
    ) -> None:
        check, message_id = self._check, row.entry.message_id
        check((row.locked_by is None) == (row.locked_until is None), "I2", f"lease of {row}")
        check(row.processed_at is None or row.dead_lettered_at is None, "I2", f"two endings of {row}")
        if name == "insert":
            self._leased(life, before, row)
        elif name == "take_over":
            self._taken_over(before, row)
        elif name == "redriven":
            self.redriven[message_id] += 1
            check(row.attempts == 0 and row.processed_at is None, "I1", f"redriven {row}")
        else:
            held = before is not None and before.locked_by == tokens.get(message_id, "")
            check(held, "I9", f"{name} by {life.name} without the lease of {message_id}")
        if before is not None and before.settled and name != "redriven":
            check(False, "I1", f"{name} by {life.name} changed {message_id}, which was settled")
        if row.processed_at is not None:
            check(name == "mark_processed", "I10", f"{name} processed {message_id}")
            check(row.processed_at >= row.received_at, "I10", f"{message_id} was processed before it came")
            check(self.accepted[message_id], "I10", f"{message_id} is processed, the handler never took it")
        if row.dead_lettered_at is not None:
            check(name == "mark_dead_lettered", "I10", f"{name} dead-lettered {message_id}")
            letters = self._servers.letters.copies.get(message_id)
            check(letters, "I11", f"{message_id} is dead-lettered, and no stream has its dead letter")

    def _taken_over(self, before: InboxRow | None, row: InboxRow) -> None:
        token = before.locked_by if before is not None else None
        session = self._servers.sessions.get((token or "").rpartition("#")[2][:8])
        gone = session is not None and session.is_gone
        self._check(gone, "I9", f"the lease of {row.entry.message_id} was taken from a worker that lives")

    def _leased(self, life: Life, before: InboxRow | None, row: InboxRow) -> None:
        """Under another token, or repeated under its own because the answer was lost."""
        message_id = row.entry.message_id
        now = self._servers.database_clock()
        if before is not None and before.locked_by == row.locked_by:
            self._check(row.attempts == before.attempts, "I4", f"{message_id} was counted again: {row}")
            return
        earlier = 0 if before is None else before.attempts
        self._check(
            row.attempts == earlier + 1, "I4", f"attempts of {message_id}: {earlier} -> {row.attempts}"
        )
        if before is not None:
            free = before.locked_until is None or before.locked_until <= now
            self._check(free, "I9", f"{life.name} takes the lease of {message_id} before its end")

    def _on_letter(self, message_id: str) -> None:
        """One dead letter a message, with a reason that is so."""
        entry = self._servers.letters.copies[message_id][-1]
        count = len(self._servers.letters.copies[message_id])
        self._check(count == 1, "Q3", f"{count} dead letters of {message_id}")
        row = self._servers.inbox.rows.get(message_id)
        if row is None:
            self._check(False, "Q3", f"a dead letter of {message_id}, which is not in the inbox")
            return
        reason, seq = entry.headers["Dlq-Reason"], int(entry.headers["Dlq-Stream-Sequence"])
        self._check(row.dead_letter_begun_at is not None, "I11", f"no intent noted of {message_id}")
        self._check(self._is_so(row, reason, seq), "Q3", f"{message_id} ({row}) is dead-lettered as {reason}")

    def _is_so(self, row: InboxRow, reason: str, seq: int) -> bool:
        message_id = row.entry.message_id
        message = self._servers.consumer.message(seq, deliveries=1)
        assert message is not None
        match reason:
            case Reason.REJECTED:
                return self.rejected[message_id] > 0
            case Reason.EXHAUSTED:
                return row.attempts >= self._attempts_max
            case Reason.CONTENT_CONFLICT:
                self._servers.report.saw("content conflict")
                return message_id == storage_id(message)
            case _:
                envelope = parse_message(message)
                return isinstance(envelope, InvalidMessage) and envelope.reason == reason
