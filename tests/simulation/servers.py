"""The servers of a simulation: one database, one broker with three streams and a durable, one handler."""

import random
from collections import defaultdict
from collections.abc import Callable, Container, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sea_mq_worker.inbox.message import HandlerRequest
from sea_mq_worker.nats.message import InboundMessage, OutboundMessage, Stored
from sea_mq_worker.testing.consumer import InMemoryConsumer, _Pending
from sea_mq_worker.testing.handler import Behaviour, Hang, InMemoryHandler, LoseResponse, Respond, Unreachable
from sea_mq_worker.testing.inbox import InboxTable
from sea_mq_worker.testing.outbox import OutboxRow, OutboxTable
from sea_mq_worker.testing.stream import Fault, InMemoryPublisher, InMemoryStream, StreamEntry
from tests.simulation.plan import Message, Plan, Row
from tests.simulation.run import Report

if TYPE_CHECKING:
    from tests.simulation.wires import SessionWire

T = TypeVar("T")

CONTEXT = "sea"
WINDOW = 40.0
ACK_WAIT = 6.0
HANDLER_TIMEOUT = 4.0
MAX_ACK_PENDING = 4
MAX_DELIVER, MAX_DELIVER_TIGHT = 14, 3
MAX_PAYLOAD = 4096
_LOST_SECONDS = 3.0
"""How much of what it knew last a broker loses that is killed."""

_BEHAVIOURS: Mapping[str, Behaviour] = {
    "ok": Respond(),
    "slow": Respond(slow_seconds=3.0),
    "500": Respond(status=500),
    "404": Respond(status=404),
    "422": Respond(status=422),
    "wait": Respond(status=429, retry_after_seconds=2.0),
    "lost": LoseResponse(),
    "hang": Hang(),
}


def run_now(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


class LoggedStream(InMemoryStream):
    """Remembers every copy of an event that was ever stored, by the id that the event itself carries."""

    def __init__(self, *, name: str, id_header: str, clock: Callable[[], float]) -> None:
        super().__init__(name=name, clock=clock, duplicate_window_seconds=WINDOW)
        self.copies: dict[str, list[StreamEntry]] = defaultdict(list)
        self.on_copy: Callable[[str], None] = lambda _id: None
        self._id_header = id_header

    def store(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> Stored:
        stored = super().store(subject, payload, headers)
        if not stored.duplicate:
            entry = self.get(stored.seq)
            assert entry is not None
            event_id = headers.get(self._id_header, "")
            self.copies[event_id].append(entry)
            self.on_copy(event_id)
        return stored


class CrashingConsumer(InMemoryConsumer):
    """A durable that forgets its latest acknowledgements and counters when the broker is killed."""

    def __init__(self, *, stream: InMemoryStream, clock: Callable[[], float], max_deliver: int) -> None:
        super().__init__(
            stream=stream,
            name=f"{CONTEXT}__from_vibespro",
            clock=clock,
            ack_wait_seconds=ACK_WAIT,
            max_deliver=max_deliver,
            max_ack_pending=MAX_ACK_PENDING,
            wait_seconds=5.0,
        )
        self._acked: dict[int, float] = {}
        self._brought_back: set[int] = set()

    async def ack(self, msg: InboundMessage) -> None:
        self._acked[msg.seq] = self._clock()
        await super().ack(msg)

    def crash(self) -> None:
        """Bring back what was acknowledged last, as if delivered once, and due now."""
        now = self._clock()
        for seq, at in list(self._acked.items()):
            if now - at < _LOST_SECONDS:
                del self._acked[seq]
                self._pending[seq] = _Pending(1, now)
                self._brought_back.add(seq)
        self._changed.set()

    def in_flight(self) -> int:
        return len(self._pending)

    def in_places(self) -> int:
        """Count the unanswered without those that a crash brought back, after others had their places."""
        return len(self._pending.keys() - self._brought_back)

    def delivered_all(self) -> bool:
        return self._last_seq == self._stream.last_seq


@dataclass(slots=True, kw_only=True)
class SkewedTable(OutboxTable):
    """Knows how far the workers' wall clocks are off, which nobody should ever need."""

    skew: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A row as its producer wrote it; ``committed_at`` is when it was seen first."""

    row: Row
    seq: int
    payload: bytes
    subject: str
    committed_at: float


class HeldSessions(Container[str]):
    """The sessions whose workers have a connection."""

    def __init__(self, sessions: "Mapping[str, SessionWire]") -> None:
        self._sessions = sessions

    def __contains__(self, session: object) -> bool:
        return isinstance(session, str) and session in self._sessions and not self._sessions[session].is_gone


class Servers:
    """All that outlives a worker; ``offset`` is how far the database's clock jumped."""

    def __init__(
        self, plan: Plan, *, clock: Callable[[], float], dice: random.Random, report: Report
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.dice = dice
        self.report = report
        self.offset = 0.0
        self.sessions: dict[str, SessionWire] = {}
        self.session_rows: dict[tuple[str, str], str] = {}
        held = cast("set[str]", HeldSessions(self.sessions))
        self.outbox = SkewedTable(self.database_clock, skew=plan.skew, held_sessions=held)
        self.inbox = InboxTable(self.database_clock, held_sessions=held)
        self.planned: dict[str, Planned] = {}
        self.rolled_back: set[str] = set()
        self.events = LoggedStream(name="SEA_EVENTS", id_header="ce-id", clock=clock)
        self.letters = LoggedStream(name="SEA_DLQ", id_header="Dlq-Message-Id", clock=clock)
        self.upstream = InMemoryStream(name="VIBESPRO_EVENTS", clock=clock, duplicate_window_seconds=0.0)
        max_deliver = MAX_DELIVER_TIGHT if plan.tight else MAX_DELIVER
        self.consumer = CrashingConsumer(stream=self.upstream, clock=clock, max_deliver=max_deliver)
        self.refused: set[str] = set()
        self.publisher = self._twin(self.events)
        self.burier = self._twin(self.letters)
        self.handler = InMemoryHandler(self._behave, timeout_seconds=HANDLER_TIMEOUT)
        self.handler_trouble: Callable[[], str] = lambda: ""
        self.sent: dict[int, Message] = {}
        self.messages: dict[str, Message] = {}

    def database_clock(self) -> float:
        """Tell the time of the database, which jumps."""
        return 1000.0 + self.clock() + self.offset

    # --- producers

    def begin(self, rows: tuple[Row, ...]) -> list[OutboxRow]:
        """Insert rows in a transaction that nobody sees yet: their place in the order is taken."""
        now = self.database_clock()
        return [
            OutboxRow(
                id=self.new_id(),
                seq=next(self.outbox._seq),
                event_type="order created" if row.flaw == "type" else "order.created",
                payload=b'{"d": %d%020d, "n": 1.00, "pad": "%s"}'
                % (1 + number, self.dice.getrandbits(60), b"." * (MAX_PAYLOAD * (row.flaw == "large"))),
                created_at=now,
                available_at=now + row.delay,
                ordering_key=row.key,
            )
            for number, row in enumerate(rows)
        ]

    def commit(self, rows: tuple[Row, ...], made: list[OutboxRow]) -> None:
        """Let everybody see them."""
        for row, written in zip(rows, made, strict=True):
            self.outbox.rows[written.id] = written
            self.planned[written.id] = Planned(
                row=row,
                seq=written.seq,
                payload=written.payload,
                subject=f"{CONTEXT}.event.order.created.v1",
                committed_at=self.clock(),
            )

    def roll_back(self, made: list[OutboxRow]) -> None:
        """Let nobody ever see them."""
        self.rolled_back.update(row.id for row in made)

    def replay(self, event_id: str) -> None:
        """Begin another lifecycle of an event."""
        self.outbox.replay(event_id)

    def send(self, message: Message) -> None:
        """Store a message upstream, whose flaw may be that it repeats or contradicts the one before."""
        body = b'{"n": 1.0}'
        subject = "vibespro.event.vibe_created.v1"
        message_id = self.new_id()
        if message.flaw in {"conflict", "repeat"} and self.messages:
            message_id = next(reversed(self.messages))
        body = {"body": b"{", "conflict": b'{"n": 2}'}.get(message.flaw, body)
        subject = "vibespro.vibe.created" if message.flaw == "subject" else subject
        self.messages.setdefault(message_id, message)
        headers = {"ce-id": "not an id" if message.flaw == "id" else message_id}
        self.sent[self.upstream.store(subject, body, headers).seq] = message

    def new_id(self) -> str:
        """Draw a UUID."""
        text = f"{self.dice.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    # --- the broker

    def crash_broker(self) -> None:
        """Do what a killed and restarted server does."""
        for stream in (self.events, self.letters, self.upstream):
            stream.restart()
        self.consumer.crash()

    def _twin(self, stream: LoggedStream) -> InMemoryPublisher:
        return InMemoryPublisher(stream=stream, clock=self.clock, faults=self._fault, max_payload=MAX_PAYLOAD)

    def _fault(self, message: OutboundMessage) -> Fault:
        planned = self.planned.get(message.headers.get("ce-id", ""))
        return Fault.FAILED if planned is not None and planned.row.flaw == "failing" else Fault.NONE

    # --- the handler

    def _behave(self, request: HandlerRequest, call: int) -> Behaviour:
        trouble = self.handler_trouble()
        if trouble == "handler unreachable":
            return Unreachable()
        if trouble:
            return _BEHAVIOURS["500" if trouble == "handler sick" else "422"]
        message = self.messages[request.message_id]
        answers = message.answers
        if call <= len(answers):
            return _BEHAVIOURS[answers[call - 1]]
        return _BEHAVIOURS[answers[-1] if message.stubborn else "ok"]
