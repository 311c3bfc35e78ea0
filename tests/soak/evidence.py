"""The evidence of a soak: samples during the faults, what all sides hold after them, and its checks."""

import asyncio
import contextlib
import hashlib
import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

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


class Sample(NamedTuple):
    """One run of a worker at one time; ``rss`` in bytes."""

    at: float
    life: str
    rss: int
    fds: int
    threads: int


@dataclass
class Watch:
    """Samples the workers' processes, sessions and metrics."""

    stage: Stage
    samples: list[Sample] = field(default_factory=list)
    idle_in_transaction: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Sample until stopped."""

        async def every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
            while not stop.is_set():
                await work()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), seconds)

        async with asyncio.TaskGroup() as group:
            group.create_task(every(_EVERY_SECONDS, self._sessions))
            group.create_task(every(_EVERY_SECONDS, self._processes))
            for worker in self.stage.workers.values():
                group.create_task(every(_SCRAPE_SECONDS, worker.scrape))

    async def _processes(self) -> None:
        for worker in self.stage.workers.values():
            if not worker.process.alive:
                continue
            life = worker.process.lives[-1]
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(life.pid)
                used = process.memory_info().rss, process.num_fds(), process.num_threads()
                self.samples.append(Sample(time.time(), f"{life.name}-{life.number}", *used))

    async def _sessions(self) -> None:
        with contextlib.suppress(*_GONE):
            async with self.stage.database() as connection:
                self.idle_in_transaction += map(dict, await connection.fetch(_SESSIONS))


@dataclass(kw_only=True)
class Evidence:
    """The records of producers, servers, handler and workers.

    Attributes:
        again: each replay of a published event and each redrive, by its row.
        acknowledged: the sender's IDs by the sequence that the broker acknowledged.
        lives: each run of each worker.
    """

    ledger: Mapping[str, Transaction]
    outbox: Mapping[str, Any]
    inbox: Mapping[str, Any]
    again: Sequence[Mapping[str, str]]
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
    rejects: frozenset[str]
    never: frozenset[str]

    @property
    def planned(self) -> dict[str, Planned]:
        """Every event that a producer intended to write."""
        return {event.id: event for t in self.ledger.values() for event in t.events}

    @property
    def replays(self) -> Counter[str]:
        return Counter(row["id"] for row in self.again if row["action"] == "replay")

    @property
    def copies(self) -> dict[str, list[Stored]]:
        """The messages in the own stream by the event's ID."""
        return _grouped(self.events, lambda message: message.headers.get("ce-id", ""))

    @property
    def dead_lettered(self) -> Counter[int]:
        return Counter(int(letter.headers["Dlq-Stream-Sequence"]) for letter in self.letters)


async def gather(stage: Stage, watch: Watch, **known: Any) -> Evidence:
    """Gather all evidence; ``known`` are the ledger, the broker's acknowledgements and the faults."""
    target = stage.direct
    async with database_connection(stage.postgres.dsn) as connection:
        outbox = await connection.fetch("SELECT * FROM outbox_events ORDER BY seq")
        inbox = await connection.fetch("SELECT * FROM inbox_messages")
        again = await connection.fetch("SELECT * FROM soak.again")
    return Evidence(
        **known,
        outbox={str(row["id"]): row for row in outbox},
        inbox={str(row["message_id"]): row for row in inbox},
        again=again,
        events=await stored_messages(stage.broker, f"{CONTEXT.upper()}_EVENTS"),
        upstream=await stored_messages(stage.broker, target.upstream_stream),
        letters=await stored_messages(stage.broker, f"{CONTEXT.upper()}_DLQ"),
        consumer=await consumer_info(stage.broker, target.upstream_stream, target.durable),
        heard=stage.service.heard,
        effects=stage.service.effects,
        lives=stage.lives(),
        samples=watch.samples,
        idle_in_transaction=watch.idle_in_transaction,
        logs={life.title: life.log.read_text() for life in stage.lives()},
        rejects=frozenset(stage.service.rejects),
        never=frozenset(stage.service.never),
    )


def message_id(message: Stored) -> str:
    """Return the ID in a message's headers."""
    return message.headers.get("Nats-Msg-Id", message.headers.get("ce-id", ""))


def _grouped(messages: Sequence[Stored], key: Callable[[Stored], str]) -> dict[str, list[Stored]]:
    found: dict[str, list[Stored]] = defaultdict(list)
    for message in messages:
        found[key(message)].append(message)
    return found


# --- Checks: each yields what is wrong; the first line of its docstring is its title.


def outbox_is_what_was_committed(e: Evidence) -> Iterator[str]:
    """The outbox has all events of a committed transaction, and none of an aborted one."""
    for event_id in sorted(e.outbox.keys() - e.planned.keys()):
        yield f"event {event_id} is in the outbox, but no producer wrote it"
    for name, transaction in e.ledger.items():
        there = sum(event.id in e.outbox for event in transaction.events)
        every = len(transaction.events)
        fine = {Fate.OK: {every}, Fate.ROLLED_BACK: {0}, Fate.UNKNOWN: {0, every}}[transaction.fate]
        if there not in fine:
            yield f"transaction {name}, {transaction.fate}: {there} of {every} events are there"


def states_are_as_planned(e: Evidence) -> Iterator[str]:
    """Every good event is PUBLISHED; every undeliverable one is DEAD, with the right error."""
    planned = e.planned
    for event_id, row in e.outbox.items():
        dead = planned[event_id].dead if event_id in planned else ""
        error = row["publish_error"] or ""
        if dead and (row["state"] != "DEAD" or dead not in error):
            yield f"event {event_id} should be DEAD by {dead!r} and is {row['state']}: {error}"
        elif not dead and row["state"] != "PUBLISHED":
            yield f"event {event_id} is {row['state']}: {error}"


def stream_has_each_once(e: Evidence) -> Iterator[str]:
    """The stream has a published event once, and once more for each replay; it has nothing else."""
    replays, copies = e.replays, e.copies
    for event_id, row in e.outbox.items():
        published = row["state"] == "PUBLISHED"
        wanted = (1 + replays[event_id]) if published else 0
        seqs = [message.seq for message in copies.get(event_id, [])]
        if len(seqs) != wanted:
            yield f"event {event_id} is in the stream {len(seqs)} times instead of {wanted}: {seqs}"
        elif published and row["stream_seq"] not in seqs:
            yield f"event {event_id} is at {seqs}, and its row says {row['stream_seq']}"
    for event_id in sorted(copies.keys() - e.outbox.keys()):
        yield f"the stream holds {event_id!r}, which is not in the outbox"


def contents_are_unaltered(e: Evidence) -> Iterator[str]:
    """Producer, row, message and the handler's request have the same content."""
    planned = e.planned
    for message in e.events:
        row = e.outbox.get(message.headers.get("ce-id", ""))
        if row is None:
            continue
        event_id = str(row["id"])
        if message.body != row["payload"].encode():
            yield f"event {event_id}: body at {message.seq} is not the row's payload"
        if event_id in planned and exact(row["payload"]) != exact(planned[event_id].payload):
            yield f"event {event_id}: payload is not the producer's"
        own = json.loads(row["headers"] or "{}")
        wanted = {"Nats-Msg-Id": event_id, "ce-type": row["event_type"], **own}
        if not wanted.items() <= message.headers.items():
            yield f"event {event_id}: headers at {message.seq} lack some of {wanted}"
        if message.subject != f"{CONTEXT}.event.{row['event_type']}.v{row['event_version']}":
            yield f"event {event_id}: subject at {message.seq} is {message.subject}"
    sent = _grouped(e.upstream, message_id)
    for call in e.heard:
        if call.digest not in {hashlib.sha256(message.body).hexdigest() for message in sent[call.id]}:
            yield f"message {call.id}: the handler got a payload that differs from the stream's"


def keys_keep_their_order(e: Evidence) -> Iterator[str]:
    """First copies of one key's events are stored in insert order."""
    rows = sorted(e.outbox.items(), key=lambda item: item[1]["seq"])
    first_seq = {event_id: min(m.seq for m in copies) for event_id, copies in e.copies.items()}
    for event_id in out_of_order(((event_id, row["ordering_key"]) for event_id, row in rows), first_seq):
        key = e.outbox[event_id]["ordering_key"]
        yield f"key {key}: {event_id} at {first_seq[event_id]} is after a later event"


_INVALID = {"no id": "INVALID_MESSAGE_ID", "no json": "INVALID_PAYLOAD", "bad subject": "BAD_SUBJECT"}


def _expected_letters(e: Evidence) -> dict[int, str]:
    """Return the reasons of the expected dead letters, by the message's sequence."""
    found = {}
    for given, messages in _grouped(e.upstream, message_id).items():
        for message in messages:
            plan = message.headers.get(SHARE, "")
            if plan in _INVALID:
                found[message.seq] = _INVALID[plan]
            elif given in e.rejects or given in e.never:
                found[message.seq] = "REJECTED" if given in e.rejects else "EXHAUSTED"
        contents = defaultdict(set)
        for message in messages:
            contents[message.body].add(message.seq)
        if messages[0].headers.get(SHARE) == "conflict" and len(contents) > 1:
            # The first one was handled; the other content conflicts with it.
            losers = [seqs for seqs in contents.values() if seqs <= e.dead_lettered.keys()]
            found |= dict.fromkeys((losers or [*contents.values()])[0], "CONTENT_CONFLICT")
    return found


def every_message_is_settled(e: Evidence) -> Iterator[str]:
    """Each message of the source stream is processed or dead-lettered; nothing is pending."""
    expected, dead_lettered = _expected_letters(e), e.dead_lettered
    for message in e.upstream:
        if message.seq in expected:
            if message.seq not in dead_lettered:
                yield f"message {message.seq} ({message_id(message)}) should be a dead letter and is not"
            continue
        row = e.inbox.get(message_id(message))
        if row is None or row["processed_at"] is None:
            problem = "missing in the inbox" if row is None else f"not processed: {row['last_error']}"
            yield f"message {message.seq} ({message_id(message)}) is {problem}"
    for name in ("num_pending", "num_ack_pending"):
        if e.consumer[name]:
            yield f"the consumer still has {name} {e.consumer[name]}"
    there = {message.seq: message_id(message) for message in e.upstream}
    for seq, given in e.acknowledged.items():
        if there.get(seq) != given:
            yield f"the broker lost message {seq} ({given}), which it had acknowledged"


def effects_happen_once(e: Evidence) -> Iterator[str]:
    """A processed message has one effect, any other none, and no call follows its processing."""
    for given, row in e.inbox.items():
        wanted = int(row["processed_at"] is not None)
        if e.effects.get(given, 0) != wanted:
            yield f"message {given} has {e.effects.get(given, 0)} effects instead of {wanted}"
    for given in sorted(e.effects.keys() - e.inbox.keys()):
        yield f"message {given} has an effect, but is missing in the inbox"
    for call, seconds, why in late_calls(e):
        if not why:
            yield f"message {call.id}: {call.worker} called the handler {seconds:.2f} s after processing"


_HEARTBEAT = ("worker.freeze", "proxy.")
_LEASE_SECONDS = 3.0
_AFTERMATH_SECONDS = 5.0


def late_calls(e: Evidence) -> Iterator[tuple[Heard, float, str]]:
    """Yield each call after its message was processed, its delay, and the faults that explain it.

    A worker that could not renew its lease may call the handler for a message that another worker has taken
    over; and a request in transit cannot be cancelled.
    """
    for call in e.heard:
        row = e.inbox.get(call.id)
        if row is None or row["processed_at"] is None or call.at <= row["processed_at"].timestamp():
            continue
        done = row["processed_at"].timestamp()
        causes = [
            fault.kind
            for fault in e.faults
            if fault.began < call.at
            and fault.ended > max(done - _LEASE_SECONDS, call.at - _AFTERMATH_SECONDS)
            and (
                fault.kind.startswith("database.")
                or (fault.victim.split(":")[0] == call.worker and fault.kind.startswith(_HEARTBEAT))
            )
        ]
        yield call, call.at - done, ", ".join(causes)


def letters_are_right(e: Evidence) -> Iterator[str]:
    """The dead letters are the expected ones, each once, with the right reason and the original body."""
    expected, count = _expected_letters(e), e.dead_lettered
    sent = {message.seq: message for message in e.upstream}
    for letter in e.letters:
        seq = int(letter.headers["Dlq-Stream-Sequence"])
        reason, original = letter.headers["Dlq-Reason"], sent.get(seq)
        if expected.get(seq) != reason:
            yield (
                f"message {seq} ({letter.headers['Dlq-Message-Id']}) was dead-lettered as {reason} "
                f"instead of {expected.get(seq)}: {letter.headers.get('Dlq-Detail')}"
            )
        if count[seq] > 1:
            yield f"message {seq} is in the dead-letter stream {count[seq]} times"
        if original is None or letter.body != original.body:
            yield f"dead letter {letter.seq} does not have the body of message {seq}"


_WARM_UP_SECONDS = 20.0
_LIFE_SECONDS = 60.0
"""Minimum length of a run for a meaningful slope."""
_RSS_GROWTH_MAX = 12 * 2**20
_LONG_LIFE_SECONDS = 300.0
_FDS_GROWTH_MAX = 10
_FDS_AT_ONCE = 70
"""Cap on handler calls (50) plus sessions (18) of a worker; in a short run they look like growth."""
_THREADS_GROWTH_MAX = 3


def resources_stay_flat(e: Evidence) -> Iterator[str]:
    """No session idles in a transaction; memory, descriptors and threads stay flat; logs hold no secret."""
    for seen in e.idle_in_transaction:
        if seen["seconds"] > 1:
            yield f"a session of {seen['usename']} idled in a transaction for {seen['seconds']:.1f} s"
    for slope in slopes(e):
        fds_max = _FDS_GROWTH_MAX if slope["seconds"] >= _LONG_LIFE_SECONDS else _FDS_AT_ONCE
        most = {"rss": _RSS_GROWTH_MAX, "fds": fds_max, "threads": _THREADS_GROWTH_MAX}
        if any(slope[f"{name}_growth"] > growth_max for name, growth_max in most.items()):
            yield f"{slope['life']} grew: {slope}"
    for name, text in e.logs.items():
        for canary in (SECRET, PAYLOAD_CANARY):
            if canary in text:
                yield f"the log of {name} contains {canary}"


def slopes(e: Evidence) -> list[dict[str, Any]]:
    """Compare the second quarter of each long run with its last."""
    lives: dict[str, list[Sample]] = defaultdict(list)
    for sample in e.samples:
        if sample.rss:  # 0: the process is ending
            lives[sample.life].append(sample)
    found = []
    for name, samples in lives.items():
        settled = [sample for sample in samples if sample.at > samples[0].at + _WARM_UP_SECONDS]
        if not settled or settled[-1].at - settled[0].at < _LIFE_SECONDS:
            continue
        quarter = len(settled) // 4
        early, late = settled[quarter : 2 * quarter], settled[-quarter:]
        growth = {
            f"{field}_growth": statistics.median(getattr(s, field) for s in late)
            - statistics.median(getattr(s, field) for s in early)
            for field in ("rss", "fds", "threads")
        }
        minutes = (late[0].at - early[0].at) / 60
        found.append({
            "life": name, "seconds": round(settled[-1].at - samples[0].at), **growth,
            "rss_mb": round(late[-1].rss / 2**20, 1), "fds": late[-1].fds, "threads": late[-1].threads,
            "rss_mb_per_minute": round(growth["rss_growth"] / 2**20 / minutes, 2),
        })  # fmt: skip
    return found


_OVERLAP_SECONDS = 15.0


def workers_end_as_documented(e: Evidence) -> Iterator[str]:
    """A worker ends only by a signal, or with the documented code while a dependency is missing."""
    for life in e.lives:
        log = e.logs[life.title]
        reported = [line for line in log.splitlines() if '"loop_died"' in line or '"contract_broken"' in line]
        why = "\n".join(reported)
        if not _fine(life, log, why, e.faults):
            at = datetime.fromtimestamp(life.ended, UTC).time().isoformat("seconds")
            sent = life.signal or "no signal"
            last = "".join(log.splitlines()[-1:])
            yield f"{life.title} ended at {at} with {life.code} after {sent}: {why or last}"


def _fine(life: Life, log: str, why: str, faults: Sequence[Injected]) -> bool:
    if life.signal == "SIGKILL":
        return life.code == -9
    if life.signal == "SIGTERM":
        others = [fault for fault in faults if fault.kind != "worker.stop"]
        hurt = any(f.began < life.ended and f.ended > life.signalled_at - 2 for f in others)
        unborn = life.code == -15 and not log
        return life.code == 0 or (life.code == 5 and hurt) or unborn
    during = {f.kind for f in faults if f.began < life.ended < f.ended + _OVERLAP_SECONDS}
    at_start = "" if "worker_started" in log else why
    missing = "does not exist" in at_start or "not found" in at_start
    forbidden = "broker.forbid" in during and "permission" in at_start
    return life.code == 3 and ((missing and "broker.delete_consumer" in during) or forbidden)


SERIES = {
    "duplicates dropped by the stream": "sea_mq_outbox_duplicates_total",
    "expired leases reaped": "sea_mq_outbox_leases_reaped_total",
    "late settlements of events refused": 'sea_mq_leases_lost_total{side="outbox"}',
    "late settlements of messages refused": 'sea_mq_leases_lost_total{side="inbox"}',
    "events released without an attempt": "sea_mq_outbox_released_total",
    "duplicates acknowledged without a call": "sea_mq_inbox_skipped_total",
    "circuit breakers opened": "sea_mq_circuit_opened_total",
}


def sometimes(e: Evidence) -> dict[str, int]:
    """Count the rare paths that a soak must have taken."""
    totals = Counter[str]()
    for life in e.lives:
        for series, value in life.metrics.items():
            if series.startswith("sea_mq_"):
                for name in {series, series.partition("{")[0]}:
                    totals[name] += int(value)
    fates = Counter(transaction.fate for transaction in e.ledger.values())
    return {
        **{text: totals[name] for text, name in SERIES.items()},
        "409 responses": sum(call.status == 409 for call in e.heard),
        "commits with an unknown outcome": fates[Fate.UNKNOWN],
        "transactions rolled back": fates[Fate.ROLLED_BACK],
        "replays delivered": e.replays.total(),
        "redrives done": sum(row["action"] == "redrive" for row in e.again),
        "exhausted messages": sum(m.headers["Dlq-Reason"] == "EXHAUSTED" for m in e.letters),
    }


def rare_paths_were_reached(e: Evidence) -> Iterator[str]:
    """Each path that only faults cause was taken at least once."""
    return (f"never: {what}" for what, count in sometimes(e).items() if not count)


CHECKS: Mapping[str, Callable[[Evidence], Iterator[str]]] = {
    "A1": outbox_is_what_was_committed,
    "A2": states_are_as_planned,
    "A3": stream_has_each_once,
    "A4": contents_are_unaltered,
    "A5": keys_keep_their_order,
    "A6": every_message_is_settled,
    "A7": effects_happen_once,
    "A8": letters_are_right,
    "A9": resources_stay_flat,
    "A10": workers_end_as_documented,
}
LONG_CHECKS = {"A11": rare_paths_were_reached}
"""What only a long soak must reach."""


class Check(NamedTuple):
    """One check's verdict."""

    name: str
    title: str
    offenders: tuple[str, ...]


def judge(e: Evidence, checks: Mapping[str, Callable[[Evidence], Iterator[str]]] = CHECKS) -> list[Check]:
    """Run checks."""
    return [
        Check(name, (check.__doc__ or "").splitlines()[0], tuple(check(e))) for name, check in checks.items()
    ]
