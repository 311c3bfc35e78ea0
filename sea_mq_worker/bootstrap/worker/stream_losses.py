"""Periodic checks: does the stream still have published events, and has each consumer got its messages?"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

import asyncpg

from sea_mq_worker.adapters.nats.connection import NatsConnection
from sea_mq_worker.adapters.nats.consume.undelivered import read_on
from sea_mq_worker.adapters.nats.manage.stream_inspection import RECONCILE, consumer_standing, lost_since
from sea_mq_worker.adapters.nats.server_info import ConsumerInfo, StreamInfo, consumer_info, stream_info
from sea_mq_worker.adapters.postgres.checks import PostgresStandings, acknowledged
from sea_mq_worker.application.circuit_breaker import CircuitBreaker
from sea_mq_worker.application.inbox.consumer import InboxConsumer
from sea_mq_worker.application.maintenance import PeriodicTask
from sea_mq_worker.application.supervisor import Loop
from sea_mq_worker.application.waiting import sleep_or_stop
from sea_mq_worker.bootstrap.worker.context import WorkerContext
from sea_mq_worker.domain.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.domain.facts import MessagesMissed, Noticed
from sea_mq_worker.domain.inbound import carries_no_event, recorded_as, storage_id
from sea_mq_worker.domain.missed_messages import PassedMessages, find_missed

_LOST_CHECK_SECONDS = 30.0
_MISSED_CHECK_SECONDS = 60.0
_LEADER_READS_SECONDS = 5.0
_PAGE = 100


def lost_event_check(
    base: WorkerContext, pool: asyncpg.Pool, connection: NatsConnection, store_breaker: CircuitBreaker
) -> Loop:
    """Return a loop that compares rows with the stream, at the start and then periodically."""
    reported = ""

    async def check() -> None:
        nonlocal reported
        stream = base.settings.stream
        rows = await acknowledged(pool, stream)
        try:
            why = await lost_since(
                connection, stream, greatest=rows.greatest, shared=rows.shared, some=rows.some
            )
        except (BrokerUnavailableError, ContractError):
            return  # the publisher reports that
        base.metrics.set_events_lost(bool(why))
        if why and not reported:
            loss = f"stream {stream} has lost events whose rows are PUBLISHED: {why}"
            text = f"{loss}; send them again: `{RECONCILE}`"
            base.observer.observe(Noticed(event="events_lost", text=text))
        reported = why

    return PeriodicTask(work=check, store_breaker=store_breaker, seconds=_LOST_CHECK_SECONDS).run


async def missed_message_loop(
    base: WorkerContext,
    connection: NatsConnection,
    pool: asyncpg.Pool,
    breaker: CircuitBreaker,
    consuming: Mapping[tuple[str, str], InboxConsumer],
) -> Loop:
    """Check once before the first fetch, which moves the consumer; return the loop of further checks.

    ``consuming``: the loops that handle messages, by stream and durable; filled later.
    """
    checks = _Checks(base, connection, PostgresStandings(pool=pool), consuming)
    await base.connect(partial(checks.run, asyncio.Event()), "PostgreSQL")

    async def run(stop: asyncio.Event) -> None:
        task = PeriodicTask(
            work=partial(checks.run, stop), store_breaker=breaker, seconds=_MISSED_CHECK_SECONDS
        )
        await task.run(stop)

    return run


class _Checks:
    def __init__(
        self,
        base: WorkerContext,
        connection: NatsConnection,
        standings: PostgresStandings,
        consuming: Mapping[tuple[str, str], InboxConsumer],
    ) -> None:
        self._base = base
        self._connection = connection
        self._standings = standings
        self._consuming = consuming
        self._passed: dict[tuple[str, str], PassedMessages] = {}
        self._refused = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Check each consumer; if the broker is unavailable, wait for the next check."""
        for consumer in self._base.settings.consumers:
            try:
                await self._check(consumer.stream, consumer.durable, stop)
            except BrokerUnavailableError:
                return
            except ContractError as error:
                self._report_refused(str(error))

    async def _check(self, stream: str, durable: str, stop: asyncio.Event) -> None:
        last = await self._standings.last(stream, durable)
        source = await stream_info(self._connection, stream)
        if last and source.last_seq < last.last_seq:  # a new leader may not have read all that it stores
            await sleep_or_stop(stop, seconds=_LEADER_READS_SECONDS)
            source = await stream_info(self._connection, stream)
        info = await consumer_info(self._connection, stream, durable)
        now = consumer_standing(source, info)
        found = find_missed(last, now)
        replaced = now == last or await self._standings.replace(
            stream, durable, last=last, now=now, found=found
        )
        if found and replaced:
            fact = MessagesMissed(consumer=durable, stream=stream, **asdict(found))
            self._base.observer.observe(fact)
        if not source.replaces:
            await self._handle_passed(source, info, stop)

    async def _handle_passed(self, source: StreamInfo, info: ConsumerInfo, stop: asyncio.Event) -> None:
        """Handle messages that the consumer passed and the inbox does not have; see PassedMessages.

        What a consumer passed before this worker's first look may be another inbox's.
        """
        key, of = (info.stream, info.name), (source.created, info.created)
        server = f"{source.leader} {info.leader} {self._connection.client.stats['reconnects']}"
        settled = info.ack_floor if info.ack_pending else info.delivered_seq
        passed = self._passed.get(key)
        if passed is None or passed.of != of:
            self._passed[key] = PassedMessages(of, server, settled, settled)
            return
        last, loop = passed.look(server, settled, source.last_seq), self._consuming.get(key)
        while loop is not None and passed.compared < last and not stop.is_set():
            read = await read_on(self._connection, info, passed.compared, _PAGE)
            page = [message for message in read if message.seq <= last]
            ids = {message.seq: (recorded_as(message), storage_id(message)) for message in page}
            known = await self._standings.recorded([one for both in ids.values() for one in both])
            for message in page:
                if known.isdisjoint(ids[message.seq]) and not carries_no_event(message):
                    text = (
                        f"message {recorded_as(message)} ({message.stream} {message.seq}) is handled: "
                        f"consumer {info.name} passed it, and the inbox does not have it"
                    )
                    self._base.observer.observe(Noticed(event="message_undeliverable", text=text))
                    await loop.submit(message, loop.consumer, stop)
            passed.compared = page[-1].seq if page else last

    def _report_refused(self, text: str) -> None:
        if text != self._refused:
            self._refused = text
            self._base.observer.observe(Noticed(event="missed_messages_unknown", text=text))
