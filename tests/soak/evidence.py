"""The evidence of a soak: samples during the faults, what all sides hold after them, and its checks."""

import asyncio
import contextlib
import hashlib
import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psutil

from tests.soak.deployment import CONTEXT, PAYLOAD_CANARY, SECRET, Heard, Stage
from tests.soak.faults import Injected
from tests.soak.traffic import SHARE, Fate, Planned, Transaction
from tests.support.audit import exact, out_of_order
from tests.support.jetstream import Stored, consumer_info, stored_messages
from tests.support.processes import Life
from tests.support.servers import database_connection

_EVERY_SECONDS = 0.5
_SCRAPE_SECONDS = 2.0
_SESSIONS = (
    "SELECT usename, extract(epoch FROM clock_timestamp() - state_change)::float8 AS seconds"
    " FROM pg_stat_activity WHERE usename LIKE 'w_' AND state LIKE 'idle in transaction%'"
)
_GONE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one time; ``rss`` in bytes."""

    at: float
    worker: str
    life: int
    rss: int
    fds: int
    threads: int


@dataclass
class Watch:
    """Samples until stopped."""

    stage: Stage
    samples: list[Sample] = field(default_factory=list)
    idle_in_transaction: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Sample until stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sessions(stop))
            for worker in self.stage.workers.values():
                group.create_task(self._every(stop, _SCRAPE_SECONDS, worker.scrape))
            await self._every(stop, _EVERY_SECONDS, self._processes)

    async def _every(self, stop: asyncio.Event, seconds: float, work: Any) -> None:
        while not stop.is_set():
            await work()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stop.wait()

    async def _processes(self) -> None:
        for worker in self.stage.workers.values():
            if worker.process.alive:
                life = worker.process.lives[-1]
                with contextlib.suppress(psutil.Error):
                    self.samples.append(_sample(life.name, life.number, life.pid))

    async def _sessions(self, stop: asyncio.Event) -> None:
        connection: asyncpg.Connection | None = None

        async def sample() -> None:
            nonlocal connection
            try:
                if connection is None or connection.is_closed():
                    connection = await asyncpg.connect(self.stage.postgres.dsn, timeout=3, command_timeout=3)
                rows = await connection.fetch(_SESSIONS)
            except _GONE:
                if connection is not None:
                    connection.terminate()
                return
            self.idle_in_transaction += [dict(row) | {"at": time.time()} for row in rows]

        await self._every(stop, _EVERY_SECONDS, sample)
        if connection is not None:
            connection.terminate()


def _sample(worker: str, life: int, pid: int) -> Sample:
    process = psutil.Process(pid)
    rss, fds = process.memory_info().rss, process.num_fds()
    return Sample(time.time(), worker, life, rss, fds, process.num_threads())


@dataclass(kw_only=True)
class Evidence:
    """The records of producers, servers, handler and workers."""

    ledger: Mapping[str, Transaction]
    outbox: Mapping[str, Any]
    inbox: Mapping[str, Any]
    again: Sequence[Mapping[str, str]]
    """Each replay of a published event and each redrive, by its row."""
    events: Sequence[Stored]
    upstream: Sequence[Stored]
    letters: Sequence[Stored]
    acknowledged: Mapping[int, str]
    consumer: Mapping[str, Any]
    heard: Sequence[Heard]
    effects: Mapping[str, int]
    lives: Sequence[Life]
    faults: Sequence[Injected]
    samples: Sequence[Sample]
    idle_in_transaction: Sequence[Mapping[str, Any]]
    logs: Mapping[str, str]
    rejects: frozenset[str] = field(default_factory=frozenset)
    never: frozenset[str] = field(default_factory=frozenset)


async def gather(
    stage: Stage,
    *,
    ledger: Mapping[str, Transaction],
    acknowledged: Mapping[int, str],
    faults: Sequence[Injected],
    watch: Watch,
) -> Evidence:
    """Gather all evidence."""
    target = stage.direct
    async with database_connection(stage.postgres.dsn) as connection:
        outbox = await connection.fetch("SELECT * FROM outbox_events ORDER BY seq")
        inbox = await connection.fetch("SELECT * FROM inbox_messages")
        again = await connection.fetch("SELECT * FROM soak.again")
    return Evidence(
        ledger=ledger,
        outbox={str(row["id"]): row for row in outbox},
        inbox={str(row["message_id"]): row for row in inbox},
        again=again,
        events=await stored_messages(stage.broker, f"{CONTEXT.upper()}_EVENTS"),
        upstream=await stored_messages(stage.broker, target.upstream_stream),
        letters=await stored_messages(stage.broker, f"{CONTEXT.upper()}_DLQ"),
        acknowledged=acknowledged,
        consumer=await consumer_info(stage.broker, target.upstream_stream, target.durable),
        heard=stage.service.heard,
        effects=stage.service.effects,
        lives=stage.lives(),
        faults=faults,
        samples=watch.samples,
        idle_in_transaction=watch.idle_in_transaction,
        logs={life.title: life.log.read_text() for life in stage.lives()},
        rejects=frozenset(stage.service.rejects),
        never=frozenset(stage.service.never),
    )


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
    """Count the replays of each published event."""
    return Counter(row["id"] for row in evidence.again if row["action"] == "replay")


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


_OVERLAP_SECONDS = 15.0
_WARM_UP_SECONDS = 20.0
_LIFE_SECONDS = 60.0
"""Minimum length of a run for a meaningful slope."""
_RSS_GROWTH_MAX = 12 * 2**20
_LONG_LIFE_SECONDS = 300.0
_FDS_GROWTH_MAX = 10
_FDS_AT_ONCE = 70
"""Cap on handler calls (50) plus sessions (18) of a worker; in a short run they look like growth."""


def resources_stay_flat(evidence: Evidence) -> Iterator[str]:
    """No session idles in a transaction; memory, descriptors and threads stay flat; logs hold no secret."""
    for seen in evidence.idle_in_transaction:
        if seen["seconds"] > 1:
            yield f"a session of {seen['usename']} idled in a transaction for {seen['seconds']:.1f} s"
    for slope in slopes(evidence):
        fds_max = _FDS_GROWTH_MAX if slope["seconds"] >= _LONG_LIFE_SECONDS else _FDS_AT_ONCE
        if (
            slope["rss_growth"] > _RSS_GROWTH_MAX
            or slope["fds_growth"] > fds_max
            or slope["threads_growth"] > 3
        ):
            yield f"{slope['life']} grew: {slope}"
    for name, text in evidence.logs.items():
        for canary in (SECRET, PAYLOAD_CANARY):
            if canary in text:
                yield f"the log of {name} contains {canary}"


def slopes(evidence: Evidence) -> list[dict[str, Any]]:
    """Compare the second quarter of each long run with its last."""
    lives: dict[str, list[Sample]] = defaultdict(list)
    for sample in evidence.samples:
        if sample.rss:  # 0: the process is ending
            lives[f"{sample.worker}-{sample.life}"].append(sample)
    found = []
    for name, samples in lives.items():
        settled = [sample for sample in samples if sample.at > samples[0].at + _WARM_UP_SECONDS]
        if not settled or settled[-1].at - settled[0].at < _LIFE_SECONDS:
            continue
        quarter = len(settled) // 4
        early, late = settled[quarter : 2 * quarter], settled[-quarter:]
        minutes = (late[0].at - early[0].at) / 60
        growth = {
            f"{field}_growth": statistics.median(getattr(s, field) for s in late)
            - statistics.median(getattr(s, field) for s in early)
            for field in ("rss", "fds", "threads")
        }
        found.append({
            "life": name, "seconds": round(settled[-1].at - samples[0].at), **growth,
            "rss_mb": round(late[-1].rss / 2**20, 1), "fds": late[-1].fds, "threads": late[-1].threads,
            "rss_mb_per_minute": round(growth["rss_growth"] / 2**20 / minutes, 2),
        })  # fmt: skip
    return found


def workers_end_as_documented(evidence: Evidence) -> Iterator[str]:
    """A worker ends only by a signal, or with the documented code while a dependency is missing."""
    for life in evidence.lives:
        if not _fine(life, evidence):
            lines = evidence.logs[life.title].splitlines()
            why = _reasons(lines) or "".join(lines[-1:])
            at = datetime.fromtimestamp(life.ended, UTC).time().isoformat("seconds")
            sent = life.signal or "no signal"
            yield f"{life.title} ended at {at} with {life.code} after {sent}: {why}"


def _fine(life: Life, evidence: Evidence) -> bool:
    def during(*kinds: str) -> bool:
        return any(
            fault.kind in kinds and fault.began < life.ended < fault.ended + _OVERLAP_SECONDS
            for fault in evidence.faults
        )

    if life.signal == "SIGKILL":
        return life.code == -9
    if life.signal == "SIGTERM":
        hurt = any(
            f.began < life.ended and f.ended > life.signalled_at - 2
            for f in evidence.faults
            if f.kind != "worker.stop"
        )
        unborn = life.code == -15 and not evidence.logs[life.title]
        return life.code == 0 or (life.code == 5 and hurt) or unborn
    log = evidence.logs[life.title]
    reasons = "" if "worker_started" in log else _reasons(log.splitlines())
    missing = during("broker.delete_consumer") and ("does not exist" in reasons or "not found" in reasons)
    return life.code == 3 and (missing or (during("broker.forbid") and "permission" in reasons))


def _reasons(lines: Sequence[str]) -> str:
    """Return the log lines that give the reason of a worker's end."""
    return "\n".join(line for line in lines if '"loop_died"' in line or '"contract_broken"' in line)


SERIES = {
    "duplicates dropped by the stream": "sea_mq_outbox_duplicates_total",
    "expired leases reaped": "sea_mq_outbox_leases_reaped_total",
    "late settlements of events refused": 'sea_mq_leases_lost_total{side="outbox"}',
    "late settlements of messages refused": 'sea_mq_leases_lost_total{side="inbox"}',
    "events released without an attempt": "sea_mq_outbox_released_total",
    "duplicates acknowledged without a call": "sea_mq_inbox_skipped_total",
    "circuit breakers opened": "sea_mq_circuit_opened_total",
}


def sometimes(evidence: Evidence) -> dict[str, int]:
    """Count the rare paths that a soak must have taken."""
    totals = Counter[str]()
    for life in evidence.lives:
        for series, value in life.metrics.items():
            if series.startswith("sea_mq_"):
                for name in {series, series.partition("{")[0]}:
                    totals[name] += int(value)
    found = {text: totals[name] for text, name in SERIES.items()}
    found["409 responses"] = sum(call.status == 409 for call in evidence.heard)
    found["commits with an unknown outcome"] = sum(t.fate is Fate.UNKNOWN for t in evidence.ledger.values())
    found["transactions rolled back"] = sum(t.fate is Fate.ROLLED_BACK for t in evidence.ledger.values())
    found["replays delivered"] = replays(evidence).total()
    found["redrives done"] = sum(row["action"] == "redrive" for row in evidence.again)
    found["exhausted messages"] = sum(m.headers["Dlq-Reason"] == "EXHAUSTED" for m in evidence.letters)
    return found


def rare_paths_were_reached(evidence: Evidence) -> Iterator[str]:
    """Each path that only faults cause was taken at least once."""
    for what, count in sometimes(evidence).items():
        if not count:
            yield f"never: {what}"


BEHAVIOUR = (
    ("A9", resources_stay_flat),
    ("A10", workers_end_as_documented),
)
