"""Bodies as large as the server takes, and made of brackets, cost a parser that builds a tree the most."""

import asyncio
import resource
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.nats.connection import api
from tests.support.handlers import answer
from tests.support.jetstream import SECOND
from tests.support.operators import WHY
from tests.support.site import SHIPPED, Site, SiteWith

MIB = 2**20
MAX_PAYLOAD = 8 * MIB
CONTAINER = 256 * MIB
"""Of deploy/kubernetes/deployment.yaml."""
SIZE = MAX_PAYLOAD - len(b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n") - len(str(uuid.uuid4()))
"""The largest body beside a message ID; there is no room for it beside the headers of a dead letter."""
LEVELS = 900
"""Every supported Python parses this deep."""

ENDED = """
SELECT message_id, dead_letter_reason AS reason FROM inbox_messages
 WHERE (processed_at IS NULL) <> (dead_lettered_at IS NULL) AND attempts = 1
"""


def many(filler: bytes, *, levels: int = 1) -> bytes:
    """Return an array of so many levels, full of ``filler``."""
    count = (SIZE - 2 * levels - 1) // len(filler)
    return b"[" * levels + filler * count + b"0" + b"]" * levels


HANDLED: Mapping[str, bytes] = {
    "a run of []": many(b"[],"),
    "a run of {}": many(b"{},"),
    "a run of [[[[]]]]": many(b"[[[[]]]],"),
    "a run of [], deep": many(b"[],", levels=LEVELS),
    "[ in a string": b'"%s"' % (b"[" * (SIZE - 2)),
}
REFUSED: Mapping[str, bytes] = {
    "[ alone": b"[" * SIZE,
    "] alone": b"]" * SIZE,
    "[ and as many ]": b"[" * (SIZE // 2) + b"]" * (SIZE // 2),
    '{"a": alone': b'{"a":' * (SIZE // 5),
    '{"a": and as many }': b'{"a":' * (SIZE // 6 - 1) + b"0" + b"}" * (SIZE // 6 - 1),
    "[[], alone": b"[[]," * (SIZE // 4),
    "a run of [] without an array around it": b"[]" * (SIZE // 2),
    "a run of [] that is not closed": b"[" + b"[]," * (SIZE // 3 - 1),
}
REJECTED = "a run of [] that the handler rejects"
BODIES = {**HANDLED, **REFUSED, REJECTED: many(b"[],") + b" "}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.fault("N45")
async def test_bodies_of_brackets_end_once_and_cost_no_more_memory_than_others(
    site_with: SiteWith, tmp_path: Path
) -> None:
    """All settings as shipped; a small message lies before each of them."""
    async with (
        EmbeddedNats(tmp_path / "nats", config={"max_payload": MAX_PAYLOAD}) as server,
        site_with(nats_url=server.url, consumer={"ack_wait": 120 * SECOND}, **SHIPPED) as at,
    ):
        await _widen(at)
        ids = {name: (await at.send(), await at.send(body=body.ljust(SIZE))) for name, body in BODIES.items()}
        small = {message_id for [message_id], _ in ids.values()}
        large = {name: message_id for name, (_, [message_id]) in ids.items()}
        at.effects.script[large[REJECTED]] = answer(422)
        done = asyncio.Event()
        async with at.worker() as worker:
            resource.prlimit(worker.process.pid, resource.RLIMIT_DATA, (CONTAINER, CONTAINER))
            await worker.ready()
            began = time.monotonic()
            slowest = asyncio.create_task(worker.slowest_answer("healthz", until=done))
            await at.answered(within=120)
            done.set()
            seconds = time.monotonic() - began
            print(  # noqa: T201 - what it is for
                f"{len(BODIES)} bodies of {SIZE:,} bytes and as many small ones after {seconds:.1f} s; "
                f"slowest /healthz {await slowest:.2f} s; peak {worker.peak_bytes / MIB:.0f} MiB"
            )
            assert worker.process.returncode is None
            peak = worker.peak_bytes
        assert peak < CONTAINER
        assert await slowest < 2.0
        expected = {large[name]: "INVALID_PAYLOAD" for name in REFUSED} | {large[REJECTED]: "REJECTED"}
        letters = await at.dead_letters()
        assert len(letters) == len(expected)
        assert {letter["Dlq-Message-Id"]: letter["Dlq-Reason"] for letter in letters} == expected
        assert {letter["Dlq-Body-Omitted"] for letter in letters} == {str(SIZE)}
        handled = {*small, *large.values()} - set(expected)
        assert at.effects.taken == dict.fromkeys(handled, 1)
        assert at.effects.calls == dict.fromkeys({*handled, large[REJECTED]}, 1)
        ended = {str(row["message_id"]): row["reason"] for row in await at.database.fetch(ENDED)}
        assert ended == dict.fromkeys({*small, *large.values()}) | expected
        del at.effects.script[large[REJECTED]]
        async with at.worker(
            "dlq", "redrive", "--dlq-reason", "REJECTED", "--yes", *WHY, name="redrive"
        ) as redrive:
            assert await redrive.ended() == 0, redrive.written
        assert at.effects.taken[large[REJECTED]] == 1


async def _widen(site: Site) -> None:
    """Let the streams hold all bodies."""
    for stream in (site.target.upstream_stream, f"{site.target.context.upper()}_DLQ"):
        info = await api(site.broker, f"STREAM.INFO.{stream}")
        await api(site.broker, f"STREAM.UPDATE.{stream}", info["config"] | {"max_bytes": 2**30})
