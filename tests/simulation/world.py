"""Carries out a plan under a seed: the servers, the workers on them, and all that happens to both."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from sea_mq_worker.inbox.dead_letter import Reason
from sea_mq_worker.inbox.message import InvalidMessage, parse_message
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.outbox.wakeup import PollingWakeup
from sea_mq_worker.runtime.supervisor import ExitCode
from sea_mq_worker.testing.outbox import OutboxRow
from tests.simulation.inbox_audit import InboxAudit
from tests.simulation.loop import WORKER, SeededLoop
from tests.simulation.outbox_audit import OutboxAudit
from tests.simulation.plan import HANDLER_TROUBLES, Message, Plan, Transaction, Trouble
from tests.simulation.postgres import Postgres, PostgresServers
from tests.simulation.run import FaultSchedule, Life, Report
from tests.simulation.servers import Servers
from tests.simulation.wires import Line
from tests.simulation.worker import (
    ATTEMPTS_MAX,
    ATTEMPTS_MAX_TIGHT,
    CONCURRENCY,
    FAILURES_MAX,
    LEASE,
    PUBLISH_TIMEOUT,
    SEARCH_SECONDS,
    Assembly,
    Operator,
)

REST_SECONDS_MAX = 180.0
_JUMP_SECONDS_MAX = 3.0


def simulate(plan: Plan, seed: int, postgres: Postgres | None = None) -> Report:
    """Carry out a plan, in memory or on a PostgreSQL; the same plan and seed do the same every time."""
    loop = SeededLoop(seed)
    report = Report()
    loop.set_exception_handler(partial(_tell_error, report))
    try:
        loop.run_until_complete(World(plan, seed, loop, report, postgres).run())
    finally:
        try:
            loop.clear_away()
        finally:
            loop.close()
    return report


def _tell_error(report: Report, _loop: object, context: dict[str, Any]) -> None:
    """An error in the world itself is no finding, but must not pass for success."""
    if "handle" in context:
        report.check(False, "error", repr(context.get("exception")))


class World:
    """One simulation."""

    def __init__(
        self, plan: Plan, seed: int, loop: SeededLoop, report: Report, postgres: Postgres | None
    ) -> None:
        self.plan = plan
        self.loop = loop
        self.report = report
        self.dice = random.Random(seed)
        make = Servers if postgres is None else partial(PostgresServers, postgres)
        self.servers = make(plan, clock=loop.time, dice=self.dice, report=report)
        self.faults = FaultSchedule(plan, clock=loop.time, dice=self.dice)
        self.servers.handler_trouble = self.faults.handler_trouble
        self.outbox_audit = OutboxAudit(
            self.servers, lease=LEASE, timeout=PUBLISH_TIMEOUT + SEARCH_SECONDS, failures_max=FAILURES_MAX
        )
        self.inbox_audit = InboxAudit(
            self.servers,
            concurrency=CONCURRENCY,
            attempts_max=ATTEMPTS_MAX_TIGHT if plan.tight else ATTEMPTS_MAX,
        )
        self.wakeup = PollingWakeup()
        self.assembly = Assembly(
            plan=plan,
            dice=self.dice,
            outbox_audit=self.outbox_audit,
            inbox_audit=self.inbox_audit,
            wakeup=self.wakeup,
        )
        self.lives: list[Life] = []
        self.lines: list[Line] = []
        self.current: dict[int, Life] = {}
        self.operator = Operator(self.line_of(Life(number=0, worker=-1, name="operator")), self.inbox_audit)

    async def run(self) -> None:
        """Carry out the plan, heal, wait for rest, stop, and look at what is left."""
        for worker in range(self.plan.workers):
            self.start(worker)
        for at, do in self._timeline():
            await self._until(at)
            if self.report.broken.is_set():
                return
            do()
        await self._rest()
        if self.report.broken.is_set():
            return
        check_settled(self)
        await self._stop_all()

    # --- what happens

    def _timeline(self) -> list[tuple[float, Callable[[], object]]]:
        plan = self.plan
        events: list[tuple[float, Callable[[], object]]] = [
            (trouble.at, partial(self._strike, trouble)) for trouble in plan.troubles
        ]
        events += [(written.at, partial(self._write, written)) for written in plan.transactions]
        events += [(message.at, partial(self._send, message)) for message in plan.messages]
        events += [(action.at, partial(self._act, action.kind, action.nth)) for action in plan.actions]
        ends = [trouble.at + trouble.seconds for trouble in plan.troubles]
        ends += [written.at + written.seconds for written in plan.transactions]
        events.append((max([*ends, 0.0, *(at for at, _ in events)]), self._heal))
        return sorted(events, key=lambda event: event[0])

    async def _until(self, at: float) -> None:
        remaining = at - self.loop.time()
        if remaining > 0:
            try:
                await asyncio.wait_for(self.report.broken.wait(), remaining)
            except TimeoutError:
                return

    def _write(self, transaction: Transaction) -> None:
        made = self.servers.begin(transaction.rows)
        if not transaction.commits:
            self.servers.roll_back(made)
            return

        def commit() -> None:
            self.servers.commit(transaction.rows, made)
            self.outbox_audit.effect(self.operator.life, "insert", lambda: None)
            self.wakeup.wake()

        self.loop.in_world(commit, after=transaction.seconds)

    def _send(self, message: Message) -> None:
        self.servers.send(message)

    def _act(self, kind: str, nth: int) -> None:
        if kind == "redrive":
            self.loop.world_task(self.operator.redrive(nth))
        else:
            self.outbox_audit.effect(self.operator.life, "replay", lambda: self.operator.replay(nth))

    def _strike(self, trouble: Trouble) -> None:
        life = self.current.get(trouble.worker % self.plan.workers)
        match trouble.kind:
            case "killed" if life is not None:
                self._kill(life)
                self.loop.in_world(partial(self.start, life.worker), after=trouble.seconds)
            case "frozen" if life is not None:
                self._freeze(life, trouble.seconds)
            case "stopped" if life is not None:
                life.stop.set()
                self.current.pop(life.worker)
                self.loop.in_world(partial(self.start, life.worker), after=trouble.seconds)
            case "session lost" if life is not None and life.session is not None:
                life.session.cut(trouble.seconds)
            case "clock jumps":
                self.servers.offset = min(trouble.seconds, _JUMP_SECONDS_MAX) * (-1 if trouble.worker else 1)
                for each in self.current.values():
                    each.hurt = True
            case "broker crashes":
                self.loop.in_world(self.servers.crash_broker, after=trouble.seconds)

    def _heal(self) -> None:
        self.servers.offset = max(self.servers.offset, 0.0)

    # --- workers

    def line_of(self, life: Life) -> Line:
        """Connect somebody to the servers."""
        line = Line(loop=self.loop, servers=self.servers, faults=self.faults, life=life)
        self.lines.append(line)
        return line

    def start(self, worker: int) -> None:
        """Start a worker, unless it runs."""
        if worker in self.current:
            return
        number = len(self.lives) + 1
        life = Life(number=number, worker=worker, name=f"w{worker}.{number}")
        self.lives.append(life)
        self.current[worker] = life
        working = self.assembly.running(self.line_of(life))
        reset = WORKER.set(number)
        try:
            life.task = self.loop.create_task(working)
        finally:
            WORKER.reset(reset)
        life.task.add_done_callback(partial(self._ended, life))

    def _ended(self, life: Life, task: asyncio.Task[ExitCode]) -> None:
        if task.cancelled():
            return
        life.code = task.result()
        self.report.tell(self.loop.time(), f"{life.name} ends: {life.code.name}")
        if self.current.get(life.worker) is life:
            self.report.check(False, "Q8", f"{life.name} ended by itself: {life.code.name}")
        check_stopped(self, life)

    def _kill(self, life: Life) -> None:
        self.report.saw("killed")
        self.report.tell(self.loop.time(), f"{life.name} is killed")
        life.dead = life.hurt = True
        self.current.pop(life.worker, None)
        self.loop.freeze(life.number)
        for pull in life.pulls:
            if self.faults.chance(0.5):
                pull.cancel()

    def _freeze(self, life: Life, seconds: float) -> None:
        self.report.tell(self.loop.time(), f"{life.name} is frozen for {seconds} s")
        life.hurt = True
        life.frozen_at = self.loop.time()
        self.loop.freeze(life.number)

        def thaw() -> None:
            if not life.dead:
                self.report.tell(self.loop.time(), f"{life.name} goes on")
                self.loop.thaw(life.number)

        self.loop.in_world(thaw, after=seconds)

    # --- the end

    async def _rest(self) -> None:
        """Wait, in bounded time, until nothing is left to do; traffic goes on meanwhile."""
        deadline = self.loop.time() + REST_SECONDS_MAX
        turn = 0
        await self._until(self.loop.time() + 1.0)
        while not self.report.broken.is_set():
            left = unfinished(self)
            if not left:
                return
            if self.loop.time() > deadline:
                self.report.check(False, "Q4", f"not at rest after {REST_SECONDS_MAX} s: {left}")
                return
            turn += 1
            if self.plan.messages and turn % 5 == 0:
                self.servers.send(Message(at=0.0))
            await self._until(self.loop.time() + 1.0)

    async def _stop_all(self) -> None:
        for life in list(self.current.values()):
            life.stop.set()
            self.current.pop(life.worker)
        tasks = [life.task for life in self.lives if life.task is not None and not life.dead]
        await asyncio.wait(tasks)
        for life in self.lives:
            left = self.loop.tasks_of(life.number)
            if not life.dead and life.task is not None:
                self.report.check(not left, "Q8", f"{life.name} left tasks: {left}")


_OPEN = {EventState.PENDING, EventState.CLAIMED}


def unfinished(world: World) -> list[str]:
    """Tell what is left to do; what waits behind a dead event of its key is not."""
    servers = world.servers
    left = [f"event {row.seq} {row.state}" for row in servers.outbox.rows.values() if _is_due(world, row)]
    if world.plan.messages:
        if not servers.consumer.delivered_all():
            left.append("messages not delivered")
        if servers.consumer.in_flight():
            left.append(f"{servers.consumer.in_flight()} messages unanswered")
        left += [f"message {seq} given up" for seq in servers.consumer.exhausted_deliveries]
        left += [f"message {key} waits" for key, row in servers.inbox.rows.items() if not row.settled]
    calls = sum(line.under_way for line in world.lines)
    if calls:
        left.append(f"{calls} calls under way")
    return left


def _is_due(world: World, row: OutboxRow) -> bool:
    if row.state not in _OPEN:
        return False
    if not world.plan.hold_dead_keys or row.ordering_key is None:
        return True
    return not any(
        other.state is EventState.DEAD and other.ordering_key == row.ordering_key and other.seq < row.seq
        for other in world.servers.outbox.rows.values()
    )


def check_settled(world: World) -> None:
    """Look at all that is there now."""
    _look_at_events(world)
    _look_at_order(world)
    _look_at_messages(world)
    for life in world.current.values():
        world.report.check(not life.calls, "Q8", f"{life.name} has {life.calls} handler calls under way")


def _look_at_events(world: World) -> None:
    servers, say = world.servers, world.report.check
    for event_id, row in servers.outbox.rows.items():
        copies = servers.events.copies.get(event_id, [])
        flaw = servers.planned[event_id].row.flaw
        if row.state is EventState.PUBLISHED:
            say(copies, "Q2", f"{event_id} is PUBLISHED and not in the stream")
            say(not flaw, "Q1", f"{event_id} is PUBLISHED with flaw {flaw}")
        elif row.state is EventState.DEAD:
            say(flaw, "Q1", f"{event_id} is DEAD without a flaw")
    for event_id in servers.rolled_back:
        say(event_id not in servers.events.copies, "Q2", f"{event_id} was rolled back and is in the stream")


def _look_at_order(world: World) -> None:
    """Events of one key are stored as inserted, where the earlier one was committed first."""
    servers = world.servers
    by_key: dict[str, list[str]] = {}
    for event_id, planned in servers.planned.items():
        copied = servers.events.copies.get(event_id)
        if planned.row.key is not None and copied and not world.outbox_audit.replays[event_id]:
            by_key.setdefault(planned.row.key, []).append(event_id)
    for key, ids in by_key.items():
        for one in ids:
            for other in ids:
                first, second = servers.planned[one], servers.planned[other]
                if first.seq < second.seq and first.committed_at <= second.committed_at:
                    ordered = servers.events.copies[one][0].seq < servers.events.copies[other][0].seq
                    world.report.check(ordered, "Q7", f"key {key}: {second.seq} is before {first.seq}")


def _look_at_messages(world: World) -> None:
    servers, say = world.servers, world.report.check
    for seq in range(1, servers.upstream.last_seq + 1):
        message = servers.consumer.message(seq, deliveries=1)
        assert message is not None
        row = world.inbox_audit.row_of(message)
        if row is None:
            say(False, "Q3", f"message {seq} is nowhere")
            continue
        say(row.settled, "Q3", f"message {seq} is not settled: {row}")
        envelope = parse_message(message)
        if isinstance(envelope, InvalidMessage):
            reasons = {envelope.reason, Reason.CONTENT_CONFLICT}
            if world.plan.tight:  # crashes and freezes can use up both attempts before the body is read
                reasons |= {Reason.EXHAUSTED}
            say(row.dead_letter_reason in reasons, "Q3", f"message {seq} is {row}")
        elif _is_healthy(world, row.entry.message_id):
            conflict = row.dead_letter_reason == Reason.CONTENT_CONFLICT
            say(row.processed_at is not None or conflict, "Q9", f"message {seq} is healthy, and {row}")
    for message_id, count in servers.handler.effects.items():
        say(count == 1, "I12", f"{count} effects of {message_id}")


def _is_healthy(world: World, message_id: str) -> bool:
    """Tell whether nothing but infrastructure was in the way of a message."""
    message = world.servers.messages.get(message_id)
    if message is None or message.stubborn or "422" in message.answers:
        return False
    return not world.plan.tight and not world.plan.kinds() & set(HANDLER_TROUBLES)


def check_stopped(world: World, life: Life) -> None:
    """A worker that stopped in peace has given back what it had."""
    say = world.report.check
    say(
        life.code is ExitCode.DONE or (life.hurt and life.code is ExitCode.GRACE_EXCEEDED),
        "Q8",
        f"{life.name} ends with {life.code}",
    )
    if life.hurt:
        return
    for row in world.servers.outbox.rows.values():
        mine = (row.claimed_by or "").startswith(f"{life.name}#")
        say(not mine, "Q8", f"{life.name} stopped and still has event {row.seq}")
    for message_id, inbox_row in world.servers.inbox.rows.items():
        mine = (inbox_row.locked_by or "").startswith(f"{life.name}#")
        say(not mine, "Q8", f"{life.name} stopped and still has message {message_id}")
