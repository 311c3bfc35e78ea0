"""Whatever the handler answers, and if it never does, no message is lost, buried in error or stuck."""

import asyncio
import gzip
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sea_mq_worker.dev.servers import free_port
from tests.support.handlers import Behaviour, Call, answer, drip, hang, in_turn, raw
from tests.support.jetstream import SECOND, create_consumer
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually

BOMB = gzip.compress(bytes(5_000_000))
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
RETRIED: Mapping[str, Behaviour] = {
    **{str(status): answer(status) for status in (201, 202, 204, 206, 300, 301, 302, 307, 308)},
    **{str(status): answer(status) for status in (400, 401, 403, 404, 405, 408, 410, 413, 418)},
    **{str(status): answer(status) for status in (500, 501, 502, 503, 504, 599, 999)},
    "205 with a body": raw(b"HTTP/1.1 205 X\r\ncontent-length: 2\r\n\r\nok"),
    "101": raw(b"HTTP/1.1 101 X\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"),
    "429 without a time": answer(429),
    "429 with an impossible date": answer(429, retry_after=f"Wed, 21 Oct {'9' * 30} 07:28:00 GMT"),
    "429 with a negative time": answer(429, retry_after="-5"),
    "reset": raw(b"", reset=True),
    "closed": raw(b"", close=True),
    "no HTTP": raw(b"220 mail.example ESMTP\r\n", close=True),
    "a huge header": raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n", close=True),
}
UNFINISHED: Mapping[str, Behaviour] = {
    "nothing": hang,
    "hints for ever": drip(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "half a status line": raw(b"HTTP/1.1 20", close=True),
    "half a status line and silence": raw(b"HTTP/1.1 20"),
    "a body that is cut off": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nok", close=True),
    "a body that never ends": drip(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", b"."),
    "a length that is too large": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok"),
    "two lengths": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok"),
}


@pytest.mark.fault("N43")
async def test_two_handlers_do_not_share_an_inbox_unless_one_replaces_the_other(shared: Site) -> None:
    stream, second = shared.target.upstream_stream, f"{shared.target.context}__second"
    await create_consumer(shared.broker, stream, second, filter_subject=f"{shared.target.upstream}.event.>")
    url = shared.handler.url
    other: dict[str, Any] = {"handler_url": f"{url}?other", "consumers": f"{stream}/{second}"}
    async with shared.worker(name="first") as first:
        await first.ready()
        async with shared.worker(name="clashes", **other) as clashing:
            assert await clashing.ended() == 3
            assert "SEA_MQ_DATABASE_SCHEMA" in clashing.written
        async with shared.worker(name="same handler", consumers=f"{stream}/{second}") as same:
            await same.ready()
            await same.stopped()
        async with shared.worker(name="changed handler", handler_url=f"{url}?changed") as changed:
            await changed.ready()
            await changed.stopped()
        await first.stopped()
    async with shared.worker(name="replaces", **other) as replacing:
        await replacing.ready()


def takes(at: Site) -> Behaviour:
    """Let a call have its effect, unless an earlier one had."""

    async def behave(call: Call, writer: asyncio.StreamWriter) -> None:
        known = call.message_id in at.effects.taken
        at.effects.taken[call.message_id] += not known
        await answer(409 if known else 200)(call, writer)

    return behave


@asynccontextmanager
async def listening(at: Site, port: int) -> AsyncIterator[None]:
    """Let the handler be found at a port for the length of a block."""
    server = await asyncio.start_server(at.handler.serve, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


@pytest.fixture(params=["single calls", "batches"])
def batches(request: pytest.FixtureRequest, shared: Site) -> Mapping[str, Any]:
    """The settings of a worker that sends messages by themselves, or in batches."""
    url = shared.target.environment["SEA_MQ_HANDLER_URL"]
    return {"handler_batch_url": f"{url}-batch"} if request.param == "batches" else {}


@pytest.mark.fault("N11")
async def test_only_the_contracts_statuses_settle_a_message(shared: Site, batches: Mapping[str, Any]) -> None:
    """Each of the others brings it again, and then it is processed like any other."""
    done, known, rejected, *others = await shared.send(3 + len(RETRIED))
    shared.effects.taken[known] = 1
    shared.effects.script |= {
        done: raw(b"HTTP/1.1 100 Continue\r\n\r\n" + OK),
        known: answer(409, body=BOMB, content_encoding="gzip"),
        rejected: answer(422, body=b'{"detail": "no such vibe"}'),
        **{
            message: in_turn(behaviour, takes(shared))
            for message, behaviour in zip(others, RETRIED.values(), strict=True)
        },
    }
    shared.effects.taken[done] = 1
    async with shared.worker(handler_slow_after=1000, inbox_backoff_max_seconds=0.5, **batches):
        await shared.quiet()
    await shared.audit(dead_lettered=frozenset({rejected}))
    if not batches:  # a batch that one message breaks is sent again in parts
        once = {done, known, rejected}
        assert shared.effects.calls == {i: 1 if i in once else 2 for i in shared.effects.calls}


@pytest.mark.fault("N11")
async def test_a_handlers_retry_after_delays_all_its_messages(
    shared: Site, batches: Mapping[str, Any]
) -> None:
    """Also when as many were told so that their event type is slow."""
    asked_at: dict[str, list[float]] = defaultdict(list)

    async def busy_at_first(call: Call, writer: asyncio.StreamWriter) -> None:
        asked_at[call.message_id].append(time.monotonic())
        if len(asked_at[call.message_id]) == 1:
            await answer(429, retry_after="2")(call, writer)
        else:
            await takes(shared)(call, writer)

    shared.handler.default = busy_at_first
    messages = await shared.send(20)
    async with shared.worker(handler_slow_after=5, **batches) as worker:
        await worker.answers(503, "429")
        await shared.quiet()
    await shared.audit()
    assert {len(moments) for moments in asked_at.values()} == {2}
    assert len(asked_at) == len(messages)
    assert all(second - first >= 2.0 for first, second in asked_at.values())


@pytest.mark.fault("N47")
async def test_a_wrong_deployment_buries_no_message_of_a_quiet_type(
    shared: Site, batches: Mapping[str, Any]
) -> None:
    messages = await shared.send(3)
    statuses = (404, 307, 401)
    behaviours = {message: answer(status) for message, status in zip(messages, statuses, strict=True)}
    shared.effects.script |= behaviours
    hasty = {"inbox_attempts_max": 2, "inbox_backoff_seconds": 0.1, "inbox_backoff_max_seconds": 0.1}
    async with shared.worker(**hasty, **batches) as worker:
        await worker.answers(503, "it has accepted no message since")
        await eventually(
            lambda: min(shared.effects.calls[one] for one in messages) >= 5, what="each is tried"
        )
        shared.effects.script.clear()
        await shared.quiet()
        await worker.ready()
    await shared.audit()


@pytest.mark.fault("N14")
async def test_an_answer_that_never_ends_costs_its_deadline_and_no_place(
    shared: Site, batches: Mapping[str, Any]
) -> None:
    """There is one place: a message that did not give it back would hold up all behind it."""
    messages = await shared.send(len(UNFINISHED))
    shared.effects.script |= {
        message: in_turn(behaviour, takes(shared))
        for message, behaviour in zip(messages, UNFINISHED.values(), strict=True)
    }
    one = {"handler_concurrency": 1, "handler_timeout_seconds": 0.3, "handler_slow_after": 1000}
    async with shared.worker(**one, **batches):
        await shared.quiet()
    await shared.audit()
    assert batches or shared.effects.calls == dict.fromkeys(messages, 2)


@pytest.mark.fault("N20")
async def test_a_message_that_kills_the_handler_is_found_in_its_batch_and_alone_counted(shared: Site) -> None:
    messages = await shared.send(20)
    killer = messages[13]
    shared.effects.script[killer] = raw(b"", reset=True)
    settings: dict[str, Any] = {"inbox_attempts_max": 3, "handler_slow_after": 1000}
    url = f"{shared.target.environment['SEA_MQ_HANDLER_URL']}-batch"
    async with shared.worker(handler_batch_url=url, **settings) as worker:
        await shared.quiet()
        logged = worker.events()
    await shared.audit(dead_lettered=frozenset({killer}))
    attempts = {message: (await shared.inbox_row(message))["attempts"] for message in messages}
    assert attempts == dict.fromkeys(messages, 1) | {killer: 3}
    assert logged.count("message_retried") == 2
    assert "handler_batch_failed" in logged
    [letter] = await shared.dead_letters()
    assert (letter["Dlq-Message-Id"], letter["Dlq-Reason"]) == (killer, "EXHAUSTED")


@pytest.mark.fault("N13")
async def test_a_deployment_that_rejects_everything_dead_letters_few_messages_until_it_is_fixed(
    shared: Site, batches: Mapping[str, Any]
) -> None:
    limit, per_second = 5, 2.0
    shared.handler.default = answer(422)
    messages = await shared.send(40)

    def asked() -> int:
        return sum(len(call.json) if isinstance(call.json, list) else 1 for call in shared.handler.calls)

    slow = {"handler_slow_after": limit, "handler_slow_failures_per_second": per_second}
    began = time.monotonic()
    async with shared.worker(**slow, **batches) as worker:
        body = await worker.answers(503, "the handler answered 422")
        assert "python -m sea_mq_worker inbox resume --type made" in body
        assert "python -m sea_mq_worker dlq redrive --type made" in body
        await eventually(lambda: asked() >= len(messages), what="all are asked about")
        shared.handler.default = shared.effects.take
        await shared.quiet()
        seconds = time.monotonic() - began
        await worker.ready()
    dead_lettered = frozenset(letter["Dlq-Message-Id"] for letter in await shared.dead_letters())
    assert limit <= len(dead_lettered) <= limit + 2 + seconds * per_second
    await shared.audit(dead_lettered=dead_lettered)
    assert set(shared.effects.taken) == set(messages) - dead_lettered


@pytest.mark.fault("N16")
@pytest.mark.fault("N09")
async def test_a_handler_that_is_down_costs_no_message_anything(site_with: SiteWith) -> None:
    """It is down for sixty times the first delay and for three times ack_wait."""
    port = free_port()
    async with site_with(
        consumer={"ack_wait": 3 * SECOND // 2, "max_ack_pending": 10},
        handler_concurrency=10,
        handler_timeout_seconds=0.9,
        inbox_backoff_seconds=0.05,
        inbox_attempts_max=3,
    ) as at:
        messages = await at.send(30)
        async with at.worker(handler_url=f"http://127.0.0.1:{port}/handle") as worker:
            await worker.answers(503, "cannot be reached")
            await asyncio.sleep(4.5)

            async def all_recorded() -> bool:
                recorded = await at.database.fetchval("SELECT count(*) FROM inbox_messages")
                assert recorded <= 10
                return await at.deliveries() == recorded

            await eventually(all_recorded, what="each delivery is recorded, and none was repeated")
            async with listening(at, port):
                await at.quiet()
        await at.audit()
        assert at.effects.calls == dict.fromkeys(messages, 1)
        assert await at.deliveries() == len(messages)
        assert await at.database.fetchval("SELECT max(attempts) FROM inbox_messages") == 1


@pytest.mark.fault("N16")
async def test_a_handler_that_takes_calls_and_answers_none_buries_nothing(
    shared: Site, batches: Mapping[str, Any]
) -> None:
    messages = await shared.send(20)
    shared.to_handler.stall()
    impatient = {"handler_timeout_seconds": 0.3, "handler_slow_after": 5, "inbox_attempts_max": 3}
    async with shared.worker(**impatient, **batches) as worker:
        await worker.answers(503, "the handler has answered no call")
        await asyncio.sleep(2.0)
        assert not await shared.dead_letters()
        shared.to_handler.heal()
        await shared.quiet()
    await shared.audit()
    assert set(shared.effects.taken) == set(messages)


@pytest.mark.fault("N17")
@pytest.mark.fault("N18")
async def test_a_message_that_always_fails_waits_between_calls_and_ends_exhausted(
    shared: Site, batches: Mapping[str, Any]
) -> None:
    """There is one place: others go through it while the message waits."""
    called_at: list[float] = []
    others_at: list[float] = []
    others: list[str] = []

    async def fail(call: Call, writer: asyncio.StreamWriter) -> None:
        called_at.append(time.monotonic())
        others.extend(await shared.send(4))
        await answer(500)(call, writer)

    async def take(call: Call, writer: asyncio.StreamWriter) -> None:
        others_at.append(time.monotonic())
        await shared.effects.take(call, writer)

    [bad] = await shared.send()
    shared.handler.default, shared.handler.script[bad] = take, fail
    one: dict[str, Any] = {"handler_concurrency": 1, "inbox_attempts_max": 5, "inbox_backoff_seconds": 1}
    async with shared.worker(**one, **batches) as worker:
        await shared.quiet()
        logged = [json.loads(line) for line in worker.written.splitlines()]
    delays = [line["delay_seconds"] for line in logged if line["event"] == "message_retried"]
    await shared.audit(dead_lettered=frozenset({bad}))
    waits = [(began, began + delay) for began, delay in zip(called_at, delays, strict=False)]
    assert len(called_at) == 5
    assert all(later >= end for (_, end), later in zip(waits, called_at[1:], strict=False))
    assert any(began < moment < end for began, end in waits for moment in others_at), "others flow"
    [letter] = await shared.dead_letters()
    assert (letter["Dlq-Reason"], letter["Dlq-Attempts"]) == ("EXHAUSTED", "5")
    assert "500" in letter["Dlq-Detail"]
    assert "500" in (await shared.inbox_row(bad))["last_error"]
    assert await shared.deliveries() == len(others) + 5


async def test_a_message_that_is_read_ahead_of_its_delivery_is_counted_once(site_with: SiteWith) -> None:
    """The first five fill the consumer; the others are read past them, and wait in inbox and stream."""
    messages = 30
    async with site_with(consumer={"max_ack_pending": 5}, handler_slow_after=1000) as at:
        at.handler.default = answer(503, retry_after="60")
        await at.send(messages)
        async with at.worker():
            rows = "SELECT count(*) FROM inbox_messages"
            await eventually(lambda: at.database.fetchval(rows), until=lambda count: count == messages)
            assert (await at.consumer())["num_pending"] == messages - 5
            async with at.worker("depth", "--json", name="depth") as depth:
                assert await depth.ended() == 0
    counted = json.loads(depth.written)
    assert counted["inbox"]["waiting"] + counted["consumers"][0]["pending"] == messages
