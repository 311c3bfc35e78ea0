"""Batches to the handler on real sockets: which calls share a request, and what its answer means for each."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from sea_mq_worker.inbox.http import HttpBatchHandler, HttpEventHandler
from sea_mq_worker.inbox.message import (
    Accepted,
    BatchFailed,
    HandlerRequest,
    HandlerResult,
    NotDelivered,
    Poison,
    Retry,
)
from tests.support.clocks import pass_time
from tests.support.handlers import Behaviour, Call, HandlerServer, answer, handler_request, hang, raw

CANARY = "canary-5f2e"
MESSAGES_MAX = 4
MakeHandler = Callable[..., HttpBatchHandler]


def request(number: int, payload: bytes = b"{}", *, batch_max: int = 0) -> HandlerRequest:
    return handler_request(message_id(number), payload=payload, batch_max=batch_max)


def message_id(number: int) -> str:
    return f"550e8400-e29b-41d4-a716-{number:012}"


def status(number: int, value: object = 200, **others: object) -> dict[str, object]:
    return {"message_id": message_id(number), "status": value, **others}


def statuses(*elements: object) -> Behaviour:
    return answer(200, json.dumps(elements).encode())


async def handle(handler: HttpBatchHandler, *requests: HandlerRequest) -> Sequence[HandlerResult]:
    """Call for all at once, as the tasks of messages that were received together do."""
    return await asyncio.gather(*map(handler.handle_request, requests))


def sizes(server: HandlerServer) -> list[int]:
    """Return the number of messages of each request; 0: to the single endpoint."""
    return [len(call.json) if call.path.endswith("-batch") else 0 for call in server.calls]


@pytest.fixture
def failures() -> list[str]:
    """Errors of divided batches, as the worker logs them."""
    return []


@pytest.fixture
async def make(server: HandlerServer, failures: list[str]) -> AsyncIterator[MakeHandler]:
    made: list[HttpBatchHandler] = []

    def make_handler(*, bytes_max: int = 2**20, concurrency: int = 2, **changes: Any) -> HttpBatchHandler:
        client: dict[str, Any] = {"timeout_seconds": 10.0, "concurrency": concurrency} | changes
        made.append(
            HttpBatchHandler(
                single=HttpEventHandler(url=server.url, **client),
                batch=HttpEventHandler(url=f"{server.url}-batch", **client),
                concurrency=concurrency,
                messages_max=MESSAGES_MAX,
                bytes_max=bytes_max,
                on_failed=failures.append,
            )
        )
        return made[-1]

    yield make_handler
    for handler in made:
        await handler.close()


async def test_a_batch_is_an_array_of_what_single_calls_post(
    server: HandlerServer, make: MakeHandler
) -> None:
    handler = make(token=lambda: "s3cret")
    requests = [request(number, b'{"amount": 1.23456789012345678901}') for number in range(3)]
    assert await handle(handler, *requests) == [Accepted(200)] * 3
    for each in requests:
        await handler.handle_request(each)
    batch, *single = server.calls
    assert [call.path for call in server.calls] == ["/handle-batch", "/handle", "/handle", "/handle"]
    assert batch.body == b"[" + b",".join(call.body for call in single) + b"]"
    assert batch.headers["authorization"] == "Bearer s3cret"
    assert "idempotency-key" not in batch.headers
    assert [call.headers["idempotency-key"] for call in single] == [message_id(n) for n in range(3)]


async def test_both_endpoints_have_to_be_reachable(make: MakeHandler) -> None:
    handler, other = make(), make()
    assert await handler.reach() is None
    await other.close()
    handler.batch = other.batch
    assert isinstance(await handler.reach(), NotDelivered)


async def test_each_message_of_a_batch_is_judged_by_its_own_status(
    server: HandlerServer, make: MakeHandler
) -> None:
    server.batch = statuses(status(3, 503, retry_after=0.5), status(2, 422), status(0), status(1, 409))
    accepted, known, poison, busy = await handle(make(), *map(request, range(4)))
    assert (accepted, known) == (Accepted(200), Accepted(409))
    assert isinstance(poison, Poison)
    assert isinstance(busy, Retry)
    assert (busy.after_seconds, busy.answered) == (0.5, True)


async def test_a_message_of_a_batch_waits_no_longer_than_a_single_one_may(
    server: HandlerServer, make: MakeHandler
) -> None:
    server.batch = statuses(status(0), status(1, 503, retry_after=10**9))
    _, busy = await handle(make(), request(0), request(1))
    assert isinstance(busy, Retry)
    assert busy.after_seconds == 300.0


@pytest.mark.parametrize(
    ("problem", "kept"), [({"title": "The stock is locked"}, " (The stock is locked)"), ([1], ""), (None, "")]
)
async def test_the_problem_of_a_message_is_kept_only_where_the_settings_say_so(
    server: HandlerServer, make: MakeHandler, problem: object, kept: str
) -> None:
    server.batch = statuses(status(0), status(1, 503, problem=problem))
    for keep, detail in ((True, kept), (False, "")):
        _, failed = await handle(make(keep_problem=keep), request(0), request(1))
        assert isinstance(failed, Retry)
        assert failed.error == f"the handler answered 503{detail}"


async def test_batches_have_bounds_and_what_is_above_them_goes_alone(
    server: HandlerServer, make: MakeHandler
) -> None:
    await handle(make(), *map(request, range(2 * MESSAGES_MAX + 1)))
    assert sorted(sizes(server)) == [0, MESSAGES_MAX, MESSAGES_MAX]
    server.calls.clear()
    large = request(1, b'"' + b"x" * 2000 + b'"')
    await handle(make(bytes_max=1000), request(0), large, request(2), request(3))
    assert sorted(sizes(server)) == [0, 0, 2]
    assert all(len(call.body) <= 1000 for call in server.calls if call.path.endswith("-batch"))


async def test_while_all_calls_are_taken_messages_wait_and_share_the_next(
    server: HandlerServer, make: MakeHandler
) -> None:
    free = asyncio.Event()

    async def wait(call: Call, writer: asyncio.StreamWriter) -> None:
        await free.wait()
        await answer(200)(call, writer)

    server.script = {message_id(0): wait}
    handler = make(concurrency=1)
    first = asyncio.create_task(handler.handle_request(request(0)))
    await server.called(1)
    later = [asyncio.create_task(handler.handle_request(request(number))) for number in (1, 2, 3)]
    later[0].cancel()
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(first, *later[1:])
    assert sizes(server) == [0, 2]


BROKEN: dict[str, Behaviour] = {
    "no JSON": answer(200, CANARY.encode()),
    "an object": answer(200, json.dumps({CANARY: 1}).encode()),
    "brackets": answer(200, b"[" * 50_000),
    "empty": answer(200),
    "one too few": statuses(status(0), status(1)),
    "another message": statuses(status(0), status(1), status(9)),
    "one twice": statuses(status(0), status(1), status(1)),
    "one too many": statuses(status(0), status(1), status(2), status(2)),
    "integers": statuses(200, 200, 200),
    "a text for a status": statuses(status(0), status(1), status(2, CANARY)),
    "a boolean for a status": statuses(status(0), status(1), status(2, value=True)),
    "no such status": statuses(status(0), status(1), status(2, 2000)),
    "longer than is read": answer(200, b" " * 10**6 + json.dumps([*map(status, range(3))]).encode()),
    "accepted without statuses": answer(409),
    **{str(code): answer(code, CANARY.encode()) for code in (400, 413, 422, 500, 502, 504)},
}
LOST: dict[str, Behaviour] = {
    "closed": raw(b"", close=True),
    "reset": raw(b"", reset=True),
    "no HTTP": raw(f"{CANARY}\r\n".encode(), close=True),
    "too late": hang,
}


@pytest.mark.parametrize("what", [*BROKEN, *LOST])
async def test_a_batch_without_a_whole_answer_is_halved_and_settles_nothing(
    what: str, server: HandlerServer, make: MakeHandler, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.batch = (BROKEN | LOST)[what]
    call = asyncio.create_task(handle(make(), *map(request, range(3))))
    await server.called(1)
    if what == "too late":
        await pass_time(monkeypatch, seconds=20)
    results = await call
    assert [(type(result), getattr(result, "batch_max", 0)) for result in results] == [(BatchFailed, 2)] * 3
    assert {result.answered for result in results if isinstance(result, BatchFailed)} == {what in BROKEN}
    [text] = failures
    assert CANARY not in text
    assert "to a batch of 3 messages" in text
    assert ("has more than 65536 bytes" in text) == (what == "longer than is read")


@pytest.mark.parametrize("code", [503, 429, 401, 403, 404, 302, 201])
async def test_a_status_of_the_handler_itself_holds_for_every_message(
    code: int, server: HandlerServer, make: MakeHandler, failures: list[str]
) -> None:
    server.batch = server.default = answer(code, retry_after="7")
    handler = make()
    alone = await handler.handle_request(request(0))
    assert isinstance(alone, Retry)
    assert await handle(handler, *map(request, range(3))) == [alone] * 3
    assert not failures


async def test_a_handler_that_is_down_has_got_no_message_of_a_batch(
    server: HandlerServer, make: MakeHandler
) -> None:
    server.stop_listening()
    results = await handle(make(), *map(request, range(3)))
    assert {type(result) for result in results} == {NotDelivered}


async def test_the_bad_message_is_found_by_halving_and_fails_alone(
    server: HandlerServer, make: MakeHandler, failures: list[str]
) -> None:
    server.script = {message_id(2): raw(b"", reset=True)}
    handler, found = make(), {}

    async def until_judged(one: HandlerRequest) -> None:
        while isinstance(result := await handler.handle_request(one), BatchFailed):
            one = one._replace(batch_max=result.batch_max)
        found[one.message_id] = result

    await asyncio.gather(*(until_judged(request(number)) for number in range(4)))
    assert [found[message_id(number)] for number in (0, 1, 3)] == [Accepted(200)] * 3
    assert isinstance(found[message_id(2)], Retry)
    assert sorted(sizes(server)) == [0, 0, 2, 2, 4]
    assert len(failures) == 1


async def test_messages_of_a_failed_batch_do_not_mix_with_others(
    server: HandlerServer, make: MakeHandler
) -> None:
    suspects = [request(number, batch_max=2) for number in (0, 1, 2)]
    await handle(make(), suspects[0], request(3), suspects[1], request(4), suspects[2])
    batches = [{each["message_id"] for each in call.json} for call in server.calls if "batch" in call.path]
    assert sorted(map(sorted, batches)) == [[message_id(0), message_id(1)], [message_id(3), message_id(4)]]
