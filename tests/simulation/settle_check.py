"""Checks of what must hold once everything is healed and nothing is left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sea_mq_worker.inbox.dead_letter import Reason
from sea_mq_worker.inbox.message import InvalidMessage, parse_message
from sea_mq_worker.outbox.event import EventState
from sea_mq_worker.runtime.supervisor import ExitCode
from tests.simulation.plan import HANDLER_TROUBLES

if TYPE_CHECKING:
    from sea_mq_worker.testing.outbox import OutboxRow
    from tests.simulation.life import Life
    from tests.simulation.world import World

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


def check(world: World) -> None:
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
