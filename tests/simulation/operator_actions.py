"""Operators' actions: replay events, redrive dead letters with the redriver of the command line."""

from sea_mq_worker.errors import UnavailableError
from sea_mq_worker.operators.dead_letters import Redriver
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.testing.operators import InMemoryDeadLetters
from tests.simulation.inbox_audit import InboxAudit
from tests.simulation.postgres_wires import inbox_wire, records_wire
from tests.simulation.wires import HandlerWire, Line

_LEASE = 8.0


class Operator:
    """A person at the command line, and what the commands work on."""

    def __init__(self, line: Line, audit: InboxAudit) -> None:
        self.life = line.life
        self._line = line
        self._servers = line.servers
        self._redriver = Redriver(
            records=records_wire(line, audit),
            inbox=inbox_wire(line, audit, worker="operator"),
            dead_letters=InMemoryDeadLetters(stream=line.servers.letters, sources=[line.servers.upstream]),
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
