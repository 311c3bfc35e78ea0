"""Messages of every shape: what nobody can handle is dead-lettered, what is unusual arrives untouched."""

import asyncio
import json
import resource
import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pydantic
import pytest

from sea_mq_worker.nats.connection import api
from tests.support.handlers import Call, answer
from tests.support.jetstream import SECOND, store, stored_messages
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually

ID, CE_ID = "550e8400-e29b-41d4-a716-446655440000", "650e8400-e29b-41d4-a716-446655440000"
NAMED = f"Nats-Msg-Id: {ID}".encode()
DEEP = b"[" * 400_000 + b"]" * 400_000

# Subject behind the context, header lines, body, and the reason for which it is dead-lettered.
BAD: Mapping[str, tuple[bytes, bytes, bytes, str]] = {
    "no id": (b"event.made.v1", b"", b"{}", "INVALID_MESSAGE_ID"),
    "an id that is no UUID": (b"event.made.v1", b"Nats-Msg-Id: 42", b"{}", "INVALID_MESSAGE_ID"),
    "an id in braces": (b"event.made.v1", b"Nats-Msg-Id: {%s}" % ID.encode(), b"{}", "INVALID_MESSAGE_ID"),
    "an id as a URN": (b"event.made.v1", b"ce-id: urn:uuid:" + ID.encode(), b"{}", "INVALID_MESSAGE_ID"),
    "headers without a colon": (b"event.made.v1", b"nonsense", b"{}", "INVALID_MESSAGE_ID"),
    "headers that are no UTF-8": (b"event.made.v1", b"Nats-Msg-Id: \xff\xfe", b"{}", "INVALID_MESSAGE_ID"),
    "no body": (b"event.made.v1", NAMED, b"", "INVALID_PAYLOAD"),
    "half a body": (b"event.made.v1", NAMED, b'{"a": ', "INVALID_PAYLOAD"),
    "a body that is no UTF-8": (b"event.made.v1", NAMED, b'"\xff"', "INVALID_PAYLOAD"),
    "a surrogate in UTF-8": (b"event.made.v1", NAMED, b'"\xed\xa0\x80"', "INVALID_PAYLOAD"),
    "a byte order mark": (b"event.made.v1", NAMED, b"\xef\xbb\xbf{}", "INVALID_PAYLOAD"),
    "NaN": (b"event.made.v1", NAMED, b'{"a": NaN}', "INVALID_PAYLOAD"),
    "Infinity": (b"event.made.v1", NAMED, b"[-Infinity]", "INVALID_PAYLOAD"),
    "a body nested too deep": (b"event.made.v1", NAMED, DEEP, "INVALID_PAYLOAD"),
    "no version": (b"event.made", NAMED, b"{}", "BAD_SUBJECT"),
    "version 0": (b"event.made.v0", NAMED, b"{}", "BAD_SUBJECT"),
    "version 01": (b"event.made.v01", NAMED, b"{}", "BAD_SUBJECT"),
    "version V1": (b"event.made.V1", NAMED, b"{}", "BAD_SUBJECT"),
    "a token behind the version": (b"event.made.v1.more", NAMED, b"{}", "BAD_SUBJECT"),
    "a star": (b"event.made.*", NAMED, b"{}", "BAD_SUBJECT"),
    "all the rest": (b"event.>", NAMED, b"{}", "BAD_SUBJECT"),
    "a control character": (b"event.ma\x01de.v1", NAMED, b"{}", "BAD_SUBJECT"),
    "a vertical tab": (b"event.ma\x0bde.v1", NAMED, b"{}", "BAD_SUBJECT"),
    "a form feed": (b"event.made.v1\x0c", NAMED, b"{}", "BAD_SUBJECT"),
    "a subject that is no UTF-8": (b"event.ma\xffde.v1", NAMED, b"{}", "BAD_SUBJECT"),
    "a subject too long to be sent on": (b"event." + b"x" * 3600, NAMED, b"{}", "BAD_SUBJECT"),
}


async def publish(url: str, subject: bytes, headers: bytes, body: bytes) -> None:
    """Publish bytes that no client would send; return once the stream has them."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    block = b"NATS/1.0\r\n%s\r\n\r\n" % headers if headers else b"NATS/1.0"
    writer.write(
        b'CONNECT {"verbose": false, "pedantic": false, "headers": true}\r\nSUB _INBOX.raw.%d 1\r\n'
        % id(writer)
    )
    sizes = (len(block), len(block) + len(body))
    writer.write(b"HPUB %s _INBOX.raw.%d %d %d\r\n" % (subject, id(writer), *sizes))
    writer.write(block + body + b"\r\n")
    async with asyncio.timeout(30):
        while b'"seq"' not in (answered := await reader.readline()):
            assert not answered.startswith(b"-ERR"), answered
    writer.close()
    await writer.wait_closed()


async def letters(site: Site) -> list[tuple[bytes, Mapping[str, str]]]:
    stored = await stored_messages(site.broker, f"{site.target.context.upper()}_DLQ")
    return [(body, headers) for _, _, body, headers in stored]


@pytest.mark.fault("N22")
@pytest.mark.fault("N25")
@pytest.mark.fault("N28")
async def test_a_poison_message_is_dead_lettered_once_and_delays_no_other(
    shared: Site, nats_url: str
) -> None:
    expected: list[tuple[str, bytes]] = []
    async with shared.worker() as worker:
        await worker.ready()
        for subject, headers, body, reason in BAD.values():
            own_id = headers.replace(ID.encode(), str(uuid.uuid4()).encode())
            await publish(nats_url, f"{shared.target.upstream}.".encode() + subject, own_id, body)
            await shared.send()
            expected.append((reason, body))
        await shared.quiet()
        assert sorted((headers["Dlq-Reason"], body) for body, headers in await letters(shared)) == sorted(
            expected
        )
        assert shared.effects.taken.total() == len(BAD)
        assert "nats_disconnected" not in worker.events()
    ids = [headers["Dlq-Message-Id"] for _, headers in await letters(shared)]
    assert len(set(ids)) == len(BAD)


@pytest.mark.fault("N63")
async def test_messages_that_the_server_makes_are_acknowledged_and_counted(shared: Site) -> None:
    """A marker of a deleted message, and a schedule, whose message comes at its time."""
    if shared.broker.server_version < (2, 12):
        pytest.skip("this server makes no messages")
    upstream, event_id = shared.target.upstream, str(uuid.uuid4())
    stream = f"STREAM.INFO.{shared.target.upstream_stream}"
    config = (await api(shared.broker, stream))["config"]
    makes = {
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": SECOND,
        "allow_msg_schedules": True,
        "discard": "old",
    }
    await api(shared.broker, stream.replace("INFO", "UPDATE"), config | makes)
    counted = f'sea_mq_inbox_server_messages_total{{consumer="{shared.target.durable}"}}'
    async with shared.worker() as worker:
        await worker.ready()
        soon = (datetime.now(UTC) + timedelta(seconds=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
        schedule = {"Nats-Schedule": f"@at {soon}", "Nats-Schedule-Target": shared.subject, "ce-id": event_id}
        expiring = {"Nats-Msg-Id": str(uuid.uuid4()), "Nats-TTL": "1s"}
        await store(shared.broker, f"{upstream}.event.gone.v1", b"{}", expiring)
        await store(shared.broker, f"{upstream}.event.later.v1", b"{}", schedule)
        found = await eventually(worker.metrics, until=lambda now: now.get(counted, 0) >= 2, what="counted")
        await eventually(lambda: event_id in shared.effects.taken, what="the schedule's message has come")
        await shared.quiet()
        assert "message_dead_lettered" not in worker.events()
    assert found[counted] == 2
    assert shared.effects.calls == {expiring["Nats-Msg-Id"]: 1, event_id: 1}
    assert await letters(shared) == []


class Request(pydantic.BaseModel):
    """The handler's contract, as strict as a service could be."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    message_id: uuid.UUID
    subject: str
    event_type: str
    event_version: int
    occurred_at: pydantic.AwareDatetime
    correlation_id: uuid.UUID | None
    causation_id: uuid.UUID | None
    payload: dict[str, Any]


@pytest.mark.fault("N29")
async def test_a_strict_service_takes_absent_fields_and_long_numbers(shared: Site) -> None:
    number = "12345678901234567890.12345678901234567890"
    some = {"ce-correlationid": ID, "ce-time": "2025-12-28T22:00:00.123456+01:00", "traceparent": "none"}
    every = some | {"ce-causationid": CE_ID, "ce-type": "made", "ce-source": "/up", "ce-specversion": "1.0"}
    for headers in ({}, some, every, {"ce-correlationid": "", "ce-time": "", "ce-causationid": "x"}):
        named = {"Nats-Msg-Id": str(uuid.uuid4()), **headers}
        await store(shared.broker, shared.subject, f'{{"n": {number}, "none": null}}'.encode(), named)
    async with shared.worker():
        await shared.quiet()
    bodies = [call.body for call in shared.handler.calls]
    assert len(bodies) == 4
    for body in bodies:
        Request.model_validate_json(body)
    payloads = [json.loads(body, parse_float=Decimal)["payload"] for body in bodies]
    assert payloads == [{"n": Decimal(number), "none": None}] * 4
    optional = [(json.loads(body)["correlation_id"], json.loads(body)["causation_id"]) for body in bodies]
    assert sorted(optional, key=str) == sorted([(None, None), (ID, None), (ID, CE_ID), (None, None)], key=str)


_LIMIT_BYTES = 256 * 2**20
"""As deploy/kubernetes/deployment.yaml has it."""


@pytest.fixture
async def patient(site_with: SiteWith) -> AsyncIterator[Site]:
    """A site whose handler may take its time."""
    leisure = {"handler_timeout_seconds": 80, "inbox_lease_seconds": 90}
    async with site_with(consumer={"ack_wait": 90 * SECOND}, **leisure) as made:
        yield made


@pytest.mark.fault("N27")
async def test_memory_is_bounded_by_the_messages_in_hand_and_nothing_is_dropped(patient: Site) -> None:
    """As docs/reference/configuration.md has it, under "Memory"."""
    size, in_hand_bytes = 2**20 - 200, 32 * 2**20
    in_hand = in_hand_bytes // size + 1
    full, empty = asyncio.Event(), asyncio.Event()

    async def answer_late(call: Call, writer: asyncio.StreamWriter) -> None:
        if len(patient.handler.calls) == in_hand:
            full.set()
        await empty.wait()
        await answer(200)(call, writer)

    patient.handler.default = answer_late
    async with patient.worker() as worker:
        await worker.ready()
        resource.prlimit(worker.process.pid, resource.RLIMIT_DATA, (_LIMIT_BYTES, _LIMIT_BYTES))
        before = worker.peak_bytes
        await patient.send(50, body=b"[%s0]" % (b"[]," * (size // 3 - 2)))
        async with asyncio.timeout(60):
            slowest = await worker.slowest_answer("metrics", until=full)
        await patient.commit(10)
        await patient.published()
        assert len(patient.handler.calls) == in_hand
        empty.set()
        await patient.quiet()
        grown = worker.peak_bytes - before
    assert set(patient.handler.calls_of().values()) == {1}
    assert grown < 1.5 * (in_hand_bytes + size)
    assert slowest < 2.0, "reading 50 large bodies must not keep everything else waiting"
