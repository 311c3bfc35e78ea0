"""Event types that the handler fails again and again, on in-memory fakes, in virtual time."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from sea_mq_worker.errors import ContractError, StoreUnavailableError
from sea_mq_worker.inbox.health import resume_requested
from sea_mq_worker.inbox.message import HandlerRequest, Poison
from sea_mq_worker.nats.message import InboundMessage
from sea_mq_worker.testing.handler import Behaviour, Hang, Respond
from tests.support.inbox_loop import ATTEMPTS_MAX, CONCURRENCY, PER_SECOND, SLOW_AFTER, World, always
from tests.support.simulation import in_virtual_time

OTHER = "vibespro.event.vibe_renamed.v1"
HOUR = 3600.0


def failing(status: int, bad: set[str]) -> Callable[[HandlerRequest, int], Behaviour]:
    return lambda request, _call: Respond(status=status if request.message_id in bad else 200)


class Resumes:
    """What operators resumed; ``trouble`` is what a worker gets instead."""

    def __init__(self, clock: Callable[[], float], trouble: Exception | None = None) -> None:
        self._clock = clock
        self._made: list[tuple[str, float]] = []
        self.trouble = trouble

    def resume(self, event_type: str) -> None:
        self._made.append((event_type, self._clock()))

    async def __call__(self, within_seconds: float) -> Sequence[tuple[str, float]]:
        if self.trouble:
            raise self.trouble
        now = self._clock()
        return [(name, now - at) for name, at in self._made if now - at <= within_seconds]


@asynccontextmanager
async def resuming(world: World, resumes: Resumes) -> AsyncIterator[None]:
    """Look every second for what operators resume, for the length of a block."""
    await asyncio.sleep(0)
    looking = resume_requested(resumes, world.health, world.events, world.stop, every_seconds=1.0)
    async with asyncio.TaskGroup() as group:
        group.create_task(looking)
        yield
        world.stop.set()


def tight() -> World:
    """A durable with as many places as the worker: what is given back holds them."""
    return World(max_ack_pending=CONCURRENCY)


def failing_world() -> World:
    """Thirty messages of one type, all of which the handler rejects."""
    world = World()
    for _ in range(30):
        world.send()
    world.handler.script = always(Respond(status=422))
    return world


@pytest.mark.clause("POL-047-006", "handler-422", "handler-other")
@in_virtual_time
async def test_every_rejected_message_is_dead_lettered_at_a_bounded_rate() -> None:
    world = tight()
    bad = {world.send() for _ in range(60)}
    world.handler.script = always(Respond(status=422))
    async with world.consuming():
        await world.events.seen("type_slowed")
        began = world.clock()
        await asyncio.sleep(20)
        assert SLOW_AFTER <= len(world.dead_lettered()) <= SLOW_AFTER + 2 + 20 * PER_SECOND
        await world.events.seen("message_dead_lettered", count=len(bad), within=120.0)
        assert world.clock() - began <= 90.0
    assert {message_id for message_id, _ in world.dead_lettered()} == bad
    assert {reason for _, reason in world.dead_lettered()} == {"REJECTED"}


@in_virtual_time
async def test_failures_of_different_types_are_no_run() -> None:
    world = World()
    async with world.consuming():
        await asyncio.sleep(0)
        for number in range(SLOW_AFTER - 1):
            for event_type in ("vibe_created", "vibe_renamed"):
                assert world.health.record_failure(event_type, f"{event_type} {number}", Poison("422"))
        assert world.health.slow_seconds() == {}


@in_virtual_time
async def test_no_attempt_counts_while_the_whole_handler_fails() -> None:
    world = World(max_ack_pending=CONCURRENCY, max_deliver=-1)
    async with world.consuming():
        world.send(subject=OTHER)
        await world.events.seen("message_processed")
        await asyncio.sleep(61)  # that it works now shows nothing any more
        world.handler.script = always(Respond(status=503))
        ids = [world.send() for _ in range(40)]
        await asyncio.sleep(HOUR / 6)
        assert world.dead_lettered() == []
        assert max(row.attempts for row in world.table.rows.values()) <= 2
        world.handler.script = always(Respond())
        await world.events.seen("message_processed", count=1 + len(ids), within=60.0)
        resumed = await world.events.seen("type_resumed")
    assert resumed.slow_seconds > HOUR / 7


@in_virtual_time
async def test_where_the_handler_works_for_others_attempts_are_spent_one_after_the_other() -> None:
    world = tight()
    bad = {world.send() for _ in range(20)}
    world.handler.script = failing(503, bad)
    async with world.consuming():
        await world.events.seen("type_slowed")
        while len(world.dead_lettered()) < len(bad):
            world.send(subject=OTHER)
            await asyncio.sleep(5.0)
            assert world.clock() < HOUR
    assert {reason for _, reason in world.dead_lettered()} == {"EXHAUSTED"}
    counted = [fact for fact in world.events.of("message_retried") if fact.message_id in bad]
    assert len(counted) == len(bad) * (ATTEMPTS_MAX - 1)


@in_virtual_time
async def test_calls_of_a_slow_type_that_last_hold_half_of_the_places() -> None:
    world = tight()
    slow = {world.send() for _ in range(60)}
    lasting = Respond(status=500, slow_seconds=10.0)
    world.handler.script = lambda request, _: lasting if request.message_id in slow else Respond()
    calls = []
    async with world.consuming():
        for _ in range(40):
            world.send(subject=OTHER)
            await asyncio.sleep(1.0)
            calls.append(sum(request.message_id in slow for request in world.handler.requests))
    assert 0 < calls[-1] - calls[-11] <= CONCURRENCY // 2


@in_virtual_time
async def test_a_broken_handler_is_called_ever_more_rarely() -> None:
    world = tight()
    for _ in range(4000):
        world.send()
    world.handler.script = always(Respond(status=500))
    async with world.consuming():
        calls = []
        for _ in range(3):
            before = len(world.handler.requests)
            await asyncio.sleep(10.0)
            calls.append((len(world.handler.requests) - before) / 10.0)
    assert calls[0] > calls[1] > calls[2]
    assert calls[2] < 30.0


@in_virtual_time
async def test_what_was_given_back_comes_at_once_when_the_handler_works_again() -> None:
    world = World()
    ids = [world.send() for _ in range(30)]
    world.handler.script = always(Respond(status=500))
    async with world.consuming():
        await world.events.seen("message_given_back", count=25)
        world.handler.script = always(Respond())
        await world.events.seen("type_resumed")
        began = world.clock()
        await world.events.seen("message_processed", count=len(ids))
        assert world.clock() - began < 2.0


@pytest.mark.parametrize("event_type", ["vibe_created", ""])
@in_virtual_time
async def test_an_operator_ends_the_slow_pace(event_type: str) -> None:
    world = failing_world()
    resumes = Resumes(world.clock)
    async with world.consuming(), resuming(world, resumes):
        resumes.resume(event_type)
        await world.events.seen("message_given_back", count=25)
        resumes.resume("another")
        before = len(world.dead_lettered())
        await asyncio.sleep(1.5)
        assert world.events.of("type_resumed") == [], "it was resumed before it was slow"
        resumes.resume(event_type)
        await world.events.seen("type_resumed")
        await asyncio.sleep(0.5)
        assert len(world.dead_lettered()) >= before + SLOW_AFTER - 1
        await asyncio.sleep(5.0)
    assert [fact.why for fact in world.events.of("type_resumed")] == ["an operator resumed it"]


@in_virtual_time
async def test_what_an_operator_resumed_during_an_outage_is_heard_afterwards() -> None:
    world = failing_world()
    database = Resumes(world.clock, StoreUnavailableError("the database is away"))
    async with world.consuming(), resuming(world, database):
        await world.events.seen("type_slowed")
        await asyncio.sleep(1.0)
        database.resume("vibe_created")
        await asyncio.sleep(3.5)
        for _ in range(30):
            world.send(subject=OTHER)
        await world.events.seen("type_slowed", count=2)
        database.trouble = None
        reported = await world.events.seen("type_resumed", within=10.0)
        assert reported.event_type == "vibe_created"
    assert (reported.why, reported.slow_seconds >= 4.0) == ("an operator resumed it", True)


@in_virtual_time
async def test_a_worker_without_the_right_to_read_resumes_reports_it_once() -> None:
    world = failing_world()
    forbidden = Resumes(world.clock, ContractError("no permission"))
    async with world.consuming(), resuming(world, forbidden):
        await world.events.seen("resume_not_readable")
        await asyncio.sleep(10.0)
    assert [fact.key for fact in world.events.notices] == ["resume_not_readable"]


@in_virtual_time
async def test_a_type_of_which_nothing_fails_any_more_is_not_slow() -> None:
    world = World()
    for _ in range(2 * SLOW_AFTER):
        world.send()
    world.handler.script = always(Respond(status=422))
    async with world.consuming():
        await world.events.seen("message_dead_lettered", count=2 * SLOW_AFTER, within=60.0)
        assert (
            "`python -m sea_mq_worker inbox resume --type vibe_created --reason fixed`"
            in world.health.trouble
        )
        await asyncio.sleep(301.0)
        assert world.health.trouble == ""


@in_virtual_time
async def test_a_worker_without_the_right_to_read_the_stream_reports_it_once_and_continues() -> None:
    world = tight()

    async def forbidden(_after_seq: int, _limit: int) -> None:
        raise ContractError("no permission")

    world.consumer.ahead = forbidden  # type: ignore[assignment, method-assign]
    bad = {world.send() for _ in range(2 * CONCURRENCY)}
    world.send(subject=OTHER)
    world.handler.script = failing(422, bad)
    async with world.consuming():
        await world.events.seen("message_processed", within=60.0)
    assert [fact.key for fact in world.events.notices] == ["read_ahead_failed"]


@in_virtual_time
async def test_messages_with_large_headers_are_read_again_instead_of_waiting_in_memory() -> None:
    world = tight()
    ahead, read_after = world.consumer.ahead, list[int]()

    async def noted(after_seq: int, limit: int) -> Sequence[InboundMessage] | None:
        read_after.append(after_seq)
        return await ahead(after_seq, limit)

    world.consumer.ahead = noted  # type: ignore[method-assign]
    for _ in range(60):
        world.send(large="x" * 60_000)
    world.handler.script = always(Respond(status=422))
    async with world.consuming():
        await world.events.seen("message_dead_lettered", count=60, within=HOUR)
    assert any(earlier > later for earlier, later in itertools.pairwise(read_after))


@in_virtual_time
async def test_while_the_consumer_has_room_a_waiting_message_costs_few_requests() -> None:
    world, requests = tight(), []
    ahead = world.consumer.ahead

    async def counted(after_seq: int, limit: int) -> Sequence[InboundMessage] | None:
        requests.append(after_seq)
        return await ahead(after_seq, limit)

    world.consumer.ahead = counted  # type: ignore[method-assign]
    bad = {world.send()}
    world.handler.script = lambda request, _: (
        Respond(status=503, retry_after_seconds=HOUR) if request.message_id in bad else Respond()
    )
    async with world.consuming():
        await asyncio.sleep(60.0)
        assert len(requests) <= 13
        bad |= {world.send() for _ in range(CONCURRENCY)}
        await asyncio.sleep(1.0)
        world.send(subject=OTHER)
        await world.events.seen("message_processed", within=1.0)


@in_virtual_time
async def test_what_was_read_ahead_is_acknowledged_without_a_call_when_it_is_delivered() -> None:
    world = tight()
    bad = {world.send() for _ in range(3 * CONCURRENCY)}
    good = world.send(subject=OTHER)
    world.handler.script = failing(422, bad)
    async with world.consuming():
        await world.events.seen("message_processed")
        seq = len(bad) + 1
        assert seq not in world.consumer.acked
        await world.events.seen("message_dead_lettered", count=len(bad), within=120.0)
        await asyncio.sleep(5.0)
        assert seq in world.consumer.acked
    assert world.handler.calls[good] == 1


@in_virtual_time
async def test_the_commands_that_a_slow_type_names_quote_what_a_sender_chose() -> None:
    world = World()
    async with world.consuming():
        reported = world.health.reason("made;$(id)")
    assert "inbox resume --type 'made;$(id)' --reason fixed`" in reported
    assert "dlq redrive --type 'made;$(id)' --reason fixed`" in reported


@pytest.mark.parametrize("status", [307, 401, 404])
@in_virtual_time
async def test_answers_of_a_wrong_deployment_cost_no_attempt_until_the_handler_accepts_a_message(
    status: int,
) -> None:
    world = World(max_deliver=-1)
    ids = [world.send() for _ in range(SLOW_AFTER - 1)]
    world.handler.script = always(Respond(status=status))
    async with world.consuming():
        await world.events.seen("handler_rejects")
        await asyncio.sleep(HOUR)
        assert [notice.key for notice in world.events.notices] == ["handler_rejects"]
        assert f"answered {status}" in world.health.trouble
        assert max(row.attempts for row in world.table.rows.values()) <= 1
        assert world.dead_lettered() == []
        world.handler.script = failing(status, {ids[0]})
        await world.events.seen("message_processed", count=len(ids) - 1, within=120.0)
        assert world.health.trouble == ""
        while not world.dead_lettered():
            world.send(subject=OTHER)
            await asyncio.sleep(5.0)
            assert world.clock() < 2 * HOUR
    assert world.dead_lettered() == [(ids[0], "EXHAUSTED")]


@in_virtual_time
async def test_a_message_that_is_too_large_ends_soon_if_the_handler_accepts_others() -> None:
    world = World()
    world.change_settings(inbox_attempts_max=15)
    large = world.send(body=b"[" + b"1," * 5000 + b"1]")
    world.handler.script = failing(413, {large})
    async with world.consuming():
        world.send(subject=OTHER)
        await world.events.seen("message_dead_lettered", within=10.0)
    row = world.row(large)
    assert (row.attempts, row.dead_letter_reason) == (3, "EXHAUSTED")
    assert "413" in str(row.last_error)
    assert "10,003 bytes" in str(row.last_error)


@in_virtual_time
async def test_a_handler_that_answers_nothing_is_called_silent_long_before_its_calls_end() -> None:
    world = World()
    half = world.settings.handler_timeout_seconds / 2
    world.handler.script = always(Respond(slow_seconds=half / 2))
    async with world.consuming():
        world.send()
        await world.events.seen("message_processed", within=HOUR)
        await asyncio.sleep(HOUR)
        assert world.health.trouble == "", "it has nothing to do"
        world.handler.script = always(Hang())
        world.send()
        await asyncio.sleep(half - 1)
        assert world.health.trouble == ""
        await asyncio.sleep(2)
        assert world.health.trouble == f"the handler has answered no call for {half + 1:.0f} s"
        world.handler.script = always(Respond())
        await world.events.seen("message_processed", count=2, within=HOUR)
        assert world.health.trouble == ""


@in_virtual_time
async def test_a_slow_type_is_a_warning_while_the_handler_accepts_others() -> None:
    world = tight()
    bad = {world.send() for _ in range(SLOW_AFTER)}
    world.handler.script = failing(500, bad)
    async with world.consuming():
        await world.events.seen("type_slowed")
        assert world.health.trouble.startswith("vibe_created: the handler answered 500")
        world.send(subject=OTHER)
        await world.events.seen("message_processed")
        assert world.health.trouble == ""
        [(name, text)] = world.health.warnings().items()
        assert (name, text.partition(",")[0]) == ("event type vibe_created", "the handler answered 500")
        await asyncio.sleep(61.0)
        assert (world.health.trouble != "", world.health.warnings()) == (True, {})
