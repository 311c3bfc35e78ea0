"""NATS as doctor sees it: streams and consumers by one connection, and what is wrong of them.

A part that does not answer hides no other part.
"""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from sea_mq_worker.doctor.findings import APPLY, Finding, error, format_duration, info, warning
from sea_mq_worker.errors import BrokerUnavailableError, ContractError, UnavailableError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo, find_consumer, find_stream, streams_taking
from sea_mq_worker.operators.definitions import (
    AWAITED,
    Definition,
    Difference,
    differences,
    label,
    wanted_topology,
)
from sea_mq_worker.operators.streams import consumer_state, open_broker
from sea_mq_worker.outbox.maintenance import RECONCILE, find_loss
from sea_mq_worker.postgres.pool import quoted_schema
from sea_mq_worker.settings import Settings

_T = TypeVar("_T")
_FULL = 0.8
_ACK_WAITS = 2
_CLOCK_SECONDS = 60.0
"""Tolerated difference of two clocks, in seconds (POL-047-002)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """Streams and consumers that exist, and how they differ from their files.

    ``oldest_seconds``: age of a consumer's oldest undelivered message, where it has one that can be read.
    ``silent``: streams and consumers that did not answer or refused; their existence is unknown.
    """

    differences: Sequence[Difference] = ()
    defined: frozenset[str] = frozenset()
    streams: Mapping[str, StreamInfo]
    consumers: Mapping[tuple[str, str], ConsumerInfo]
    oldest_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    takers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    version: str = ""
    silent: frozenset[str] = frozenset()


async def read_broker(s: Settings, rows: Mapping[str, Any], found: list[Finding]) -> BrokerFacts | None:
    """Read everything once; append findings about refused or missing answers to ``found``."""
    try:
        async with open_broker(s) as connection:
            seen = await _facts(connection, s, found)
            if "acknowledged" in rows and s.stream in seen.streams:
                found += await _lost(connection, rows, s.stream)
            return seen
    except UnavailableError as failed:
        found.append(_unreachable("NATS", failed))
    except ContractError as refused:
        found.append(_refuses("NATS", refused))
    return None


async def _facts(connection: NatsConnection, s: Settings, found: list[Finding]) -> BrokerFacts:
    silent: set[str] = set()

    async def ask(where: str, question: Awaitable[_T]) -> _T | None:
        try:
            return await question
        except BrokerUnavailableError as failed:
            if not connection.is_connected:
                raise
            found.append(_unreachable(where, failed))
        except ContractError as refused:
            found.append(_refuses(where, refused))
        silent.add(where)
        return None

    wanted: Sequence[Definition] = ()
    different: list[Difference] = []
    try:
        wanted = wanted_topology(s)
    except ContractError as wrong:
        found.append(_topology("SEA_MQ_STREAMS_FOLDER", str(wrong), command=""))
    own = {one.stream for one in wanted if not one.durable}
    takers = {}
    for subject in _own_subjects(s).values():
        try:  # JetStream's leader answers: no answer means an outage
            takers[subject] = await streams_taking(connection, subject)
        except ContractError as refused:
            found.append(_refuses("NATS", refused))
    names = {s.stream, s.dlq_stream, s.advisory_stream, *(consumer.stream for consumer in s.consumers)}
    streams = [await ask(f"stream {name}", find_stream(connection, name)) for name in sorted(names)]
    durables = [(c.stream, c.durable) for c in s.consumers if f"stream {c.stream}" not in silent]
    consumers = [await ask(label(*d), find_consumer(connection, *d)) for d in durables]
    states = [await consumer_state(connection, seen) for seen in consumers if seen]
    for one in wanted:
        if not {one.label, label(one.stream)} & silent:
            different += await ask(one.label, differences(connection, one, own=own)) or ()
    return BrokerFacts(
        differences=different,
        defined=frozenset(one.label for one in wanted),
        streams={stream.name: stream for stream in streams if stream},
        consumers={(seen.stream, seen.name): seen for seen in consumers if seen},
        oldest_seconds={
            (one.stream, one.durable): one.oldest_seconds for one in states if one.oldest_seconds
        },
        takers=takers,
        version=".".join(map(str, connection.server_version)),
        silent=frozenset(silent),
    )


async def _lost(connection: NatsConnection, rows: Mapping[str, Any], stream: str) -> list[Finding]:
    """Check that the stream still has the events of PUBLISHED rows; needs the right to read the stream."""
    try:
        what = await find_loss(connection, stream, rows["acknowledged"])
    except ContractError:
        return []
    if not what:
        return []
    lost = error(
        "events_lost", f"stream {stream}", what,
        why="the stream was recreated, restored or purged: consumers never receive events of PUBLISHED rows",
        fix="run `pipeline reconcile --requeue`, or prune the rows",
        command=RECONCILE,
    )  # fmt: skip
    return [lost]


def _unreachable(where: str, failed: Exception) -> Finding:
    return error(
        "broker_unreachable", where, str(failed),
        why="nothing is published or received",
        fix="start NATS with JetStream, or the servers of the stream; or correct SEA_MQ_NATS_URL",
    )  # fmt: skip


def _refuses(where: str, refused: Exception) -> Finding:
    return error(
        "broker_refuses", where, str(refused),
        why="the worker refuses to start, or doctor could not check this part",
        fix="correct SEA_MQ_NATS_*, or grant the missing permission as in deploy/nats-accounts.conf",
    )  # fmt: skip


def _topology(where: str, what: str, *, command: str = APPLY) -> Finding:
    return error(
        "topology_differs", where, what,
        why="it is missing, or does not behave as defined: the worker may refuse to start",
        fix="apply the definitions, or correct them, SEA_MQ_STREAMS_FOLDER or the setting that names it",
        command=command,
    )  # fmt: skip


def broker_findings(facts: BrokerFacts, s: Settings) -> Iterator[Finding]:
    """Judge streams and consumers by themselves."""
    yield from _topology_findings(facts, s)
    yield from _stream_findings(facts, s)
    yield from consumer_findings(facts, s)


def _topology_findings(facts: BrokerFacts, s: Settings) -> Iterator[Finding]:
    """Compare with the definitions, and name what the settings need and nobody defines."""
    for difference in facts.differences:
        fix = "" if difference.field == AWAITED else APPLY
        yield _topology(difference.name, difference.text, command=fix)
    needed = [f"stream {name}" for name in (s.stream, s.dlq_stream, s.advisory_stream)]
    needed += [
        label(one.stream, one.durable) for one in s.consumers if f"stream {one.stream}" not in facts.silent
    ]
    there = {f"stream {name}" for name in facts.streams} | {label(*known) for known in facts.consumers}
    for where in needed:
        if where not in there | facts.defined | facts.silent:
            yield _topology(where, "it exists neither on the server nor as a file", command="")


def _stream_findings(facts: BrokerFacts, s: Settings) -> Iterator[Finding]:
    """Judge the streams that the worker publishes to, consumes or reads."""
    for name, subject in _own_subjects(s).items():
        if stream := facts.streams.get(name):
            yield from _own_stream(stream, subject, facts)
    for stream in facts.streams.values():
        where = f"stream {stream.name}"
        if stream.cluster and (stream.replicas == 1 or stream.offline or not stream.leader):
            offline = f"offline: {', '.join(stream.offline) or 'the leader'}"
            alone = stream.replicas == 1 and stream.leader and not stream.offline
            yield warning(
                "stream_replicas", where, "num_replicas is 1 in a cluster" if alone else offline,
                why="the next server that fails stops the stream, or loses it",
                fix="restart the server, move the replica, or set SEA_MQ_STREAM_REPLICAS to 3 and apply",
            )  # fmt: skip
        average = stream.size_bytes / max(stream.messages, 1)
        for limit, used, more in (
            ("max_bytes", stream.size_bytes, average),
            ("max_msgs", stream.messages, 1),
        ):
            most = stream.config.get(limit, -1)
            if stream.config.get("discard") != "new" or most <= 0 or used < _FULL * most:
                continue
            if used + more > most:
                yield error(
                    "stream_full", where, f"{used} of {most} ({limit}), no message more",
                    why="it refuses messages: events wait, and dead letters hold messages up",
                    fix="raise max_bytes or max_msgs and apply, or remove unneeded messages",
                )  # fmt: skip
            else:
                yield warning(
                    "stream_nearly_full", where, f"{used} of {most} ({limit})",
                    why="a full stream refuses messages",
                    fix="raise max_bytes or max_msgs and apply, or remove unneeded messages",
                )  # fmt: skip
    if single := [stream.name for stream in facts.streams.values() if stream.replicas == 1]:
        yield info(
            "sync_unknown", f"streams {', '.join(single)}", "num_replicas is 1",
            why="nats-server may flush to disk every two minutes only (it does not report sync_interval): "
            "a crash loses messages acknowledged since",
            fix="set `sync_interval: always` in nats-server's configuration and "
            "SEA_MQ_OUTBOX_PUBLISH_MODE to `atomic`, or set SEA_MQ_STREAM_REPLICAS to 3",
        )  # fmt: skip
    letters = facts.streams.get(s.dlq_stream)
    if letters and letters.messages:
        yield info(
            "dead_letters", f"stream {letters.name}", f"dead letters: {letters.messages}",
            why="their messages had no effect",
            fix="check their reasons, then run `dlq redrive`",
            command="python -m sea_mq_worker dlq list",
        )  # fmt: skip
    if stream := facts.streams.get(s.stream):
        window, timeout = stream.duplicate_window_seconds, s.outbox_publish_timeout_seconds
        if window <= timeout:
            yield error(
                "window_short", f"stream {stream.name}",
                f"duplicate_window is {window:g} s, the publish time-out {timeout:g} s",
                why="the worker refuses to start: a publish that is repeated could be stored twice",
                fix="raise duplicate_window and apply, or lower SEA_MQ_OUTBOX_PUBLISH_TIMEOUT_SECONDS",
                command=APPLY,
            )  # fmt: skip


def _own_stream(stream: StreamInfo, subject: str, facts: BrokerFacts) -> Iterator[Finding]:
    where, config = f"stream {stream.name}", stream.config
    storage = f"storage {config.get('storage')}, persist_mode {config.get('persist_mode') or 'default'}"
    retention = config.get("retention")
    if stream.volatile or retention != "limits":
        yield error(
            "stream_volatile", where, storage if stream.volatile else f"retention {retention}",
            why="it does not keep what it acknowledged: the server's process ends, or one reader has read it",
            fix="recreate the stream with storage file, retention limits and without persist_mode async",
        )  # fmt: skip
    drops = [] if config.get("discard") == "new" else [f"discard is {config.get('discard')}"]
    if stream.replaces and not drops and not config.get("discard_new_per_subject"):
        drops.append(f"max_msgs_per_subject is {config['max_msgs_per_subject']}")
    if drops:
        yield warning(
            "stream_discards_old", where, ", ".join(drops),
            why="a full stream drops events or dead letters before all readers have them",
            fix="set discard to new, max_msgs_per_subject to -1, and apply",
            command=APPLY,
        )  # fmt: skip
    others = [name for name in facts.takers.get(subject, ()) if name != stream.name]
    if not stream.takes(subject) or others:
        takes = f"it takes {', '.join(stream.subjects) or 'nothing'}, the worker publishes {subject}"
        yield error(
            "subjects_uncovered", where,
            takes + (f"; {', '.join(others)} takes some, too" if others else ""),
            why="events or dead letters of the other subjects fail",
            fix="add the subjects to the stream and apply; give each context its own subjects",
            command=APPLY,
        )  # fmt: skip


def consumer_findings(facts: BrokerFacts, s: Settings) -> Iterator[Finding]:
    """Judge the durables of SEA_MQ_CONSUMERS."""
    for (name, durable), consumer in facts.consumers.items():
        where, remove = label(name, durable), f"nats consumer rm {name} {durable}"
        unfit = [consumer.unfit] if consumer.unfit else []
        if s.handler_timeout_seconds >= consumer.ack_wait_seconds:
            waits = "the first backoff" if consumer.config.get("backoff") else "ack_wait"
            unfit.append(
                f"{waits} is {consumer.ack_wait_seconds:g} s, a call may take {s.handler_timeout_seconds:g} s"
            )
        if 0 < consumer.max_deliver <= s.inbox_attempts_max:
            unfit.append(f"max_deliver is {consumer.max_deliver}, inbox_attempts_max {s.inbox_attempts_max}")
        if unfit:
            yield error(
                "consumer_unfit", where, "; ".join(unfit),
                why="the worker refuses to start, or receives nothing from it",
                fix="correct SEA_MQ_HANDLER_TIMEOUT_SECONDS or SEA_MQ_INBOX_ATTEMPTS_MAX, and apply, "
                "deleting it first if the server cannot change it",
                command=remove if consumer.unfit else APPLY,
            )  # fmt: skip
        stream = facts.streams.get(name)
        takes_all = stream and all(map(consumer.wants, stream.subjects))
        if stream and takes_all and consumer.delivered_seq + 1 < stream.first_seq:
            what = f"the consumer has got messages up to {consumer.delivered_seq}, the stream begins at "
            yield _missed(where, f"{what}{stream.first_seq}")

        overdue = consumer.now - timedelta(seconds=_ACK_WAITS * consumer.ack_wait_seconds)
        oldest = facts.oldest_seconds.get((name, durable), 0.0)
        most, out = consumer.max_ack_pending, consumer.ack_pending
        stalled = ""
        if 0 < most <= out and max(consumer.delivered_at, consumer.ack_floor_at) < overdue:
            stalled = f"{out} of {most} messages are in flight for two ack_waits"
        elif consumer.pending and not consumer.waiting and consumer.delivered_at < overdue:
            stalled = f"{consumer.pending} messages wait, and no worker has pulled for two ack_waits"
        if consumer.is_paused:
            yield warning(
                "consumer_paused", where, f"until {consumer.pause_until}",
                why="nothing is received until the pause ends",
                fix="resume the consumer",
                command=f"nats consumer resume {name} {durable}",
            )  # fmt: skip
        elif stalled:
            yield error(
                "consumer_unattended", where, stalled,
                why="nothing more is received",
                fix="start the worker, or check its /readyz and the handler",
            )  # fmt: skip
        elif oldest > _ACK_WAITS * consumer.ack_wait_seconds:
            yield warning(
                "consumer_behind", where,
                f"{consumer.pending} messages wait, the oldest for {format_duration(oldest)}",
                why="messages are late",
                fix="make the handler faster, raise SEA_MQ_HANDLER_CONCURRENCY and max_ack_pending, or run "
                "more workers",
            )  # fmt: skip


def missed_findings(rows: Mapping[str, Any], facts: BrokerFacts | None) -> Iterator[Finding]:
    """Report missed messages that a worker recorded, until an operator acknowledges them, and lost ones."""
    for gone in rows.get("missed", ()):
        latest = f"some of {gone.first_seq} to {gone.last_seq}, {format_duration(gone.seconds)} ago"
        table = f"{quoted_schema(rows['identity']['schema'])}.sea_mq_standings"
        consumer = f"stream = '{gone.stream}' AND durable = '{gone.durable}'"
        yield _missed(
            label(gone.stream, gone.durable),
            f"{gone.count} in all; the latest are {latest}",
            sql="-- only acknowledges: ends this finding and the page's first line, brings nothing back\n"
            f"UPDATE {table} SET missed = 0, missed_at = NULL WHERE {consumer};",
        )
    for waiting in rows.get("inbox", ()):
        stream, first = facts and facts.streams.get(waiting["stream"]), waiting["first_seq"]
        if stream and first is not None and first < stream.first_seq:
            what = f"message {first} waits in the inbox, the stream begins at {stream.first_seq}"
            yield _missed(f"stream {stream.name}", what, command="python -m sea_mq_worker inbox list")


def clock_findings(database: float | None, facts: BrokerFacts | None, s: Settings) -> Iterator[Finding]:
    """Compare the clocks of PostgreSQL, NATS and this machine."""
    stream = facts.streams.get(s.stream) if facts else None
    differ = []
    if database is not None:
        differ.append(("PostgreSQL's clock", database, "this machine's"))
        if stream:
            differ.append(("NATS's clock", stream.clock_offset_seconds - database, "PostgreSQL's"))
    for where, offset, than in differ:
        if abs(offset) > _CLOCK_SECONDS:
            yield warning(
                "clocks_differ", where, f"{offset:+.0f} s against {than}",
                why="events fail as FUTURE_EVENT or are late; `prune` and `replay` compare the clocks",
                fix="synchronize all machines with the same time server",
            )  # fmt: skip


def _missed(where: str, what: str, *, command: str = "", sql: str = "") -> Finding:
    return error(
        "messages_missed", where, what,
        why="limits, a purge or a lost disk took messages from the stream before they had an effect",
        fix="have their sender send them again with the same ids, and raise the stream's limits",
        command=command,
        sql=sql,
    )  # fmt: skip


def _own_subjects(s: Settings) -> Mapping[str, str]:
    """Return the subjects that the worker publishes, by the stream that must take them."""
    return {s.stream: f"{s.context}.event.>", s.dlq_stream: f"{s.context}.dlq.>"}
