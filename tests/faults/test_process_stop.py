"""A stop is graceful wherever it comes, bounded whatever hangs, and leaves nothing to wait for its lease."""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from tests.support.handlers import Call, answer, hang
from tests.support.hold import held
from tests.support.site import Site
from tests.support.waiting import eventually
from tests.support.worker import running

BESIDE_A_SILENT_RESOLVER = """
import threading
from sea_mq_worker.__main__ import main
threading.Thread(target=threading.Event().wait).start()
main()
"""
"""The thread of a name lookup can no more be ended than this one."""
GRACE_SECONDS = 0.5
BUSY_MACHINE_SECONDS = 5.0
"""What other processes may add to a time."""
END_SESSION = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'sea_mq_worker session'"
)
LEFT = (
    "SELECT (SELECT count(*) FROM outbox_events WHERE state = 'CLAIMED')"
    " + (SELECT count(*) FROM inbox_messages WHERE locked_by IS NOT NULL)"
)

Moment = Callable[[Site, AsyncExitStack], Awaitable[Callable[[], Awaitable[None]]]]
"""Lets a worker come to some point of its work; returns what lets it go on."""


def in_statement(table: str, event: str, when: str) -> Moment:
    async def come(site: Site, stack: AsyncExitStack) -> Callable[[], Awaitable[None]]:
        hold = await stack.enter_async_context(held(site.dsn, table=table, event=event, when=when))
        await site.both_ways()
        await hold.reached()
        return hold.on_done

    return come


async def in_publishing(site: Site, _: AsyncExitStack) -> Callable[[], Awaitable[None]]:
    site.to_broker.stall()
    await site.commit(5)
    await eventually(lambda: site.database.fetchval(LEFT))
    return healing(site)


async def in_handling(site: Site, _: AsyncExitStack) -> Callable[[], Awaitable[None]]:
    may_answer = asyncio.Event()

    async def wait(call: Call, writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        await site.effects.take(call, writer)

    site.handler.default = wait
    await site.send(5)
    await site.handler.called(5, within=15)

    async def on_done() -> None:
        may_answer.set()

    return on_done


async def in_burying(site: Site, _: AsyncExitStack) -> Callable[[], Awaitable[None]]:
    async def reject(call: Call, writer: asyncio.StreamWriter) -> None:
        site.to_broker.stall()
        await answer(422)(call, writer)

    site.handler.default = reject
    [message] = await site.send()
    await eventually(lambda: site.inbox_row(message), until=lambda row: row and row["dead_letter_begun_at"])
    return healing(site)


def healing(site: Site) -> Callable[[], Awaitable[None]]:
    async def on_done() -> None:
        site.to_broker.heal()

    return on_done


MOMENTS: dict[str, Moment] = {
    "claiming": in_statement("outbox_events", "UPDATE", "NEW.state = 'CLAIMED'"),
    "publishing": in_publishing,
    "settling": in_statement("outbox_events", "UPDATE", "NEW.state = 'PUBLISHED'"),
    "recording": in_statement("inbox_messages", "INSERT", "true"),
    "handling": in_handling,
    "closing": in_statement("inbox_messages", "UPDATE", "NEW.processed_at IS NOT NULL"),
    "burying": in_burying,
}


@pytest.mark.fault("L02")
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_stop_in_the_middle_ends_what_is_in_hand_and_gives_back_the_rest(
    shared: Site, moment: str
) -> None:
    async with AsyncExitStack() as stack:
        async with shared.worker(database_timeout_seconds=2) as worker:
            await worker.ready()
            on_done = await MOMENTS[moment](shared, stack)
            worker.send(signal.SIGTERM)
            await worker.answers(503)
            await on_done()
            assert await worker.ended() == 0
        assert not await shared.database.fetchval(LEFT)
    shared.handler.default = shared.effects.take
    async with shared.worker(name="next"):
        await shared.quiet()
    dead_lettered = [letter["Dlq-Message-Id"] for letter in await shared.dead_letters()]
    await shared.audit(dead_lettered=frozenset(dead_lettered))


@pytest.mark.fault("L03")
async def test_a_stop_waits_for_a_hanging_handler_no_longer_than_its_grace(shared: Site) -> None:
    shared.handler.default = hang
    async with shared.worker(grace_seconds=GRACE_SECONDS, handler_timeout_seconds=2.9) as worker:
        [message] = await shared.send()
        await shared.handler.called(1, within=15)
        began = time.monotonic()
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 5
        assert GRACE_SECONDS <= time.monotonic() - began < GRACE_SECONDS + 1 + BUSY_MACHINE_SECONDS
    assert (await shared.consumer())["ack_floor"]["stream_seq"] == 0
    assert (await shared.inbox_row(message))["processed_at"] is None
    shared.handler.default = shared.effects.take
    async with shared.worker(name="next"):
        await shared.quiet()
    await shared.audit()


async def test_a_session_that_ends_during_a_stop_is_no_trouble(shared: Site) -> None:
    shared.handler.default = hang
    async with shared.worker(handler_timeout_seconds=2.9) as worker:
        await shared.send()
        await shared.handler.called(1, within=15)
        worker.send(signal.SIGTERM)
        await worker.answers(503)
        await shared.database.execute(END_SESSION)
        await worker.tells("session_ended")
        assert "session_lost" not in worker.events()


@pytest.mark.parametrize("away", ["broker", "both"])
async def test_a_stop_while_a_server_is_silent_is_bounded_too(shared: Site, away: str) -> None:
    """What has hung up cannot be said goodbye to."""
    async with shared.worker(grace_seconds=GRACE_SECONDS) as worker:
        await worker.ready()
        shared.to_broker.stall()
        if away == "both":
            shared.to_database.stall()
        await shared.both_ways()
        await worker.answers(503)
        began = time.monotonic()
        worker.send(signal.SIGTERM)
        assert await worker.ended(within=30) in {0, 5}, worker.written[-3000:]
        assert time.monotonic() - began < GRACE_SECONDS + 1 + BUSY_MACHINE_SECONDS
    shared.to_broker.heal()
    shared.to_database.heal()
    async with shared.worker(name="next"):
        await shared.quiet()
    await shared.audit()


@pytest.mark.parametrize(("command", "code"), [(("run",), 0), (("run", "--until-empty"), 1)])
async def test_a_stop_during_the_start_waits_for_no_silent_database(
    shared: Site, command: tuple[str, ...], code: int
) -> None:
    shared.to_database.stall()
    async with shared.worker(*command, grace_seconds=GRACE_SECONDS) as worker:
        await eventually(lambda: shared.to_database.requests, what="it connects")
        began = time.monotonic()
        worker.send(signal.SIGTERM)
        assert await worker.ended(within=30) == code, worker.written
        assert time.monotonic() - began < GRACE_SECONDS + 1 + BUSY_MACHINE_SECONDS


async def test_a_stop_waits_for_no_silent_resolver(shared: Site) -> None:
    program = (sys.executable, "-c", BESIDE_A_SILENT_RESOLVER)
    async with running(shared.target, shared.folder / "worker.log", program=program) as worker:
        await worker.ready()
        await worker.stopped()


@pytest.mark.fault("L04")
@pytest.mark.parametrize(
    ("first", "second", "code"), [("TERM", "TERM", 143), ("INT", "INT", 130), ("TERM", "INT", 130)]
)
async def test_a_second_signal_ends_it_at_once(shared: Site, first: str, second: str, code: int) -> None:
    shared.handler.default = hang
    async with shared.worker(handler_timeout_seconds=2.9) as worker:
        await shared.send()
        await shared.handler.called(1, within=15)
        worker.send(signal.Signals[f"SIG{first}"])
        await worker.answers(503)
        began = time.monotonic()
        worker.send(signal.Signals[f"SIG{second}"])
        assert await worker.ended() == code
        assert time.monotonic() - began < 0.5 + BUSY_MACHINE_SECONDS
