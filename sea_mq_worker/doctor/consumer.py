"""Findings about consumers."""

from collections.abc import Iterator
from datetime import timedelta

from sea_mq_worker.adapters.nats.server_info import ConsumerInfo, StreamInfo
from sea_mq_worker.doctor.broker import BrokerFacts, consumer_label, stream_label
from sea_mq_worker.doctor.broker_catalog import BrokerKind, PairKind
from sea_mq_worker.doctor.finding import APPLY, Finding, format_duration
from sea_mq_worker.domain.subjects import covers
from sea_mq_worker.settings import Settings

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
