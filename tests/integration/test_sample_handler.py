"""The sample handler under uvicorn, asked by the real client: both keep the same contract."""

import asyncio
import runpy
import socket
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from sea_mq_worker.inbox.http import HttpBatchHandler, HttpEventHandler
from sea_mq_worker.inbox.message import Accepted, HandlerRequest, Poison, Retry
from tests.support.handlers import handler_request
from tests.support.waiting import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "handler.py"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(runpy.run_path(str(EXAMPLE))["app"], log_level="warning"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    await eventually(lambda: server.started, what="uvicorn is up")
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await task


@pytest.fixture
async def handler(url: str) -> AsyncIterator[HttpEventHandler]:
    client = HttpEventHandler(url=f"{url}/handle", timeout_seconds=10.0, concurrency=4)
    yield client
    await client.close()


def request(payload: bytes, *, number: int = 1, **given: str) -> HandlerRequest:
    return handler_request(f"550e8400-e29b-41d4-a716-{number:012}", payload=payload, **given)


@pytest.mark.clause("terms-07", "handler-200")
async def test_a_message_takes_effect_once_however_often_it_comes(
    url: str, handler: HttpEventHandler
) -> None:
    assert await handler.handle_request(request(b'{"a": 1}')) == Accepted(200)
    assert await handler.handle_request(request(b'{"a": 1}')) == Accepted(409)
    shown = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/effects").read())
    assert shown == b'{"effects":1,"calls":2,"by_event_type":{"vibe_created":1}}'


@pytest.mark.parametrize("payload", [b"null", b"[]", b'"text"', b"1.23456789012345678901234567890"])
async def test_any_json_is_a_payload(handler: HttpEventHandler, payload: bytes) -> None:
    with_ids = request(payload, correlation_id="6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    assert await handler.handle_request(with_ids) == Accepted(200)


@pytest.mark.clause("handler-422")
async def test_poison_is_refused_for_ever(handler: HttpEventHandler) -> None:
    for _ in range(2):
        assert isinstance(await handler.handle_request(request(b'{"poison": true}')), Poison)


async def test_a_flaky_message_takes_effect_at_the_third_call(handler: HttpEventHandler) -> None:
    results = [await handler.handle_request(request(b'{"flaky": true}')) for _ in range(4)]
    assert [type(result) for result in results] == [Retry, Retry, Accepted, Accepted]
    assert results[2:] == [Accepted(200), Accepted(409)]


async def test_its_batch_endpoint_answers_for_each_message(url: str) -> None:
    client: dict[str, Any] = {"timeout_seconds": 10.0, "concurrency": 1}
    handler = HttpBatchHandler(
        single=HttpEventHandler(url=f"{url}/handle", **client),
        batch=HttpEventHandler(url=f"{url}/handle-batch", **client),
        concurrency=1,
        messages_max=10,
        bytes_max=2**20,
        on_failed=pytest.fail,
    )
    payloads = [b"{}", b'{"poison": true}', b'{"flaky": true}', b"1.5"]
    requests = [request(payload, number=number) for number, payload in enumerate(payloads)]
    results = await asyncio.gather(*map(handler.handle_request, requests))
    assert [type(result) for result in results] == [Accepted, Poison, Retry, Accepted]
    assert await handler.handle_request(requests[0]) == Accepted(409)
    await handler.close()
