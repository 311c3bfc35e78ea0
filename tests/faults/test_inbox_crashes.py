"""A worker that dies or stalls on a message's way loses no message and repeats no effect."""

import asyncio
import signal
import time
from collections import Counter
from typing import Any

import pytest

from tests.support.handlers import Behaviour, Call, answer, hang, in_turn
from tests.support.hold import held
from tests.support.jetstream import SECOND
from tests.support.site import FAST_CONSUMER, Site, SiteWith
from tests.support.waiting import eventually

ACK_WAIT = FAST_CONSUMER["ack_wait"] / SECOND
LEASE_RENEWED = "SELECT bool_or(locked_until > received_at + interval '2 seconds') FROM inbox_messages"


async def processed(at: Site, message_id: str) -> bool:
    row = await at.inbox_row(message_id)
    return row is not None and row["processed_at"] is not None


@pytest.mark.fault("N01")
async def test_a_worker_killed_while_it_records_a_message_leaves_it_to_the_next(shared: Site) -> None:
    async with (
        held(shared.dsn, table="inbox_messages", event="INSERT") as hold,
        shared.worker(name="killed") as first,
    ):
        await first.ready()
        [message] = await shared.send()
        await hold.reached()
        await first.killed()
    async with shared.worker():
        await shared.quiet()
    await shared.audit()
    assert shared.effects.calls == {message: 1}


@pytest.mark.fault("N02")
async def test_a_recorded_message_that_no_handler_saw_is_no_duplicate(shared: Site) -> None:
    shared.to_handler.drop_to_server()
    [message] = await shared.send()
    async with shared.worker(name="killed") as first:
        await eventually(lambda: shared.inbox_row(message), what="the message is recorded")
        await first.killed()
    assert not shared.effects.calls
    shared.to_handler.heal()
    async with shared.worker():
        await shared.quiet()
    await shared.audit()
    assert (await shared.inbox_row(message))["attempts"] == 2
    assert shared.effects.calls == {message: 1}


@pytest.mark.fault("N03")
async def test_an_effect_that_its_worker_never_noted_is_not_repeated(shared: Site) -> None:
    """One message is in the handler's hands, the other is answered with 200, when the worker dies."""
    working, answered = await shared.send(2)

    async def work(call: Call, writer: asyncio.StreamWriter) -> None:
        shared.effects.taken[call.message_id] += 1
        await hang(call, writer)

    async def answer_into_the_void(call: Call, writer: asyncio.StreamWriter) -> None:
        await eventually(lambda: shared.effects.calls[working])
        shared.to_database.drop_to_server()
        shared.effects.taken[call.message_id] += 1
        await answer(200)(call, writer)

    shared.effects.script[working] = in_turn(work, answer(409))
    shared.effects.script[answered] = in_turn(answer_into_the_void, answer(409))
    async with shared.worker(name="killed") as first:
        await eventually(lambda: len(shared.effects.taken) == 2, within=15, what="both have their effect")
        await first.killed()
    shared.to_database.heal()
    async with shared.worker():
        await shared.quiet()
    await shared.audit()
    assert shared.effects.calls == {working: 2, answered: 2}


@pytest.mark.fault("N04")
async def test_an_effect_is_acknowledged_only_when_the_database_knows_of_it(shared: Site) -> None:
    """The database is away for longer than ack_wait; the message is kept alive all the while."""

    async def answer_without_database(call: Call, writer: asyncio.StreamWriter) -> None:
        shared.effects.calls[call.message_id] += 1
        shared.to_database.stall()
        shared.effects.taken[call.message_id] += 1
        await answer(200)(call, writer)

    shared.handler.default = answer_without_database
    async with shared.worker(database_timeout_seconds=0.5) as worker:
        await worker.ready()
        [message] = await shared.send()
        await eventually(lambda: shared.effects.taken[message])
        await asyncio.sleep(ACK_WAIT + 0.5)
        await worker.answers(503, "inbox database")
        assert (await shared.consumer())["num_ack_pending"] == 1
        shared.to_database.heal()
        await shared.quiet()
        assert await shared.deliveries() == 1
    await shared.audit()
    assert shared.effects.calls == {message: 1}


@pytest.mark.fault("N05")
async def test_a_processed_message_whose_acknowledgement_is_lost_is_not_handled_again(shared: Site) -> None:
    """Once the frame is lost on the way, once the worker dies before it sends it."""
    marking = {"table": "inbox_messages", "event": "UPDATE OF processed_at"}
    async with shared.worker(name="killed") as first:
        await first.ready()
        async with held(shared.dsn, **marking) as hold:
            [unheard] = await shared.send()
            await hold.reached()
            shared.to_broker.drop_to_server()
        await eventually(lambda: processed(shared, unheard))
        shared.to_broker.heal()
        await shared.quiet()
        async with held(shared.dsn, **marking) as hold:
            [unsaid] = await shared.send()
            await hold.reached()
            shared.to_broker.drop_to_server()
        await eventually(lambda: processed(shared, unsaid))
        await first.killed()
    shared.to_broker.heal()
    assert (await shared.consumer())["num_ack_pending"] == 1
    async with shared.worker():
        await shared.quiet()
    await shared.audit()
    assert shared.effects.calls == {unheard: 1, unsaid: 1}
    assert await shared.deliveries() == 4


@pytest.mark.fault("N18")
async def test_a_message_that_kills_its_worker_each_time_ends_exhausted(site_with: SiteWith) -> None:
    """The handler is not asked once more when its attempts are spent."""
    workers: list[Any] = []

    async def kill(_call: Call, _writer: asyncio.StreamWriter) -> None:
        workers[-1].send(signal.SIGKILL)

    short: dict[str, Any] = {"inbox_lease_seconds": 0.9, "handler_timeout_seconds": 0.9}
    async with site_with(consumer={"ack_wait": SECOND}, **short) as at:
        [deadly] = await at.send()
        at.effects.script[deadly] = kill
        for name in ("first", "second"):
            async with at.worker(name=name, inbox_attempts_max=2) as worker:
                workers.append(worker)
                assert await worker.ended() == -signal.SIGKILL
        async with at.worker(inbox_attempts_max=2):
            await at.quiet()
        await at.audit(dead_lettered=frozenset({deadly}))
        assert at.effects.calls == {deadly: 2}
        [letter] = await at.dead_letters()
        assert letter["Dlq-Reason"] == "EXHAUSTED"


@pytest.mark.fault("N33")
async def test_in_flight_messages_whose_rows_a_failover_lost_are_recorded_again(site_with: SiteWith) -> None:
    """Promoted was a standby that lacked the last commits: the rows are gone, leases and all."""
    lost: set[str] = set()
    one_at_a_time = asyncio.Lock()

    def lose_the_row_and(status: int) -> Behaviour:
        async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
            if call.message_id not in lost:
                lost.add(call.message_id)
                async with one_at_a_time:
                    await at.database.execute(
                        "DELETE FROM inbox_messages WHERE message_id = $1", call.message_id
                    )
                await answer(status)(call, writer)
            else:
                await answer(409)(call, writer)

        return behave

    async with site_with(consumer={"ack_wait": 120 * SECOND}) as at:
        taken, refused, failed = await at.send(3)
        at.effects.script = {taken: lose_the_row_and(200), refused: lose_the_row_and(422)}
        at.effects.script[failed] = lose_the_row_and(500)
        async with at.worker():
            await at.quiet(within=10)
        assert at.effects.calls == {taken: 1, refused: 2, failed: 2}
        for message_id in (taken, refused, failed):
            assert (await at.inbox_row(message_id))["processed_at"] is not None


@pytest.mark.fault("N08")
async def test_a_worker_that_stalls_in_a_call_is_succeeded_after_its_lease_and_then_fenced(
    shared: Site,
) -> None:
    lease_seconds = ACK_WAIT + 2
    goes_on, called_at = asyncio.Event(), []

    async def wait(call: Call, writer: asyncio.StreamWriter) -> None:
        called_at.append(time.time())
        shared.effects.taken[call.message_id] += 1
        await goes_on.wait()
        await answer(200)(call, writer)

    async def know_it(call: Call, writer: asyncio.StreamWriter) -> None:
        called_at.append(time.time())
        await answer(409)(call, writer)

    [message] = await shared.send()
    shared.effects.script[message] = in_turn(wait, know_it)
    async with shared.worker(name="stalled", inbox_lease_seconds=lease_seconds) as stalled:
        await eventually(lambda: called_at, within=15)
        stalled.send(signal.SIGSTOP)
        leased_until = (await shared.inbox_row(message))["locked_until"].timestamp()
        async with shared.worker(name="successor", inbox_lease_seconds=lease_seconds):
            await shared.quiet()
            before = await shared.inbox_row(message)
            goes_on.set()
            stalled.send(signal.SIGCONT)
            await stalled.tells("leases_lost")
        assert await shared.inbox_row(message) == before
    await shared.audit()
    assert shared.effects.calls == {message: 2}
    assert called_at[1] >= leased_until


def work(at: Site, *, seconds: float) -> Behaviour:
    """Let a call take its time, and have its effect."""

    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        at.effects.taken[call.message_id] += 1
        await answer(200)(call, writer)

    return behave


@pytest.mark.fault("N09")
async def test_a_call_that_outlasts_its_lease_is_kept_alive_and_made_once(site_with: SiteWith) -> None:
    short: dict[str, Any] = {"inbox_lease_seconds": 1, "handler_timeout_seconds": 3.9}
    async with site_with(consumer={"ack_wait": 4 * SECOND}, **short) as at:
        [message] = await at.send()
        at.effects.script[message] = work(at, seconds=3.2)
        async with at.worker(name="one"), at.worker(name="two"):
            await eventually(lambda: at.database.fetchval(LEASE_RENEWED), what="the lease was renewed")
            await at.quiet()
        await at.audit()
        assert at.effects.calls == {message: 1}
        assert await at.deliveries() == 1


@pytest.mark.fault("N10")
async def test_messages_are_fetched_only_when_there_is_a_place_for_them(site_with: SiteWith) -> None:
    """All of them together take longer than the server waits twice for one acknowledgement."""
    few: dict[str, Any] = {"handler_concurrency": 2, "handler_timeout_seconds": 1.5}
    async with site_with(consumer={"ack_wait": 2 * SECOND}, **few) as at:
        messages = await at.send(20)
        at.effects.script.update(dict.fromkeys(messages, work(at, seconds=0.5)))
        async with at.worker():
            await at.quiet()
        await at.audit()
        assert at.effects.calls == Counter(messages)
        assert await at.deliveries() == len(messages)
