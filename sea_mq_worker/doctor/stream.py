"""Findings about streams."""

from collections.abc import Iterator, Mapping

from sea_mq_worker.adapters.nats.server_info import StreamInfo
from sea_mq_worker.doctor.broker import BrokerFacts, own_subjects, stream_label
from sea_mq_worker.doctor.broker_catalog import BrokerKind
from sea_mq_worker.doctor.finding import APPLY, Finding
from sea_mq_worker.domain.topology import AWAITED
from sea_mq_worker.settings import Settings

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
