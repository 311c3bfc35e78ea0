"""A worker put together as the real one, and an operator, on wires to the simulated servers."""

import random
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, cast
from uuid import UUID

from sea_mq_worker.errors import ContractError, UnavailableError
from sea_mq_worker.inbox.consumer import recover_exhausted
from sea_mq_worker.inbox.rescue import take_over_deliveries
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.operators.dead_letters import DeadLetterEntry, DeadLetters, parse_dead_letter
from sea_mq_worker.operators.redrive import Redriver
from sea_mq_worker.operators.tables import SQL
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.outbox.maintenance import end_expired_leases
from sea_mq_worker.outbox.wakeup import PollingWakeup
from sea_mq_worker.parts import Parts
from sea_mq_worker.runtime.breaker import periodic
from sea_mq_worker.runtime.supervisor import ExitCode, Loop, supervise
from sea_mq_worker.runtime.takeover import EndLeases, Takeover
from sea_mq_worker.settings import Settings
from sea_mq_worker.testing.events import Emitted
from sea_mq_worker.testing.inbox import InboxTable
from sea_mq_worker.testing.outbox import InMemoryOutbox
from sea_mq_worker.testing.sessions import InMemoryKeyShare
from sea_mq_worker.testing.stream import InMemoryStream
from sea_mq_worker.worker import publisher_lanes
from tests.simulation.broker_wires import ConsumerWire, PublisherWire, StrandedWire
from tests.simulation.inbox_audit import InboxAudit
from tests.simulation.outbox_audit import OutboxAudit
from tests.simulation.plan import Plan
from tests.simulation.postgres import PostgresServers
from tests.simulation.wires import (
    STORE_TIMEOUT,
    HandlerWire,
    Line,
    OperatorsPool,
    OutboxWire,
    PostgresOutboxWire,
    SessionWire,
    inbox_wire,
)
from tests.support.inbox_loop import inbox_loop

LEASE = 6.0
PUBLISH_TIMEOUT = 2.0
SEARCH_SECONDS = 2.0
"""How long a claim's doubtful events may be searched for before they are sent."""
FAILURES_MAX = 8
ATTEMPTS_MAX, ATTEMPTS_MAX_TIGHT = 8, 2
CONCURRENCY = 4
SLOW_AFTER = 4
GRACE = 12.0
_SOMETIMES: Mapping[str, str] = {
    "circuit_opened": "gate closed",
    "circuit_closed": "gate opened",
    "type_slowed": "event type slowed",
    "type_resumed": "event type resumed",
    "message_given_back": "given back without an attempt",
    "message_skipped": "redelivery acknowledged without the handler",
}


@lru_cache
def settings_of(*, tight: bool, hold_dead_keys: bool) -> Settings:
    """Return settings with everything short."""
    return Settings(
        context="sea",
        outbox_batch_max=5,
        outbox_batches_max=2,
        outbox_lease_seconds=LEASE,
        outbox_poll_seconds=5.0,
        outbox_publish_timeout_seconds=PUBLISH_TIMEOUT,
        database_timeout_seconds=STORE_TIMEOUT,
        outbox_backoff_seconds=0.5,
        outbox_backoff_max_seconds=4.0,
        outbox_failures_max=FAILURES_MAX,
        outbox_dead_key="hold" if hold_dead_keys else "continue",
        handler_timeout_seconds=4.0,
        handler_concurrency=CONCURRENCY,
        handler_slow_after=SLOW_AFTER,
        inbox_lease_seconds=LEASE,
        inbox_attempts_max=ATTEMPTS_MAX_TIGHT if tight else ATTEMPTS_MAX,
        inbox_backoff_seconds=1.0,
        inbox_backoff_max_seconds=4.0,
        grace_seconds=GRACE,
    )


class _Watcher:
    """The worker's listener: counts what should happen sometimes."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def emit(self, key: str, /, **fields: Any) -> None:
        report = self._line.servers.report
        self._line.tell(
            str(Emitted(key, **{name: value for name, value in fields.items() if name != "each"}))
        )
        if seen := _SOMETIMES.get(key):
            report.saw(seen)
        if key == "message_dead_lettered" and fields["reason"] == "EXHAUSTED":
            report.saw("exhausted by attempts")
        report.check(key != "loop_died", "Q8", f"{self._line.life.name}: {fields.get('text')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Makes workers for one simulation."""

    plan: Plan
    dice: random.Random
    outbox_audit: OutboxAudit
    inbox_audit: InboxAudit
    wakeup: PollingWakeup
    serving: dict[str, float] = field(default_factory=dict)

    def running(self, line: Line) -> Coroutine[Any, Any, ExitCode]:
        """Put one worker together; a side that the plan has nothing for is left out."""
        parts = self._parts(line)
        loops: dict[str, Loop] = {}
        take_overs: dict[str, EndLeases] = {}
        if self.plan.transactions:
            loops |= self._outbound(parts, line, take_overs)
        if self.plan.messages:
            loops |= self._inbound(parts, line, take_overs)
        if line.life.session is not None:
            takeover = Takeover(sessions=line.life.session, events=parts.events, sides=take_overs)
            loops["takeover"] = takeover.run
        given = {"name": line.life.name, "version": "0", "events": parts.events}
        return supervise(loops, line.life.stop, grace_seconds=GRACE, **given)

    def _parts(self, line: Line) -> Parts:
        started = line.life.number * 1000.0
        line.life.clock = lambda: line.loop.time() + started
        if not isinstance(line.servers, PostgresServers):  # real locks do not know of simulated workers
            line.life.session = SessionWire(line)
        return Parts(
            settings=settings_of(tight=self.plan.tight, hold_dead_keys=self.plan.hold_dead_keys),
            name=line.life.name,
            events=_Watcher(line),
            metrics=cast("Any", None),
            stop=line.life.stop,
            stack=AsyncExitStack(),
            clock=line.life.clock,
            random=self.dice.random,
            session=cast("Any", line.life.session),
        )

    def _outbound(self, parts: Parts, line: Line, take_overs: dict[str, EndLeases]) -> dict[str, Loop]:
        publisher = PublisherWire(
            line=line,
            twin=line.servers.publisher,
            keeps_order=self.plan.keeps_order,
            timeout_seconds=PUBLISH_TIMEOUT,
            audit=self.outbox_audit,
        )
        breaker = parts.breaker("outbox database")
        unordered, ordered = (self._outbox(line, ordered=ordered) for ordered in (False, True))
        take_overs["outbox"] = ordered.take_over
        lane = publisher_lanes(parts, publisher, breaker)
        share = InMemoryKeyShare(self.serving, line.life.name, line.loop.time)
        reap = partial(end_expired_leases, unordered, parts.events)
        return {
            "outbox unordered": lane(unordered, self.wakeup, keyed=False).run,
            "outbox ordered": lane(ordered, self.wakeup, keyed=True, share=share).run,
            "reaper": periodic(reap, breaker=breaker, seconds=LEASE / 2),
        }

    def _outbox(self, line: Line, *, ordered: bool) -> OutboxWire:
        lane: dict[str, Any] = {
            "worker": line.life.name,
            "lease_seconds": LEASE,
            "ordered": ordered,
            "hold_dead_keys": self.plan.hold_dead_keys,
            "failures_max": FAILURES_MAX,
            "session": line.life.session.id if line.life.session is not None else "",
        }
        if isinstance(line.servers, PostgresServers):
            return PostgresOutboxWire(line, self.outbox_audit, **lane)
        twin = InMemoryOutbox(table=line.servers.outbox, random=self.dice.random, **lane)
        return OutboxWire(line, twin, self.outbox_audit)

    def _inbound(self, parts: Parts, line: Line, take_overs: dict[str, EndLeases]) -> dict[str, Loop]:
        inbox = inbox_wire(line, self.inbox_audit, worker=line.life.name)
        letters = PublisherWire(line=line, twin=line.servers.burier, timeout_seconds=PUBLISH_TIMEOUT)
        consumer = cast("Any", ConsumerWire(line, self.inbox_audit))
        loop = inbox_loop(parts, consumer, inbox, HandlerWire(line, self.inbox_audit), letters)
        consumers = {(consumer.stream, consumer.name): consumer}
        backoff = parts.backoff(1.0, 4.0)
        take_overs["inbox"] = partial(take_over_deliveries, inbox=inbox, consumers=consumers, backoff=backoff)
        running, breaker = {(consumer.stream, consumer.name): loop}, parts.breaker("exhausted messages")
        stranded = StrandedWire(line, self.inbox_audit)
        return {"inbox": loop.run, "rescue": partial(recover_exhausted, stranded, running, breaker)}


_LEASE = 8.0


class Operator:
    """A person at the command line, and what the commands work on."""

    def __init__(self, line: Line, audit: InboxAudit) -> None:
        self.life = line.life
        self._line = line
        self._servers = line.servers
        desk = InMemoryDesk(line.servers.inbox)
        self._redriver = Redriver(
            pool=cast("Any", OperatorsPool(line, audit, desk.run)),
            inbox=inbox_wire(line, audit, worker="operator"),
            letters=InMemoryLetters(line.servers.letters, line.servers.upstream),
            handler=HandlerWire(line, audit),
            lease_seconds=_LEASE,
        )

    def replay(self, nth: int) -> None:
        """Begin another lifecycle of an event."""
        done = [
            row
            for row in self._servers.outbox.rows.values()
            if row.state in {EventState.PUBLISHED, EventState.DEAD}
        ]
        if not done:
            return
        self._servers.replay(done[nth % len(done)].id)

    async def redrive(self, nth: int) -> None:
        """Redrive a dead letter; an operator does it again another day if a server is away."""
        entries = self._servers.letters.entries()
        if not entries:
            return
        try:
            outcome = await self._redriver.redrive(
                entries[nth % len(entries)].seq, actor="ada", reason="mended"
            )
        except UnavailableError as error:
            self._line.tell(f"redrive: {error}")
            return
        self._line.tell(f"redrive: {outcome}")
        if outcome.done:
            self._servers.report.saw("redriven")


class InMemoryLetters(DeadLetters):
    """A dead-letter stream in memory, and the stream of its original messages."""

    def __init__(self, letters: InMemoryStream, source: InMemoryStream) -> None:
        self._letters = letters
        self._source = source

    async def show(self, seq: int) -> DeadLetterEntry:
        return parse_dead_letter(_message(self._letters, seq))

    async def source(self, entry: DeadLetterEntry) -> InboundMessage:
        found = _message(self._source, entry.stream_sequence)
        return found._replace(consumer=entry.consumer, deliveries=entry.attempts)

    async def remove(self, seq: int) -> None:
        self._letters.remove((await self.show(seq)).seq)


class InMemoryDesk:
    """The statements of a redrive on an inbox in memory."""

    def __init__(self, table: InboxTable) -> None:
        self._table = table

    def run(self, statement: str, message_id: UUID | int, *_: object) -> list[dict[str, object]]:
        """Do what a statement does."""
        if statement == SQL["finish_action"].sql:
            return []
        row = self._table.rows.get(str(message_id))
        if row is not None and row.processed_at is None and row.dead_lettered_at is not None:
            row.dead_lettered_at = row.dead_letter_reason = None
            row.attempts = 0
        return [{"open": row is None or row.processed_at is None, "action": 1}]


def _message(stream: InMemoryStream, seq: int) -> InboundMessage:
    message = stream.message(seq)
    if message is None:
        raise ContractError(f"stream {stream.name} has no message {seq} (any more)")
    return message
