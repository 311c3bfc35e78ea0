"""What must be true of the evidence, whatever the faults were; each check names its offenders."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kit.audit import exact, out_of_order
from kit.soak.deployment import CONTEXT
from kit.soak.evidence import Evidence
from kit.soak.traffic import SHARE
from kit.soak.transactions import Fate, Planned
from kit.streams import Message


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
    """Return every event that a producer meant to write."""
    return {event.id: event for t in evidence.ledger.values() for event in t.events}


def replays(evidence: Evidence) -> Counter[str]:
    """Count how often an event was put back after it had been published, by the log of changes."""
    return Counter(
        str(row["id"])
        for row in evidence.outbox_log
        if (row["was"], row["became"]) == ("PUBLISHED", "PENDING")
    )


def by_id(evidence: Evidence) -> dict[str, list[Message]]:
    """Group the copies in the own stream by the event's id, which is not the server's to change."""
    found: dict[str, list[Message]] = defaultdict(list)
    for message in evidence.events:
        found[message.headers.get("ce-id", "")].append(message)
    return found


def outbox_is_what_was_committed(evidence: Evidence) -> Iterator[str]:
    """Of a committed transaction all events are there, of an aborted one none, of an unknown one either."""
    known = set(planned_events(evidence))
    for event_id in sorted(set(evidence.outbox) - known):
        yield f"event {event_id} is in the outbox, and nobody meant to write it"
    for name, transaction in evidence.ledger.items():
        there = sum(event.id in evidence.outbox for event in transaction.events)
        every = len(transaction.events)
        fine = {Fate.OK: {every}, Fate.ROLLED_BACK: {0}, Fate.UNKNOWN: {0, every}}[transaction.fate]
        if there not in fine:
            yield f"transaction {name}, {transaction.fate}: {there} of {every} events are there"


def states_are_as_planned(evidence: Evidence) -> Iterator[str]:
    """Every good event is PUBLISHED; every one that never can be is DEAD, and its error says why."""
    planned = planned_events(evidence)
    for event_id, row in evidence.outbox.items():
        dead = planned[event_id].dead if event_id in planned else ""
        error = row["publish_error"] or ""
        if dead and (row["state"] != "DEAD" or dead not in error):
            yield f"event {event_id} should be DEAD by {dead!r} and is {row['state']}: {error}"
        elif not dead and row["state"] != "PUBLISHED":
            yield f"event {event_id} is {row['state']}: {error}"


def stream_has_each_once(evidence: Evidence) -> Iterator[str]:
    """A published event is in the stream once, and once more for each replay; nothing else is there."""
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
    """Each message is its row's, each row its producer's, and the handler saw what the stream holds."""
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
            yield f"message {call.id}: the handler was given another payload than the stream holds"


def keys_keep_their_order(evidence: Evidence) -> Iterator[str]:
    """First copies of one key's events are stored in insert order."""
    rows = sorted(evidence.outbox.items(), key=lambda item: item[1]["seq"])
    first_seq = {event_id: min(m.seq for m in copies) for event_id, copies in by_id(evidence).items()}
    for event_id in out_of_order(((event_id, row["ordering_key"]) for event_id, row in rows), first_seq):
        key = evidence.outbox[event_id]["ordering_key"]
        yield f"key {key}: {event_id} at {first_seq[event_id]} is behind a later event"


def message_id(message: Message) -> str:
    """Return the id that a message claims."""
    return message.headers.get("Nats-Msg-Id", message.headers.get("ce-id", ""))


_INVALID = {"no id": "INVALID_MESSAGE_ID", "no json": "INVALID_PAYLOAD", "bad subject": "BAD_SUBJECT"}


def expected_letters(evidence: Evidence) -> dict[int, str]:
    """Return which messages, by sequence, have to be dead-lettered, and why."""
    found = {}
    buried = {int(letter.headers["Dlq-Stream-Sequence"]) for letter in evidence.letters}
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
            # Whichever came first was handled; the other content is in conflict with it.
            losers = [numbers for numbers in bodies.values() if numbers <= buried] or [*bodies.values()]
            found |= dict.fromkeys(losers[0], "CONTENT_CONFLICT")
    return found


def every_message_came_to_its_end(evidence: Evidence) -> Iterator[str]:
    """Each message of the source stream is processed or dead-lettered; nothing is pending."""
    letters = expected_letters(evidence)
    buried = {int(letter.headers["Dlq-Stream-Sequence"]) for letter in evidence.letters}
    for message in evidence.upstream:
        if message.seq in letters:
            if message.seq not in buried:
                yield f"message {message.seq} ({message_id(message)}) should be a dead letter and is not"
            continue
        row = evidence.inbox.get(message_id(message))
        if row is None or row["processed_at"] is None:
            told = "unknown to the inbox" if row is None else f"not processed: {row['last_error']}"
            yield f"message {message.seq} ({message_id(message)}) is {told}"
    for name in ("num_pending", "num_ack_pending"):
        if evidence.consumer[name]:
            yield f"the consumer still has {name} {evidence.consumer[name]}"
    there = {message.seq: message_id(message) for message in evidence.upstream}
    for seq, given in evidence.acknowledged.items():
        if there.get(seq) != given:
            yield f"the broker lost message {seq} ({given}), which it had acknowledged"


def effects_happen_once(evidence: Evidence) -> Iterator[str]:
    """A processed message has one effect, any other none; none is handed over after it was processed."""
    for given, row in evidence.inbox.items():
        wanted = int(row["processed_at"] is not None)
        if evidence.effects.get(given, 0) != wanted:
            yield f"message {given} has {evidence.effects.get(given, 0)} effects instead of {wanted}"
    for given in sorted(set(evidence.effects) - set(evidence.inbox)):
        yield f"message {given} has an effect, and the inbox does not know it"
    for call, seconds, why in late_calls(evidence):
        if not why:
            yield f"message {call.id}: {call.worker} asked the handler {seconds:.2f} s after it was processed"


_HEARTBEAT = ("worker.freeze", "proxy.")
_LEASE_SECONDS = 3.0
_AFTERMATH_SECONDS = 5.0


def late_calls(evidence: Evidence) -> Iterator[tuple[Any, float, str]]:
    """Give each call that came after its message was processed, how late, and the fault that explains it.

    A worker that cannot renew its lease for longer than the lease may ask for a message that another has
    taken over; and a request that is on its way cannot be called back.
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
    """Dead letters are the planned ones, each once, for the right reason, with the original's body."""
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
            yield f"dead letter {letter.seq} does not hold the body of message {seq}"


def _groups(evidence: Evidence) -> Mapping[str, list[Message]]:
    found: dict[str, list[Message]] = defaultdict(list)
    for message in evidence.upstream:
        found[message_id(message)].append(message)
    return found


CONTENT: tuple[tuple[str, Callable[[Evidence], Iterator[str]]], ...] = (
    ("A1", outbox_is_what_was_committed),
    ("A2", states_are_as_planned),
    ("A3", stream_has_each_once),
    ("A4", contents_are_unaltered),
    ("A5", keys_keep_their_order),
    ("A6", every_message_came_to_its_end),
    ("A7", effects_happen_once),
    ("A8", letters_are_right),
)


def judge(
    evidence: Evidence, checks: tuple[tuple[str, Callable[[Evidence], Iterator[str]]], ...]
) -> list[Check]:
    """Run checks; a check's title is the first line of what it says it proves."""
    return [
        Check(name, (check.__doc__ or "").splitlines()[0], tuple(check(evidence))) for name, check in checks
    ]
