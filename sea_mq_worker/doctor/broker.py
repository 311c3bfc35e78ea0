"""Facts about NATS, read by one connection; a part that does not answer hides no other part."""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, assert_never

from sea_mq_worker.doctor.findings import APPLY, REFUSES, Finding, Kind, error, format_duration, note, warning
from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.nats.info import ConsumerInfo, StreamInfo, find_consumer, find_stream, streams_taking
from sea_mq_worker.nats.subjects import covers
from sea_mq_worker.operators import definitions as sync_definitions
from sea_mq_worker.operators.definitions import (
    AWAITED,
    ConsumerDefinition,
    Definition,
    Difference,
    StreamDefinition,
)
from sea_mq_worker.operators.inspection import consumer_state
from sea_mq_worker.operators.streams import wanted_topology
from sea_mq_worker.settings import Settings

# --- Catalog of the findings of NATS, and of NATS with PostgreSQL.


class BrokerKind(Kind):
    """Findings from NATS alone."""

    BROKER_UNREACHABLE = error(
        "NATS or its JetStream does not answer, or has no leader",
        "nothing is published or received",
        "start NATS with JetStream, or correct SEA_MQ_NATS_URL",
    )
    BROKER_REFUSES = error(
        "NATS refuses the login, TLS or a request",
        "the worker refuses to start, or doctor could not check this part",
        "correct SEA_MQ_NATS_*, or grant the missing permission as in deploy/nats-accounts.conf",
    )
    STREAM_UNAVAILABLE = error(
        "a stream or consumer does not answer: its servers are down, or it has no leader",
        "nothing is published or received",
        "start its servers; they elect a leader within seconds",
    )
    DEFINITIONS_INVALID = error(
        "a definition file of streams and consumers is invalid",
        "`streams apply` does nothing, and doctor compared no streams",
        "correct or remove the named file, or correct SEA_MQ_STREAMS_FOLDER",
    )
    TOPOLOGY_DIFFERS = error(
        "a stream or consumer is missing or differs from its definition",
        "it does not behave as defined",
        "apply the definitions, or correct them",
    )
    STREAM_MISSING = error(
        "a setting's stream exists neither on the server nor as a file",
        REFUSES,
        "add its file to SEA_MQ_STREAMS_FOLDER and apply, or correct the setting",
    )
    STREAM_VOLATILE = error(
        "a stream acknowledges before it stores: storage memory, or persist_mode async",
        "acknowledged messages may be lost with the server's process",
        "recreate the stream with storage file and without persist_mode async",
    )
    STREAM_UNUSABLE = error(
        "a stream is sealed or acknowledges nothing",
        "nothing is published",
        "apply the files; delete a sealed stream first, or name another stream",
    )
    SUBJECTS_UNCOVERED = error(
        "the stream does not take every subject of the worker",
        "the stream refuses events or dead letters of the other subjects",
        "add the subjects to the stream and apply",
    )
    SUBJECTS_ELSEWHERE = error(
        "another stream takes subjects of this worker",
        "the events fail",
        "give each context its own subjects",
    )
    STREAM_SINGLE_COPY = warning(
        "a stream of a cluster has one copy",
        "the stream is lost with its server's disk",
        "set SEA_MQ_STREAM_REPLICAS to 3, or remove it, and apply",
    )
    STREAM_REPLICA_OFFLINE = warning(
        "a replica of a stream is offline or has no leader",
        "the next server that fails stops the stream",
        "restart the server, or move the replica",
    )
    SYNC_UNKNOWN = note(
        "streams have one copy, and the server does not report its sync_interval",
        (
            "by default nats-server flushes to disk every two minutes: a crash of its machine loses messages "
            "acknowledged since"
        ),
        (
            "set `sync_interval: always` in nats-server's configuration and SEA_MQ_OUTBOX_PUBLISH_MODE to "
            "`atomic`, or set SEA_MQ_STREAM_REPLICAS to 3"
        ),
    )
    STREAM_FULL = error(
        "a stream is full, with discard new",
        "events wait in the outbox, dead letters hold their messages up",
        "raise max_bytes or max_msgs and apply, or remove unneeded messages",
    )
    STREAM_NEARLY_FULL = warning(
        "a stream is 80 % full",
        "a full stream refuses new messages",
        "raise max_bytes or max_msgs, or remove unneeded messages",
    )
    STREAM_DISCARDS_OLD = warning(
        "a stream has discard old, or max_msgs_per_subject",
        "a full stream drops its oldest events or dead letters unread",
        "set discard to new and max_msgs_per_subject to -1, and apply",
    )
    STREAM_DROPS_READ = error(
        "a stream's retention is not limits",
        "it drops read messages before all readers have them",
        "recreate the stream with retention limits",
    )
    DEAD_LETTERS_SHORT_LIVED = warning(
        "the stream keeps dead letters for less than a week",
        "dead letters may expire before somebody looks",
        "raise max_age of the stream and apply",
    )
    DEAD_LETTERS = note(
        "the stream has dead letters",
        "their messages had no effect",
        "check their reasons, then run `dlq redrive`",
    )
    CONSUMER_MISSING = error(
        "a consumer of SEA_MQ_CONSUMERS exists neither on the server nor as a file",
        "nothing is received",
        "add its file to SEA_MQ_STREAMS_FOLDER and apply, or correct SEA_MQ_CONSUMERS",
    )
    CONSUMER_UNFIT = error(
        (
            "a consumer pushes, does not use explicit acknowledgement, omits bodies, has priority groups, or "
            "max_expires below 100 ms"
        ),
        "nothing is received from it",
        (
            "delete it and apply its file with ack_policy explicit, without deliver_subject, headers_only, "
            "priority_policy and max_expires"
        ),
    )
    CONSUMER_PASSING = warning(
        "a consumer has inactive_threshold or mem_storage set",
        "it ends with its worker or server; then messages are redelivered or skipped, by its deliver_policy",
        "set inactive_threshold to 0 in its file and apply; for mem_storage delete it first",
    )
    CONSUMER_FILTER = error(
        "a consumer's filter matches no subject of its stream",
        "nothing is received",
        "correct filter_subject",
    )
    MESSAGES_MISSED = error(
        "messages never reach a consumer: limits, a purge or a lost disk took them, or it begins behind them",
        "the messages have no effect",
        "have their sender replay them, and raise the stream's limits",
    )
    CONSUMER_PAUSED = warning(
        "a consumer is paused", "nothing is received until the pause ends", "resume the consumer"
    )
    CONSUMER_STUCK = warning(
        "max_ack_pending messages are in flight, and none was delivered or acknowledged for two ack_waits",
        "the consumer delivers no more messages",
        "start the worker, or check its /readyz and the handler",
    )
    CONSUMER_BEHIND = warning(
        "the oldest message that waits for its delivery is older than two ack_waits",
        "messages are late",
        "make the handler faster, raise SEA_MQ_HANDLER_CONCURRENCY and max_ack_pending, or run more workers",
    )
    CONSUMER_UNATTENDED = warning(
        "messages wait, and no worker has pulled for two ack_waits",
        "the messages are late",
        "start the worker, or read its /readyz for the reason",
    )


class PairKind(Kind):
    """Findings from a comparison of NATS with PostgreSQL or with the settings."""

    WINDOW_BELOW_PUBLISH = error(
        "duplicate_window is not longer than the publish time-out",
        REFUSES,
        "raise duplicate_window and apply, or lower SEA_MQ_OUTBOX_PUBLISH_TIMEOUT_SECONDS",
    )
    WINDOW_BELOW_LEASE = warning(
        "duplicate_window is shorter than lease and publish time-out together",
        "after a crash the worker searches the stream before it sends again",
        "raise duplicate_window and apply, or lower SEA_MQ_OUTBOX_LEASE_SECONDS",
    )
    WINDOW_BELOW_BACKOFF = warning(
        "duplicate_window is shorter than longest backoff, lease and publish time-out together",
        "after a long backoff the worker searches the stream before it sends again",
        "raise duplicate_window and apply, or lower SEA_MQ_OUTBOX_BACKOFF_MAX_SECONDS",
    )
    WINDOW_DELAYS_REPLAY = note(
        "duplicate_window is longer than a day",
        ("a replay waits until the window has passed, and the server needs about 105 bytes of memory per id"),
        "lower duplicate_window and apply",
    )
    ACK_WAIT_SHORT = error(
        "ack_wait, or the first backoff in its place, is not longer than the handler time-out",
        f"{REFUSES}, or messages are redelivered while the handler works on them",
        "raise ack_wait, remove backoff and apply, or lower SEA_MQ_HANDLER_TIMEOUT_SECONDS",
    )
    MAX_DELIVER_LOW = error(
        "max_deliver is not above SEA_MQ_INBOX_ATTEMPTS_MAX",
        f"{REFUSES}: the server would give messages up first",
        "raise max_deliver and apply, or lower SEA_MQ_INBOX_ATTEMPTS_MAX",
    )
    MAX_ACK_PENDING_LOW = warning(
        "max_ack_pending is below SEA_MQ_HANDLER_CONCURRENCY",
        "fewer calls run than the setting allows",
        "raise max_ack_pending and apply, or lower SEA_MQ_HANDLER_CONCURRENCY",
    )
    RETRIES_OUTLIVE_STREAM = warning(
        "the attempts of a message can take longer than its stream keeps it",
        "a message that keeps failing expires before the worker dead-letters it",
        "raise max_age of the stream, or lower SEA_MQ_INBOX_ATTEMPTS_MAX or _BACKOFF_MAX_SECONDS",
    )
    BROKER_CLOCK = warning(
        "the clocks of NATS and PostgreSQL differ by more than a minute",
        "`prune`, `replay` and the search for an ID compare times of both clocks",
        "synchronize both machines with the same time server",
    )
    EVENT_TOO_LARGE = warning(
        "a waiting event is larger than its stream or server accepts",
        "the event becomes DEAD",
        "raise max_msg_size or max_payload, or publish a reference",
    )
    EVENTS_LOST = error(
        "the stream lacks events of PUBLISHED rows: it was recreated, restored, failed over or purged",
        "consumers never receive them; `pipeline reconcile` lists each",
        "run `pipeline reconcile --requeue`, or prune the rows",
    )
    DELIVERIES_UNRECORDED = note(
        (
            "more messages are in flight than are unsettled in the inbox, and none was delivered for two "
            "SEA_MQ_DATABASE_TIMEOUT_SECONDS"
        ),
        "no worker has the others: the server delivers them again after ack_wait, or the delay of their NAK",
        (
            "wait for ack_wait while the worker runs; `nats stream get STREAM SEQUENCE` shows a message, "
            "`inbox list` those that a worker has"
        ),
    )
    MESSAGE_LOST = warning(
        "a message without an effect is no longer in its stream",
        "it has no effect",
        "have its sender send it again with the same id",
    )
    INBOX_PRUNED_EARLY = warning(
        "`prune` deleted inbox rows whose messages a stream can still deliver",
        "a redelivered message has its effect again",
        "run `prune` without --deliverable",
    )


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """Streams and consumers that exist, and how they differ from their files.

    ``oldest_seconds``: age of a consumer's oldest undelivered message, where it has one that can be read.
    ``silent``: streams and consumers that did not answer or refused; their existence is unknown.
    """

    differences: Sequence[Difference]
    defined: frozenset[str]
    streams: Mapping[str, StreamInfo]
    consumers: Mapping[tuple[str, str], ConsumerInfo]
    oldest_seconds: Mapping[tuple[str, str], float]
    takers: Mapping[str, Sequence[str]]
    max_payload: int
    version: str
    silent: frozenset[str]


async def broker_facts(connection: NatsConnection, s: Settings, found: list[Finding]) -> BrokerFacts:
    """Read everything once; append findings about refused or missing answers to ``found``.

    Raises:
        BrokerUnavailableError: JetStream itself does not answer, or the connection is lost.
    """
    wanted = _definitions(s, found)
    ask = _Requests(connection, found)
    taken = {subject: await ask.takers(subject) for subject in own_subjects(s).values()}
    names = {s.stream, s.dlq_stream, s.advisory_stream, *(consumer.stream for consumer in s.consumers)}
    streams = [await ask(stream_label(name), find_stream(connection, name)) for name in sorted(names)]
    durables = [(c.stream, c.durable) for c in s.consumers if stream_label(c.stream) not in ask.silent]
    consumers = [await ask(consumer_label(*d), find_consumer(connection, *d)) for d in durables]
    states = [await consumer_state(connection, seen) for seen in consumers if seen]
    differences = [await ask.differences(definition, wanted) for definition in wanted]
    return BrokerFacts(
        differences=[difference for several in differences for difference in several],
        defined=frozenset(_label(definition) for definition in wanted),
        streams={stream.name: stream for stream in streams if stream},
        consumers={(seen.stream, seen.name): seen for seen in consumers if seen},
        oldest_seconds={
            (one.stream, one.durable): one.oldest_seconds for one in states if one.oldest_seconds
        },
        takers=taken,
        max_payload=connection.client.max_payload,
        version=".".join(map(str, connection.server_version)),
        silent=frozenset(ask.silent),
    )


def own_subjects(s: Settings) -> Mapping[str, str]:
    """Return the subjects that the worker publishes, by the stream that must take them."""
    return {s.stream: f"{s.context}.event.>", s.dlq_stream: f"{s.context}.dlq.>"}


def stream_label(name: str) -> str:
    return f"stream {name}"


def consumer_label(stream: str, durable: str) -> str:
    return f"consumer {durable} of stream {stream}"


class _Requests:
    """Requests that survive a missing answer: ``silent`` gets its name, ``found`` the reason."""

    def __init__(self, connection: NatsConnection, found: list[Finding]) -> None:
        self.silent: set[str] = set()
        self._connection = connection
        self._found = found

    async def __call__(self, where: str, question: Awaitable[_T]) -> _T | None:
        try:
            return await question
        except BrokerUnavailableError as error:
            if not self._connection.is_connected:
                raise
            self._found.append(BrokerKind.STREAM_UNAVAILABLE.finding(where, str(error)))
        except ContractError as error:
            self._found.append(BrokerKind.BROKER_REFUSES.finding(where, str(error)))
        self.silent.add(where)
        return None

    async def takers(self, subject: str) -> Sequence[str]:
        """Name the streams that take ``subject``; JetStream's leader answers, no answer means an outage."""
        try:
            return await streams_taking(self._connection, subject)
        except ContractError as error:
            self._found.append(BrokerKind.BROKER_REFUSES.finding("NATS", str(error)))
            return ()

    async def differences(self, definition: Definition, wanted: Sequence[Definition]) -> Sequence[Difference]:
        """Compare with a file, unless it did not answer before."""
        where = _label(definition)
        if {where, stream_label(_stream(definition))} & self.silent:
            return ()
        return await self(where, sync_definitions.check(self._connection, [definition], among=wanted)) or ()


def _definitions(s: Settings, found: list[Finding]) -> Sequence[Definition]:
    try:
        return wanted_topology(s)
    except ContractError as error:
        found.append(BrokerKind.DEFINITIONS_INVALID.finding("SEA_MQ_STREAMS_FOLDER", str(error)))
        return ()


def _label(definition: Definition) -> str:
    match definition:
        case StreamDefinition():
            return stream_label(definition.name)
        case ConsumerDefinition():
            return consumer_label(definition.stream, definition.name)
        case _:
            assert_never(definition)


def _stream(definition: Definition) -> str:
    return definition.name if isinstance(definition, StreamDefinition) else definition.stream


# --- Findings about streams.

_FULL = 0.8
_WEEK_SECONDS = 7 * 86_400.0


def stream_findings(facts: BrokerFacts, s: Settings) -> Iterator[Finding]:
    """Judge the streams that the worker publishes to, consumes or reads."""
    for difference in facts.differences:
        fix = "" if difference.field == AWAITED else APPLY
        yield BrokerKind.TOPOLOGY_DIFFERS.finding(difference.name, difference.text, command=fix)
    for name in (s.stream, s.dlq_stream, s.advisory_stream):
        where = stream_label(name)
        if name not in facts.streams and where not in facts.defined | facts.silent:
            yield BrokerKind.STREAM_MISSING.finding(where, "it does not exist")
    for name, subject in own_subjects(s).items():
        if stream := facts.streams.get(name):
            yield from _own(stream, subject, facts)
    for stream in facts.streams.values():
        yield from _kept(stream)
    single = [stream.name for stream in facts.streams.values() if stream.replicas == 1]
    if single:
        yield BrokerKind.SYNC_UNKNOWN.finding(f"streams {', '.join(single)}", "num_replicas is 1")
    yield from _dead_letters(facts.streams, s)


def _own(stream: StreamInfo, subject: str, facts: BrokerFacts) -> Iterator[Finding]:
    where = stream_label(stream.name)
    config = stream.config
    if stream.volatile:
        what = f"storage {config.get('storage')}, persist_mode {config.get('persist_mode') or 'default'}"
        yield BrokerKind.STREAM_VOLATILE.finding(where, what)
    if config.get("sealed") or config.get("no_ack"):
        what = "it is sealed" if config.get("sealed") else "it acknowledges nothing (no_ack)"
        yield BrokerKind.STREAM_UNUSABLE.finding(where, what, command=APPLY)
    if config.get("discard") != "new":
        yield BrokerKind.STREAM_DISCARDS_OLD.finding(where, "discard is old", command=APPLY)
    elif stream.replaces and not config.get("discard_new_per_subject"):
        what = f"max_msgs_per_subject is {config['max_msgs_per_subject']}"
        yield BrokerKind.STREAM_DISCARDS_OLD.finding(where, what, command=APPLY)
    if config.get("retention") != "limits":
        yield BrokerKind.STREAM_DROPS_READ.finding(where, f"retention is {config.get('retention')}")
    if not stream.takes(subject):
        what = f"it takes {', '.join(stream.subjects) or 'nothing'}, the worker publishes {subject}"
        yield BrokerKind.SUBJECTS_UNCOVERED.finding(where, what, command=APPLY)
    others = [name for name in facts.takers.get(subject, ()) if name != stream.name]
    if others:
        yield BrokerKind.SUBJECTS_ELSEWHERE.finding(where, f"{', '.join(others)} also takes {subject}")


def _kept(stream: StreamInfo) -> Iterator[Finding]:
    where = stream_label(stream.name)
    if stream.replicas == 1 and stream.cluster:
        yield BrokerKind.STREAM_SINGLE_COPY.finding(where, "num_replicas is 1 in a cluster")
    if stream.offline or (stream.cluster and not stream.leader):
        what = f"offline: {', '.join(stream.offline) or 'the leader'}"
        yield BrokerKind.STREAM_REPLICA_OFFLINE.finding(where, what)
    if stream.config.get("discard") == "new":
        yield from _filled(stream)


def _filled(stream: StreamInfo) -> Iterator[Finding]:
    """Count a stream as full once an average message exceeds its limit."""
    messages, size = stream.messages, stream.size_bytes
    average = size / max(messages, 1)
    for limit, used, more in (("max_bytes", size, average), ("max_msgs", messages, 1)):
        most = stream.config.get(limit, -1)
        if most <= 0 or used < _FULL * most:
            continue
        kind = BrokerKind.STREAM_FULL if used + more > most else BrokerKind.STREAM_NEARLY_FULL
        yield kind.finding(stream_label(stream.name), f"{used} of {most} ({limit})")


def _dead_letters(streams: Mapping[str, StreamInfo], s: Settings) -> Iterator[Finding]:
    stream = streams.get(s.dlq_stream)
    if stream is None:
        return
    where = stream_label(stream.name)
    if 0 < stream.max_age_seconds < _WEEK_SECONDS:
        what = f"max_age is {stream.max_age_seconds:g} s"
        yield BrokerKind.DEAD_LETTERS_SHORT_LIVED.finding(where, what, command=APPLY)
    if stream.messages:
        what = f"dead letters: {stream.messages}"
        yield BrokerKind.DEAD_LETTERS.finding(where, what, command="python -m sea_mq_worker dlq list")


# --- Findings about consumers.

_ACK_WAITS = 2


def consumer_findings(facts: BrokerFacts, s: Settings) -> Iterator[Finding]:
    """Judge the durables of SEA_MQ_CONSUMERS."""
    for wanted in s.consumers:
        where = consumer_label(wanted.stream, wanted.durable)
        consumer = facts.consumers.get((wanted.stream, wanted.durable))
        if consumer is None:
            if not {where, stream_label(wanted.stream)} & facts.silent and where not in facts.defined:
                yield BrokerKind.CONSUMER_MISSING.finding(where, "it does not exist")
            continue
        yield from _nature(where, consumer)
        if stream := facts.streams.get(wanted.stream):
            yield from _filter(where, consumer, stream)
            yield from _missed(where, consumer, stream)
        yield from _flow(where, consumer, facts.oldest_seconds.get((wanted.stream, wanted.durable), 0.0))
        yield from _fit(where, consumer, s)


def _nature(where: str, consumer: ConsumerInfo) -> Iterator[Finding]:
    config = consumer.config
    if consumer.unfit:
        command = f"nats consumer rm {consumer.stream} {consumer.name}"
        yield BrokerKind.CONSUMER_UNFIT.finding(where, consumer.unfit, command=command)
    passing = [field for field in ("inactive_threshold", "mem_storage") if config.get(field)]
    if passing:
        yield BrokerKind.CONSUMER_PASSING.finding(where, f"{' and '.join(passing)} set", command=APPLY)


def _missed(where: str, consumer: ConsumerInfo, stream: StreamInfo) -> Iterator[Finding]:
    """Judge only consumers of a whole stream; a filtered one need not get every sequence."""
    takes_all = all(map(consumer.wants, stream.subjects))
    delivered, first = consumer.delivered_seq, stream.first_seq
    if takes_all and delivered + 1 < first:
        what = f"the consumer has got messages up to {delivered}, the stream begins at {first}"
        yield BrokerKind.MESSAGES_MISSED.finding(where, what)


def _filter(where: str, consumer: ConsumerInfo, stream: StreamInfo) -> Iterator[Finding]:
    for subject in () if stream.copies else consumer.filters:
        if not any(covers(p, subject) or covers(subject, p) for p in stream.subjects):
            what = f"{subject} matches none of {', '.join(stream.subjects)}"
            yield BrokerKind.CONSUMER_FILTER.finding(where, what)


def _flow(where: str, consumer: ConsumerInfo, oldest_seconds: float) -> Iterator[Finding]:
    overdue = consumer.now - timedelta(seconds=_ACK_WAITS * consumer.ack_wait_seconds)
    if consumer.is_paused:
        command = f"nats consumer resume {consumer.stream} {consumer.name}"
        yield BrokerKind.CONSUMER_PAUSED.finding(where, f"until {consumer.pause_until}", command=command)
        return
    most, out = consumer.max_ack_pending, consumer.ack_pending
    if 0 < most <= out and max(consumer.delivered_at, consumer.ack_floor_at) < overdue:
        yield BrokerKind.CONSUMER_STUCK.finding(where, f"{out} of {most} messages are in flight")
    elif consumer.pending and not consumer.waiting and consumer.delivered_at < overdue:
        yield BrokerKind.CONSUMER_UNATTENDED.finding(where, f"{consumer.pending} messages wait")
    elif oldest_seconds > _ACK_WAITS * consumer.ack_wait_seconds:
        waits = f"{consumer.pending} messages wait, the oldest for {format_duration(oldest_seconds)}"
        yield BrokerKind.CONSUMER_BEHIND.finding(where, waits)


def _fit(where: str, consumer: ConsumerInfo, s: Settings) -> Iterator[Finding]:
    if s.handler_timeout_seconds >= consumer.ack_wait_seconds:
        field = "the first backoff" if consumer.config.get("backoff") else "ack_wait"
        what = f"{field} is {consumer.ack_wait_seconds:g} s, a call may take {s.handler_timeout_seconds:g} s"
        yield PairKind.ACK_WAIT_SHORT.finding(where, what)
    if 0 < consumer.max_deliver <= s.inbox_attempts_max:
        what = f"max_deliver is {consumer.max_deliver}, inbox_attempts_max is {s.inbox_attempts_max}"
        yield PairKind.MAX_DELIVER_LOW.finding(where, what)
    most = consumer.max_ack_pending
    if 0 < most < s.handler_concurrency:
        what = f"max_ack_pending is {most}, handler_concurrency {s.handler_concurrency}"
        yield PairKind.MAX_ACK_PENDING_LOW.finding(where, what)
