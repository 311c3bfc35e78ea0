"""Orphans: messages that are recorded in the inbox without an outcome, and that no delivery will bring.

A message becomes an orphan when the server stopped delivering it and the advisory was lost, when the durable
was deleted and created again with another start, or when another client acknowledged it without handling
it. Its inbox row still names its place in the stream.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sea_mq_worker.application.circuit_breaker import CircuitBreaker, call_when_available
from sea_mq_worker.application.inbox.leases import InboxLeases
from sea_mq_worker.domain.errors import ContractError, RowsRefusedError
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.domain.inbound import content_hash, recorded_as, storage_id
from sea_mq_worker.domain.inbox_results import FailedHandling, InboxMessage, Leased
from sea_mq_worker.domain.messages import InboundMessage
from sea_mq_worker.ports.jetstream import JetStreamConsumer
from sea_mq_worker.ports.observer import Observer

_PAGE = 50


@dataclass(slots=True, kw_only=True)
class OrphanFinder:
    """Finds the orphans of one consumer, a page of rows at a time.

    Attributes:
        older_than_seconds: least age of a checked row; a few times what a redelivery takes.
        every_seconds: interval between two pages.
    """

    consumer: JetStreamConsumer
    leases: InboxLeases
    observer: Observer
    broker_breaker: CircuitBreaker
    older_than_seconds: float
    every_seconds: float
    _after: str = ""
    _lost: set[str] = field(default_factory=set)
    """Messages reported as lost that were seen in this scan or the last one."""
    _seen: set[str] = field(default_factory=set)

    async def find(self, stop: asyncio.Event) -> list[InboundMessage]:
        """Check one page of rows; return the messages to handle again, and report those that are lost.

        Raises:
            StoppedError: the worker stopped while the database or the broker was away.
        """
        entries = await call_when_available(self._page, breaker=self.leases.store_breaker, stop=stop)
        if not entries:
            self._after, self._lost, self._seen = "", self._lost & self._seen, set()
            return []
        self._after = entries[-1].message_id
        seqs = [entry.stream_seq for entry in entries]
        stored = await call_when_available(
            lambda: self._find_undeliverable(seqs), breaker=self.broker_breaker, stop=stop
        )
        found = []
        for entry in entries:
            message = stored.get(entry.stream_seq)
            if message is not None and _is_recorded(message, entry):
                found.append(message)
                self._notice(
                    "message_undeliverable",
                    f"{_describe(entry)} is handled again: no delivery would bring it",
                )
            elif entry.stream_seq in stored:
                await self._report_lost(entry, stop)
        return found

    async def _find_undeliverable(self, seqs: Sequence[int]) -> Mapping[int, InboundMessage | None]:
        try:
            return await self.consumer.find_undeliverable(seqs)
        except ContractError as error:  # a worker without the right to read the stream still consumes it
            self._notice("undeliverable_not_readable", str(error))
            return {}

    async def _page(self) -> Sequence[InboxMessage]:
        return await self.leases.inbox.overdue(
            stream=self.consumer.stream,
            consumer=self.consumer.name,
            older_than_seconds=self.older_than_seconds,
            lease_seconds=self.leases.lease_seconds,
            after=self._after,
            limit=_PAGE,
        )

    async def _report_lost(self, entry: InboxMessage, stop: asyncio.Event) -> None:
        """Report a lost message once; its row stays open, because a producer may publish it again."""
        self._seen.add(entry.message_id)
        if entry.message_id in self._lost:
            return
        text = (
            f"{_describe(entry)} had no effect and its stream no longer holds it: publish it again, "
            f"or end it with `python -m sea_mq_worker inbox close {entry.message_id} --reason lost`"
        )
        with contextlib.suppress(RowsRefusedError):  # the log line reports it anyway
            await call_when_available(
                lambda: self._record_lost(entry, text), breaker=self.leases.store_breaker, stop=stop
            )
        self._lost.add(entry.message_id)
        self._notice("message_lost", text)

    async def _record_lost(self, entry: InboxMessage, text: str) -> None:
        inbox = self.leases.inbox
        [receipt] = await inbox.insert_batch([entry], lease_seconds=self.leases.lease_seconds)
        if isinstance(receipt, Leased):
            await inbox.record_error_batch([FailedHandling(lease=receipt.lease, error=text, counted=False)])

    def _notice(self, event: str, text: str) -> None:
        self.observer.observe(Noticed(event=event, text=text))


def _is_recorded(message: InboundMessage, entry: InboxMessage) -> bool:
    """Return whether a stored message is the recorded one, not another of a stream created again."""
    known_as = {recorded_as(message), storage_id(message)}
    return entry.message_id in known_as and entry.content_hash == content_hash(message)


def _describe(entry: InboxMessage) -> str:
    return f"message {entry.message_id} ({entry.stream} {entry.stream_seq})"
