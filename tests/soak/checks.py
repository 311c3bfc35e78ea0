"""Checks of the evidence that hold under any faults; each yields the offenders."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.soak.deployment import CONTEXT
from tests.soak.evidence import Evidence
from tests.soak.traffic import SHARE
from tests.soak.transactions import Fate, Planned
from tests.support.audit import exact, out_of_order
from tests.support.jetstream import Stored


@dataclass(frozen=True, slots=True)
class Check:
    """One check's verdict."""

    name: str
    title: str
    offenders: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.offenders


def planned_events(evidence: Evidence) -> dict[str, Planned]:
    """Return every event that a producer intended to write."""
    return {event.id: event for t in evidence.ledger.values() for event in t.events}


def replays(evidence: Evidence) -> Counter[str]:
    """Count the replays of each published event in the change log."""
    return Counter(
        str(row["id"])
        for row in evidence.outbox_log
        if (row["was"], row["became"]) == ("PUBLISHED", "PENDING")
    )


def by_id(evidence: Evidence) -> dict[str, list[Stored]]:
    """Group the copies in the own stream by the event's ID."""
    found: dict[str, list[Stored]] = defaultdict(list)
    for message in evidence.events:
        found[message.headers.get("ce-id", "")].append(message)
    return found


def outbox_is_what_was_committed(evidence: Evidence) -> Iterator[str]:
    """The outbox has all events of a committed transaction, and none of an aborted one."""
    known = set(planned_events(evidence))
    for event_id in sorted(set(evidence.outbox) - known):
        yield f"event {event_id} is in the outbox, but no producer wrote it"
    for name, transaction in evidence.ledger.items():
        there = sum(event.id in evidence.outbox for event in transaction.events)
        every = len(transaction.events)
        fine = {Fate.OK: {every}, Fate.ROLLED_BACK: {0}, Fate.UNKNOWN: {0, every}}[transaction.fate]
        if there not in fine:
            yield f"transaction {name}, {transaction.fate}: {there} of {every} events are there"


def states_are_as_planned(evidence: Evidence) -> Iterator[str]:
    """Every good event is PUBLISHED; every undeliverable one is DEAD, with the right error."""
    planned = planned_events(evidence)
    for event_id, row in evidence.outbox.items():
        dead = planned[event_id].dead if event_id in planned else ""
        error = row["publish_error"] or ""
        if dead and (row["state"] != "DEAD" or dead not in error):
            yield f"event {event_id} should be DEAD by {dead!r} and is {row['state']}: {error}"
        elif not dead and row["state"] != "PUBLISHED":
            yield f"event {event_id} is {row['state']}: {error}"


def stream_has_each_once(evidence: Evidence) -> Iterator[str]:
    """The stream has a published event once, and once more for each replay; it has nothing else."""
    again, copies = replays(evidence), by_id(evidence)
    for event_id, row in evidence.outbox.items():
        published = row["state"] == "PUBLISHED"
        wanted = (1 + again[event_id]) if published else 0
        seqs = [message.seq for message in copies.get(event_id, [])]
        if len(seqs) != wanted:
            yield f"event {event_id} is in the stream {len(seqs)} times instead of {wanted}: {seqs}"
        elif published and row["stream_seq"] not in seqs:
            yield f"event {event_id} is at {seqs}, and its row says {row['stream_seq']}"
    for event_id in sorted(set(copies) - set(evidence.outbox)):
        yield f"the stream holds {event_id!r}, which is not in the outbox"


def contents_are_unaltered(evidence: Evidence) -> Iterator[str]:
    """Producer, row, message and the handler's request have the same content."""
    planned = planned_events(evidence)
    for message in evidence.events:
        row = evidence.outbox.get(message.headers.get("ce-id", ""))
        if row is None:
            continue
        event_id = str(row["id"])
        if message.body != row["payload"].encode():
            yield f"event {event_id}: body at {message.seq} is not the row's payload"
        if event_id in planned and exact(row["payload"]) != exact(planned[event_id].payload):
            yield f"event {event_id}: payload is not the producer's"
        wanted = {
            "Nats-Msg-Id": event_id,
            "ce-type": row["event_type"],
            **json.loads(row["headers"] or "{}"),
        }
        if not wanted.items() <= message.headers.items():
            yield f"event {event_id}: headers at {message.seq} lack some of {wanted}"
        if message.subject != f"{CONTEXT}.event.{row['event_type']}.v{row['event_version']}":
            yield f"event {event_id}: subject at {message.seq} is {message.subject}"
    sent = defaultdict(set)
    for message in evidence.upstream:
        sent[message_id(message)].add(hashlib.sha256(message.body).hexdigest())
    for call in evidence.heard:
        if call.digest not in sent[call.id]:
            yield f"message {call.id}: the handler got a payload that differs from the stream's"


def keys_keep_their_order(evidence: Evidence) -> Iterator[str]:
    """First copies of one key's events are stored in insert order."""
    rows = sorted(evidence.outbox.items(), key=lambda item: item[1]["seq"])
    first_seq = {event_id: min(m.seq for m in copies) for event_id, copies in by_id(evidence).items()}
    for event_id in out_of_order(((event_id, row["ordering_key"]) for event_id, row in rows), first_seq):
        key = evidence.outbox[event_id]["ordering_key"]
        yield f"key {key}: {event_id} at {first_seq[event_id]} is after a later event"


def message_id(message: Stored) -> str:
    """Return the ID in a message's headers."""
    return message.headers.get("Nats-Msg-Id", message.headers.get("ce-id", ""))


_INVALID = {"no id": "INVALID_MESSAGE_ID", "no json": "INVALID_PAYLOAD", "bad subject": "BAD_SUBJECT"}


def expected_letters(evidence: Evidence) -> dict[int, str]:
    """Return the reasons of the expected dead letters, by the message's sequence."""
    found = {}
    dead_lettered = {int(letter.headers["Dlq-Stream-Sequence"]) for letter in evidence.letters}
    for seqs in _groups(evidence).values():
        for message in seqs:
            plan = message.headers.get(SHARE, "")
            if plan in _INVALID:
                found[message.seq] = _INVALID[plan]
            elif message_id(message) in evidence.rejects:
                found[message.seq] = "REJECTED"
            elif message_id(message) in evidence.never:
                found[message.seq] = "EXHAUSTED"
        bodies = defaultdict(set)
        for message in seqs:
            bodies[message.body].add(message.seq)
        if seqs[0].headers.get(SHARE) == "conflict" and len(bodies) > 1:
            # The first one was handled; the other content conflicts with it.
            losers = [numbers for numbers in bodies.values() if numbers <= dead_lettered] or [
                *bodies.values()
            ]
            found |= dict.fromkeys(losers[0], "CONTENT_CONFLICT")
    return found


def every_message_is_settled(evidence: Evidence) -> Iterator[str]:
    """Each message of the source stream is processed or dead-lettered; nothing is pending."""
    letters = expected_letters(evidence)
    dead_lettered = {int(letter.headers["Dlq-Stream-Sequence"]) for letter in evidence.letters}
    for message in evidence.upstream:
        if message.seq in letters:
            if message.seq not in dead_lettered:
                yield f"message {message.seq} ({message_id(message)}) should be a dead letter and is not"
            continue
        row = evidence.inbox.get(message_id(message))
        if row is None or row["processed_at"] is None:
            problem = "missing in the inbox" if row is None else f"not processed: {row['last_error']}"
            yield f"message {message.seq} ({message_id(message)}) is {problem}"
    for name in ("num_pending", "num_ack_pending"):
        if evidence.consumer[name]:
            yield f"the consumer still has {name} {evidence.consumer[name]}"
    there = {message.seq: message_id(message) for message in evidence.upstream}
    for seq, given in evidence.acknowledged.items():
        if there.get(seq) != given:
            yield f"the broker lost message {seq} ({given}), which it had acknowledged"


def effects_happen_once(evidence: Evidence) -> Iterator[str]:
    """A processed message has one effect, any other none, and no call follows its processing."""
    for given, row in evidence.inbox.items():
        wanted = int(row["processed_at"] is not None)
        if evidence.effects.get(given, 0) != wanted:
            yield f"message {given} has {evidence.effects.get(given, 0)} effects instead of {wanted}"
    for given in sorted(set(evidence.effects) - set(evidence.inbox)):
        yield f"message {given} has an effect, but is missing in the inbox"
    for call, seconds, why in late_calls(evidence):
        if not why:
            yield f"message {call.id}: {call.worker} called the handler {seconds:.2f} s after processing"


_HEARTBEAT = ("worker.freeze", "proxy.")
_LEASE_SECONDS = 3.0
_AFTERMATH_SECONDS = 5.0


def late_calls(evidence: Evidence) -> Iterator[tuple[Any, float, str]]:
    """Yield each call after its message was processed, its delay, and the faults that explain it.

    A worker that could not renew its lease may call the handler for a message that another worker has taken
    over; and a request in transit cannot be cancelled.
    """
    for call in evidence.heard:
        row = evidence.inbox.get(call.id)
        if row is None or row["processed_at"] is None:
            continue
        done = row["processed_at"].timestamp()
        if call.at <= done:
            continue
        causes = [
            fault.kind
            for fault in evidence.faults
            if fault.began < call.at
            and fault.ended > max(done - _LEASE_SECONDS, call.at - _AFTERMATH_SECONDS)
            and (
                fault.kind.startswith("database.")
                or (fault.victim.split(":")[0] == call.worker and fault.kind.startswith(_HEARTBEAT))
            )
        ]
        yield call, call.at - done, ", ".join(causes)


def letters_are_right(evidence: Evidence) -> Iterator[str]:
    """The dead letters are the expected ones, each once, with the right reason and the original body."""
    expected = expected_letters(evidence)
    sent = {message.seq: message for message in evidence.upstream}
    count = Counter(int(letter.headers["Dlq-Stream-Sequence"]) for letter in evidence.letters)
    for letter in evidence.letters:
        seq = int(letter.headers["Dlq-Stream-Sequence"])
        reason = letter.headers["Dlq-Reason"]
        original = sent.get(seq)
        if expected.get(seq) != reason:
            yield (
                f"message {seq} ({letter.headers['Dlq-Message-Id']}) was dead-lettered as {reason} "
                f"instead of {expected.get(seq)}: {letter.headers.get('Dlq-Detail')}"
            )
        if count[seq] > 1:
            yield f"message {seq} is in the dead-letter stream {count[seq]} times"
        if original is None or letter.body != original.body:
            yield f"dead letter {letter.seq} does not have the body of message {seq}"


def _groups(evidence: Evidence) -> Mapping[str, list[Stored]]:
    found: dict[str, list[Stored]] = defaultdict(list)
    for message in evidence.upstream:
        found[message_id(message)].append(message)
    return found


CONTENT: tuple[tuple[str, Callable[[Evidence], Iterator[str]]], ...] = (
    ("A1", outbox_is_what_was_committed),
    ("A2", states_are_as_planned),
    ("A3", stream_has_each_once),
    ("A4", contents_are_unaltered),
    ("A5", keys_keep_their_order),
    ("A6", every_message_is_settled),
    ("A7", effects_happen_once),
    ("A8", letters_are_right),
)


def judge(
    evidence: Evidence, checks: tuple[tuple[str, Callable[[Evidence], Iterator[str]]], ...]
) -> list[Check]:
    """Run checks; a check's title is the first line of its docstring."""
    return [
        Check(name, (check.__doc__ or "").splitlines()[0], tuple(check(evidence))) for name, check in checks
    ]
