"""Dead letters: none is lost while their stream is away, none comes twice, each can be handled after all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.nats.connection import api
from tests.support.handlers import answer
from tests.support.hold import held
from tests.support.jetstream import SECOND
from tests.support.site import Site, SiteWith
from tests.support.waiting import eventually

WHY = ("--reason", "the service is mended", "--actor", "ann")
USERS: Mapping[str, Any] = {  # worker may publish all but dead letters, admin everything
    "authorization": {
        "users": [
            {"user": "admin", "password": "a"},
            {"user": "worker", "password": "w", "permissions": {"publish": {"deny": ["*.dlq.>"]}}},
        ]
    },
    "no_auth_user": "admin",
}


async def rejected(site: Site) -> str:
    """Send a message that the service rejects until it is mended."""
    [message_id] = await site.send()
    site.effects.script[message_id] = answer(422)
    return message_id


async def row_says(site: Site, message_id: str, text: str) -> None:
    await eventually(
        lambda: site.inbox_row(message_id), until=lambda row: row and text in (row["last_error"] or "")
    )


@pytest.mark.fault("N30")
async def test_without_the_dead_letter_stream_nothing_is_acknowledged_and_the_worker_is_not_ready(
    shared: Site,
) -> None:
    dlq = f"{shared.target.context.upper()}_DLQ"
    async with shared.worker() as worker:
        await worker.ready()
        await api(shared.broker, f"STREAM.DELETE.{dlq}")
        message_id = await rejected(shared)
        await worker.answers(503, dlq)
        await row_says(shared, message_id, "REJECTED")
        assert (await shared.consumer())["num_ack_pending"] == 1
        await shared.apply_streams()
        await shared.quiet()
        await worker.ready()
    await shared.audit(dead_lettered=frozenset((message_id,)))


@pytest.mark.fault("N30")
async def test_a_forbidden_dead_letter_is_reported_and_waits_for_the_permission(
    site_with: SiteWith, tmp_path: Path
) -> None:
    async with (
        EmbeddedNats(tmp_path / "nats", config=USERS) as server,
        site_with(nats_url=server.url) as guarded,
    ):
        message_id = await rejected(guarded)
        url = guarded.target.environment["SEA_MQ_NATS_URL"].replace("//", "//worker:w@")
        async with guarded.worker(name="forbidden", nats_url=url) as forbidden:
            await row_says(guarded, message_id, "REJECTED")
            await forbidden.answers(503, "no permission to publish")
            assert (await guarded.consumer())["num_ack_pending"] == 1
        async with guarded.worker():
            await guarded.quiet()
        await guarded.audit(dead_lettered=frozenset((message_id,)))


@pytest.mark.fault("N32")
async def test_a_worker_killed_behind_the_dead_letter_leaves_one_however_late_the_next_comes(
    site_with: SiteWith,
) -> None:
    async with site_with(stream={"duplicate_window": SECOND}, outbox_enabled=False) as made:
        settled = held(made.dsn, table="inbox_messages", event="UPDATE OF dead_lettered_at")
        async with settled as hold, made.worker(name="killed") as killed:
            await killed.ready()
            message_id = await rejected(made)
            await hold.reached()
            assert len(await made.dead_letters()) == 1
            await killed.killed()
        async with made.worker():
            await made.quiet()
        await made.audit(dead_lettered=frozenset((message_id,)))


@pytest.mark.fault("N42")
async def test_a_dead_letter_is_handled_once_after_the_service_is_fixed(shared: Site) -> None:
    message_id = await rejected(shared)
    async with shared.worker():
        await shared.quiet()
    del shared.effects.script[message_id]
    async with shared.worker("dlq", "redrive", "1", *WHY, name="redrive") as redrive:
        assert await redrive.ended() == 0
    async with shared.worker("dlq", "redrive", "1", *WHY, name="again") as again:
        assert (await again.ended(), "no message 1" in again.written) == (1, True)
    audited = await shared.database.fetch("SELECT actor, action, affected, outcome FROM operator_actions")
    assert [tuple(row) for row in audited] == [("ann", "redrive", 1, "done")]
    async with shared.worker():
        await shared.send()
        await shared.quiet()
    await shared.audit()
    assert shared.effects.calls[message_id] == 2
