"""The EventHandler contract (PORT-047-005), over the in-memory fake and over HTTP on real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TypeAlias

import pytest

from sea_mq_worker.inbox.http import HttpEventHandler
from sea_mq_worker.inbox.message import Accepted, NotDelivered, Poison, Retry
from sea_mq_worker.testing.handler import Behaviour, Hang, InMemoryHandler, LoseResponse, Respond, Unreachable
from tests.support.clocks import pass_time
from tests.support.handlers import HandlerServer, answer, handler_request, handler_server, hang, raw
from tests.support.waiting import eventually

TIMEOUT_SECONDS = 30
MESSAGE_ID = "550e8400-e29b-41d4-a716-446655440000"


REQUEST = handler_request(MESSAGE_ID)


class MemoryWorld:
    def __init__(self) -> None:
        self.handler = InMemoryHandler(timeout_seconds=TIMEOUT_SECONDS)

    async def behave(self, behaviour: Behaviour) -> None:
        """Let the handler do this from now on."""
        self.handler.script = lambda _request, _call: behaviour

    def calls(self) -> int:
        """Count the requests that reached the handler."""
        return self.handler.calls.total()


class HttpWorld:
    """A server that does over TCP what a behaviour describes."""

    def __init__(self, server: HandlerServer, down: AsyncExitStack) -> None:
        self.handler = HttpEventHandler(url=server.url, timeout_seconds=TIMEOUT_SECONDS, concurrency=4)
        self._server = server
        self._down = down
        server.default = answer(200)

    async def behave(self, behaviour: Behaviour) -> None:
        match behaviour:
            case Respond() if behaviour.retry_after_seconds:
                wait = f"{behaviour.retry_after_seconds:.0f}"
                self._server.default = answer(behaviour.status, retry_after=wait)
            case Respond():
                self._server.default = answer(behaviour.status)
            case LoseResponse():
                self._server.default = raw(b"", close=True)
            case Hang():
                self._server.default = hang
            case Unreachable():
                await self._down.aclose()

    def calls(self) -> int:
        return len(self._server.calls)


World: TypeAlias = MemoryWorld | HttpWorld


@pytest.fixture(params=["memory", "http"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    async with AsyncExitStack() as stack:
        http = HttpWorld(await stack.enter_async_context(handler_server()), stack)
        yield http
        await http.handler.close()


@pytest.mark.clause("POL-047-005", "PORT-047-005", "handler-200")
@pytest.mark.parametrize("status", [200, 409])
async def test_200_and_409_are_accepted(world: World, status: int) -> None:
    await world.behave(Respond(status=status))
    assert await world.handler.handle_request(REQUEST) == Accepted(status)


@pytest.mark.clause("POL-047-006", "handler-422")
async def test_422_is_poison(world: World) -> None:
    await world.behave(Respond(status=422))
    result = await world.handler.handle_request(REQUEST)
    assert isinstance(result, Poison)
    assert "422" in result.error


@pytest.mark.clause("POL-047-007", "handler-5xx")
@pytest.mark.parametrize("status", [500, 502, 503, 504, 599])
async def test_5xx_is_retried(world: World, status: int) -> None:
    await world.behave(Respond(status=status))
    result = await world.handler.handle_request(REQUEST)
    assert isinstance(result, Retry)
    assert str(status) in result.error
    assert result.after_seconds == 0.0


@pytest.mark.clause("handler-other")
@pytest.mark.parametrize("status", [201, 202, 204, 301, 307, 400, 401, 403, 404, 405, 418])
async def test_any_other_status_is_retried_and_named(world: World, status: int) -> None:
    """A wrong deployment must neither settle messages nor bury them."""
    await world.behave(Respond(status=status))
    result = await world.handler.handle_request(REQUEST)
    assert isinstance(result, Retry)
    assert str(status) in result.error
    assert "what is deployed" in result.error
    assert result.about == ("deployment" if status in {301, 307, 401, 403, 404, 405} else "")


async def test_413_is_about_the_size(world: World) -> None:
    await world.behave(Respond(status=413))
    result = await world.handler.handle_request(REQUEST)
    assert isinstance(result, Retry)
    assert (result.about, "takes no request of this size" in result.error) == ("size", True)


@pytest.mark.parametrize(("status", "seconds"), [(429, 7.0), (503, 7.0), (500, 0.0)])
async def test_only_429_and_503_may_ask_to_wait(world: World, status: int, seconds: float) -> None:
    await world.behave(Respond(status=status, retry_after_seconds=7))
    result = await world.handler.handle_request(REQUEST)
    assert isinstance(result, Retry)
    assert result.after_seconds == seconds


@pytest.mark.clause("POL-047-007")
async def test_a_handler_that_hangs_is_retried_at_the_deadline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.behave(Hang())
    call = asyncio.create_task(world.handler.handle_request(REQUEST))
    await eventually(world.calls)
    await pass_time(monkeypatch, seconds=TIMEOUT_SECONDS + 10)
    result = call.result()
    assert isinstance(result, Retry)
    assert "30 s" in result.error


@pytest.mark.clause("POL-047-007")
async def test_a_lost_answer_is_retried(world: World) -> None:
    await world.behave(LoseResponse())
    assert isinstance(await world.handler.handle_request(REQUEST), Retry)
    assert world.calls() == 1


async def test_a_refused_connection_is_not_delivered(world: World) -> None:
    await world.behave(Unreachable())
    assert isinstance(await world.handler.handle_request(REQUEST), NotDelivered)
    assert world.calls() == 0


async def test_a_connection_alone_shows_whether_the_handler_can_be_reached(world: World) -> None:
    assert await world.handler.reach() is None
    await world.behave(Unreachable())
    assert isinstance(await world.handler.reach(), NotDelivered)
    assert world.calls() == 0


async def test_trouble_with_one_call_leaves_the_next_one_alone(world: World) -> None:
    for trouble in (Respond(status=500), LoseResponse()):
        await world.behave(trouble)
        assert isinstance(await world.handler.handle_request(REQUEST), Retry)
    await world.behave(Respond())
    assert await world.handler.handle_request(
        handler_request("0b0e8400-e29b-41d4-a716-446655440000")
    ) == Accepted(200)
