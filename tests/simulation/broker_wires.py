"""A worker's connections to the broker: publishing, consuming, and what the durable gave up."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sea_mq_worker.nats.headers import MSG_ID
from sea_mq_worker.nats.message import (
    FailedTransiently,
    InboundMessage,
    OutboundMessage,
    PublishOutcome,
    Rejected,
    SearchedId,
    SearchResult,
    Stored,
    Unknown,
    Unsent,
)
from sea_mq_worker.testing.consumer import InMemoryExhaustedMessages
from sea_mq_worker.testing.stream import InMemoryPublisher
from tests.simulation.inbox_audit import InboxAudit
from tests.simulation.outbox_audit import OutboxAudit
from tests.simulation.servers import ACK_WAIT, MAX_ACK_PENDING, run_now
from tests.simulation.wires import LATE_SECONDS_MAX, Line, answer, broken

_SILENT = Unknown("no acknowledgement")
_BEHIND = Unsent("held back behind a message that was not stored")
_NOTICED_SECONDS = 0.1
T = TypeVar("T")

_ACK_SECONDS = 0.01


@dataclass(kw_only=True, eq=False)
class PublisherWire:
    """JetStreamPublisher over a line.

    Attributes:
        twin: the server's side, with the stream's window and limits.
        audit: of the outbox, if these are its events.
        timeout_seconds: of a single publish.
    """

    line: Line
    twin: InMemoryPublisher
    keeps_order: bool = False
    timeout_seconds: float
    audit: OutboxAudit | None = None

    @property
    def connected(self) -> bool:
        return not self.line.faults.broker_is_down

    @property
    def duplicate_window_seconds(self) -> float:
        return self.twin.duplicate_window_seconds

    async def read_duplicate_window(self) -> float:
        return await self.twin.read_duplicate_window()

    @property
    def max_payload(self) -> int:
        return self.twin.max_payload

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        message = OutboundMessage(
            id=headers.get(MSG_ID, ""), subject=subject, payload=payload, headers=headers
        )
        return (await self._exchange([message], self.timeout_seconds, judged=False))[0]

    async def publish_batch(
        self,
        messages: Sequence[OutboundMessage],
        *,
        timeout_seconds: float,
        in_order: bool = False,  # noqa: ARG002 - ``keeps_order`` decides for every batch
    ) -> Sequence[PublishOutcome]:
        return await self._exchange(messages, timeout_seconds, judged=True)

    async def _exchange(
        self, messages: Sequence[OutboundMessage], timeout_seconds: float, *, judged: bool
    ) -> Sequence[PublishOutcome]:
        line = self.line
        if timeout_seconds <= 0:
            return [Unsent("the deadline passed before its turn")] * len(messages)
        if not self.connected:
            return [Unsent("not connected")] * len(messages)
        if self.audit is not None:
            self.audit.sending(line.life, messages)
        answers: list[PublishOutcome] = [_SILENT] * len(messages)
        reply: asyncio.Future[Sequence[PublishOutcome]] = line.loop.create_future()
        travel = line.faults.latency()
        if line.faults.hits("frames late", line.life):
            travel = line.faults.between(0.0, LATE_SECONDS_MAX)
        line.later(travel, lambda: self._serve(messages, answers, reply, judged=judged))
        line.later(timeout_seconds, lambda: answer(reply, list(answers)))
        return await reply

    def _serve(
        self,
        messages: Sequence[OutboundMessage],
        answers: list[PublishOutcome],
        reply: asyncio.Future[Sequence[PublishOutcome]],
        *,
        judged: bool,
    ) -> None:
        line = self.line
        if not self.connected or not line.arrives():
            return
        for place, message in enumerate(messages):
            if line.faults.hits("frames lost", line.life):
                if self.keeps_order:
                    break
                continue
            outcome = self._store(message, judged=judged)
            if not line.faults.hits("answers lost", line.life):
                answers[place] = outcome
            if self.keeps_order and not isinstance(outcome, Stored):
                answers[place + 1 :] = [_BEHIND] * (len(messages) - place - 1)
                if self.audit is not None:
                    self.audit.held_back(messages[place + 1 :])
                break
        if not any(outcome is _SILENT for outcome in answers):
            line.later(line.faults.latency(), lambda: answer(reply, answers))

    def _store(self, message: OutboundMessage, *, judged: bool) -> PublishOutcome:
        line = self.line
        outcome = self.twin.send(message)
        if judged:
            outcome = self.twin.judge(message, outcome)
        line.tell(f"publish {message.id[:12]} -> {outcome}")
        if isinstance(outcome, FailedTransiently | Rejected) and self.audit is not None:
            self.audit.answered(message.headers.get("ce-id", ""))
        if isinstance(outcome, Stored) and outcome.duplicate:
            of_event = self.audit is not None
            line.servers.report.saw(
                "duplicate answered by the stream" if of_event else "dead letter found again"
            )
        return outcome

    async def find(self, wanted: Sequence[SearchedId]) -> Mapping[str, SearchResult]:
        line = self.line
        lost = line.faults.hits("frames lost", line.life) or line.faults.hits("answers lost", line.life)
        line.servers.report.saw("doubtful event looked up")
        return await line.ask(lambda: self.twin.look_for(wanted), is_lost=lambda: lost or not self.connected)


class ConsumerWire:
    """JetStreamConsumer over a line."""

    ack_wait_seconds = ACK_WAIT
    max_ack_pending = MAX_ACK_PENDING

    def __init__(self, line: Line, audit: InboxAudit) -> None:
        self._line = line
        self._audit = audit
        self._durable = line.servers.consumer

    @property
    def name(self) -> str:
        return self._durable.name

    async def fetch(self, batch: int, *, bytes_max: int | None = None) -> Sequence[InboundMessage]:
        pull = partial(self._durable.fetch, batch, bytes_max=bytes_max)
        return await _pull(self._line, pull, self._audit.delivered)

    @property
    def stream(self) -> str:
        return self._durable.stream

    async def is_shared(self) -> bool:
        return await self._ask(self._durable.is_shared)

    async def find_undeliverable(self, seqs: Sequence[int]) -> Mapping[int, InboundMessage | None]:
        return await self._ask(lambda: self._durable.find_undeliverable(seqs))

    async def ahead(self, after_seq: int, limit: int) -> Sequence[InboundMessage] | None:
        found = await self._ask(lambda: self._durable.ahead(after_seq, limit))
        if found:
            self._line.servers.report.saw("read ahead")
        return found

    async def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        faults, life = self._line.faults, self._line.life
        return await self._line.ask(
            lambda: run_now(question()),
            is_lost=lambda: faults.broker_is_down or faults.hits("frames lost", life),
        )

    async def ack(self, msg: InboundMessage) -> None:
        self._audit.acking(self._line.life, msg)
        self._say("ack", msg, lambda: self._durable.ack(msg))

    async def ack_batch(self, msgs: Sequence[InboundMessage]) -> None:
        for msg in msgs:
            await self.ack(msg)

    async def nak(self, msg: InboundMessage, *, delay_seconds: float = 0.0) -> None:
        self._audit.naking(self._line.life, msg, delay_seconds)
        self._say("nak", msg, lambda: self._durable.nak(msg, delay_seconds=delay_seconds))

    async def in_progress(self, msg: InboundMessage) -> None:
        self._say("in_progress", msg, lambda: self._durable.in_progress(msg))

    async def give_back(self, reply: str, *, delay_seconds: float) -> None:
        self._say("nak", reply, lambda: self._durable.give_back(reply, delay_seconds=delay_seconds))

    def _say(
        self, verb: str, msg: InboundMessage | str, effect: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Send without waiting; one connection keeps its order unless something is late."""
        line = self._line
        seconds = _ACK_SECONDS
        what = msg if isinstance(msg, str) else msg.seq
        if line.faults.broker_is_down or line.faults.hits("acks lost", line.life):
            line.tell(f"{verb} {what} is lost")
            return
        if line.faults.hits("acks late", line.life):
            seconds = line.faults.between(3.0, LATE_SECONDS_MAX)
            if seconds > ACK_WAIT:
                line.servers.report.saw("late acknowledgement")

        def arrive() -> None:
            if line.arrives() and not line.faults.broker_is_down:
                line.tell(f"{verb} {what}")
                run_now(effect())

        line.later(seconds, arrive)


class StrandedWire:
    """StrandedMessages over a line."""

    def __init__(self, line: Line, audit: InboxAudit) -> None:
        self._line = line
        self._audit = audit
        self._twin = InMemoryExhaustedMessages(
            consumer=line.servers.consumer, clock=line.loop.time, again_seconds=ACK_WAIT, wait_seconds=5.0
        )

    async def fetch(self) -> Sequence[InboundMessage]:
        return await _pull(self._line, self._twin.fetch, lambda: None)

    async def ack(self, msg: InboundMessage) -> None:
        self._audit.acking(self._line.life, msg)
        self._line.servers.report.saw("rescued after max_deliver")
        run_now(self._twin.ack(msg))

    async def nak(self, msg: InboundMessage, *, delay_seconds: float = 0.0) -> None:
        self._audit.naking(self._line.life, msg, delay_seconds)
        run_now(self._twin.nak(msg, delay_seconds=delay_seconds))

    async def in_progress(self, msg: InboundMessage) -> None:
        run_now(self._twin.in_progress(msg))


async def _pull(
    line: Line, ask: Callable[[], Coroutine[Any, Any, Sequence[InboundMessage]]], look: Callable[[], None]
) -> Sequence[InboundMessage]:
    """Ask for messages; who asked and is gone may still be given some, which nobody sees before ack_wait."""
    reply: asyncio.Future[Sequence[InboundMessage]] = line.loop.create_future()
    if line.faults.broker_is_down:
        line.later(_NOTICED_SECONDS, lambda: broken(reply))
        return await reply

    async def serve() -> None:
        messages = await ask()
        look()
        if messages:
            line.tell(f"delivered {[(message.seq, message.deliveries) for message in messages]}")
        if line.faults.broker_is_down or line.faults.hits("frames lost", line.life):
            line.later(_NOTICED_SECONDS, lambda: broken(reply))
        else:
            line.later(line.faults.latency(), lambda: answer(reply, messages))

    pull = line.loop.world_task(serve())
    line.life.pulls = [task for task in line.life.pulls if not task.done()] + [pull]
    try:
        return await reply
    finally:
        if (not reply.done() or reply.cancelled()) and line.faults.chance(0.5):
            pull.cancel()
