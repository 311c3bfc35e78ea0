"""The operator API on real servers: one query at a time, bounded, and clear about missing rights."""

import asyncio
import tracemalloc
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from sea_mq_worker.admin import api as module
from sea_mq_worker.admin.api import (
    DeadLetterGroup,
    GroupProgress,
    ItemPage,
    OperatorApi,
    OperatorBusyError,
    OperatorTimeoutError,
)
from sea_mq_worker.errors import ContractError
from sea_mq_worker.settings import Settings
from tests.page.stage import add_dead_event
from tests.support.jetstream import store
from tests.support.servers import Database, PostgresAddress, unique
from tests.support.site import Site

MEGABYTE = 2**20


@contextmanager
def memory_below(bytes_max: int) -> Iterator[None]:
    """Assert that a block never allocates more."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()


def desk(place: Site, *, database_url: str = "") -> OperatorApi:
    environment = place.target.environment
    return OperatorApi(
        Settings(
            context=place.target.context,
            database_url=SecretStr(database_url or environment["SEA_MQ_DATABASE_URL"]),
            nats_url=SecretStr(environment["SEA_MQ_NATS_URL"]),
        )
    )


async def test_a_question_that_is_not_answered_ends_and_lets_the_next_one_come(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REQUEST_SECONDS", 0.4)
    monkeypatch.setattr("sea_mq_worker.admin.api._WAIT_SECONDS", 0.1)
    asked = desk(place)
    place.to_database.stall()
    first = asyncio.create_task(asked.actions())
    await asyncio.sleep(0)
    with pytest.raises(OperatorBusyError):
        await asked.actions()
    async with asyncio.timeout(30):
        with pytest.raises(OperatorTimeoutError, match=r"within 0\.4 s"):
            await first
    place.to_database.heal()
    monkeypatch.setattr(module, "_REQUEST_SECONDS", 8.0)
    assert await asked.actions() == ItemPage(items=[])


async def test_a_change_without_the_right_names_the_grant_and_changes_nothing(
    place: Site, database: Database, postgres_server: PostgresAddress
) -> None:
    event = await add_dead_event(place.database, event_type="no subject")
    login = unique("page_")
    await place.database.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'p'")
    await place.database.execute(
        f"GRANT SELECT ON sea_mq_migrations, sea_mq_context, outbox_events TO {login};"
        f"GRANT UPDATE (state, available_at) ON outbox_events TO {login}"
    )
    parts = urlsplit(database.dsn)
    dsn = parts._replace(netloc=f"{login}:p@{parts.hostname}:{parts.port}").geturl()
    try:
        asked = desk(place, database_url=dsn)
        listed = await asked.dead_events(event_type="", error="", below=None)
        assert [str(found.id) for found in cast("Any", listed.items)] == [event]
        with pytest.raises(ContractError, match=r"operator_actions.*grant the operator's role.*roles\.sql"):
            await asked.replay(uuid.UUID(event), actor="Ann", reason="try")
        with pytest.raises(ContractError, match=r"roles\.sql"):
            await asked.actions()
    finally:
        await place.database.execute(f"DROP OWNED BY {login}; DROP ROLE {login}")
    assert (await place.row(event))["state"] == "DEAD"


async def test_an_endless_payload_is_shown_up_to_a_bound(place: Site) -> None:
    event = await add_dead_event(place.database, event_type="x" * MEGABYTE, text="ä" * 8 * MEGABYTE)
    with memory_below(4 * MEGABYTE):
        shown = await desk(place).event(uuid.UUID(event))
        [listed] = (await desk(place).dead_events(event_type="", error="", below=None)).items
    assert shown is not None
    assert len(cast("str", shown.fields["event_type"])) == len(listed.event_type) == 1024
    body = shown.body
    assert (body.payload_cut, body.payload_encoding) == (True, "utf-8")
    assert body.payload_bytes > 16 * MEGABYTE
    assert len(body.payload.encode()) <= 65_536
    assert await desk(place).event(uuid.uuid4()) is None


async def test_large_dead_letters_are_counted_and_listed_some_at_a_time(place: Site) -> None:
    for number in range(40):
        await store(place.broker, f"{place.target.context}.dlq.{number}", bytes(900_000))
    with memory_below(16 * MEGABYTE):
        [group] = (await desk(place).dead_letter_groups()).items
        listed = await desk(place).dead_letters(reason="", after=0)
    assert group.count == len(listed.items) == 40


async def test_a_group_of_dead_letters_is_counted_and_purged_some_at_a_time_up_to_its_last(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sea_mq_worker.admin.api._BATCH_MAX", 2)
    asked = desk(place)
    for subject in ("a", "b", "a", "a", "a"):
        headers = {"Dlq-Reason": "REJECTED", "Dlq-Original-Subject": subject, "Dlq-Detail": "422"}
        await store(place.broker, f"{place.target.context}.dlq.x", headers=headers)
    first, second = cast("Any", (await asked.dead_letter_groups()).items)
    assert (first.subject, first.count, first.last, second.count) == ("a", 4, 5, 1)
    group, why = (
        DeadLetterGroup(reason="REJECTED", subject="a", after=0, last=4),
        {"actor": "Ann", "reason": "old"},
    )
    progress = await asked.purge_group(group, **why)
    assert progress == GroupProgress(done=2, failed=0, after=3, text="", more=True)
    progress = await asked.purge_group(replace(group, after=progress.after), **why)
    assert progress == GroupProgress(done=1, failed=0, after=4, text="", more=False)
    assert [each.count for each in cast("Any", (await asked.dead_letter_groups()).items)] == [1, 1]
    actions = cast("Any", (await asked.actions()).items)
    assert [(each.action, each.actor, each.affected) for each in actions] == [
        ("purge", "Ann (page)", 1), ("purge", "Ann (page)", 2),
    ]  # fmt: skip


async def test_a_group_of_messages_that_are_no_dead_letters_is_purged_alone(place: Site) -> None:
    asked, subject = desk(place), f"{place.target.context}.dlq.x"
    for headers in ({}, {"Dlq-Reason": "REJECTED", "Dlq-Original-Subject": "a"}, {}):
        await store(place.broker, subject, headers=headers)
    group = DeadLetterGroup(reason="", subject="", after=0, last=3)
    progress = await asked.purge_group(group, actor="Ann", reason="not ours")
    assert (progress.done, progress.more) == (2, False)
    [left] = cast("Any", (await asked.dead_letter_groups()).items)
    assert (left.reason, left.count) == ("REJECTED", 1)
