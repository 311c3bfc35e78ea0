"""An inbound message costs so many statements, requests, messages and calls, whatever the machine."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.counters.budgets import check
from tests.counters.meters import Meters, counted
from tests.support.handlers import Behaviour, Call, answer
from tests.support.waiting import eventually
from tests.support.worker import running

MESSAGES = 1000
MESSAGES_OF_PROFILE = 300
BATCH = 50
"""What the handler is asked at once by default."""
RECORDING, CLOSING = "INSERT INTO inbox_messages", "SET processed_at"
PROCESSED = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL"

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_messages_ask_postgresql_the_broker_and_the_handler_no_more_than_they_must(
    metered: Meters, tmp_path: Path
) -> None:
    metered.handler.default, on_done = held(answer(200))
    async with running(metered.target, tmp_path / "log", outbox_enabled="false") as worker:
        await metered.send(MESSAGES)
        await metered.handler.called(BATCH, within=30)
        before = await metered.statements()
        on_done()
        await metered.handler.called(MESSAGES, within=60)
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
    spent, traffic = (await metered.statements()).since(before), await metered.traffic("inbox")
    assert await metered.database.fetchval(PROCESSED) == MESSAGES
    of_batches = spent.holding(RECORDING) + spent.holding(CLOSING)
    check("statements to PostgreSQL per inbound message", of_batches / MESSAGES, spent)
    check("other statements while a thousand messages are received", spent.total() - of_batches, spent)
    check("messages to and from the broker per inbound message", traffic / MESSAGES)
    check("HTTP requests per message that the handler accepts", len(metered.handler.calls) / MESSAGES)
    assert metered.handler.connections <= BATCH


async def test_a_message_takes_no_more_calls_of_functions(metered: Meters, tmp_path: Path) -> None:
    metered.handler.default, on_done = held(answer(200))
    async with counted(metered, tmp_path, outbox_enabled="false") as counter:
        await metered.send(MESSAGES_OF_PROFILE)
        await metered.handler.called(BATCH)
        await counter.begin()
        on_done()
        await eventually(
            lambda: metered.database.fetchval(PROCESSED),
            until=lambda found: found == MESSAGES_OF_PROFILE,
            within=60,
        )
        calls = await counter.end()
    check("calls of functions per inbound message, Python's and C's", calls / MESSAGES_OF_PROFILE)


def held(behaviour: Behaviour) -> tuple[Behaviour, Callable[[], None]]:
    """Hold all requests until the returned function is called, so that what waits comes in whole batches."""
    free = asyncio.Event()

    async def behave(call: Call, writer: Any) -> None:
        await free.wait()
        await behaviour(call, writer)

    return behave, free.set
