"""What the page, the log and `where` tell an operator to do helps when it is done as printed.

For the findings of `doctor` see test_doctor.py.
"""

import json
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkups import Patient, patient
from tests.support.handlers import Behaviour, answer
from tests.support.jetstream import store
from tests.support.rows import add_event
from tests.support.servers import Database, PostgresAddress, scratch_database
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess, running

HELD = "SELECT count(*) FILTER (WHERE processed_at IS NULL) FROM inbox_messages"
WHERE_STEP = re.compile(r"^  -> (.+)$", re.MULTILINE)
QUOTED = re.compile(r"`(python -m sea_mq_worker [^`]+)`")


@pytest.fixture
async def system(database: Database, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Patient]:
    async with patient(database, nats_url, names, tmp_path) as made:
        yield made


async def page(worker: WorkerProcess, state: str, *, within: float = 30.0) -> dict[str, Any]:
    """Wait until the first line of the page begins with a word; return it."""

    async def health() -> dict[str, Any]:
        status, text = await worker.get("status")
        found: dict[str, Any] = json.loads(text)["health"] if status == 200 else {}
        return found if found.get("state") == state else {}

    return await eventually(health, within=within, what=f"the page says {state}")


async def handled(p: Patient) -> None:
    """Wait until each message that was received has its effect."""
    await eventually(lambda: p.pool.fetchval(HELD), until=lambda open_: open_ == 0, what="all are processed")


def fails(event_type: str, status: int) -> Behaviour:
    """Answer this to one type, and take the others."""

    async def behave(call: Any, writer: Any) -> None:
        await answer(status if call.json["event_type"] == event_type else 200)(call, writer)

    return behave


# --- the page, the log and /readyz


@pytest.mark.parametrize("status", [422, 500])
@pytest.mark.parametrize("source", ["page", "log"])
async def test_a_slow_type_is_over_once_its_commands_have_run(
    status: int, source: str, system: Patient
) -> None:
    system.given |= {"handler_slow_after": 3, "inbox_attempts_max": 1, "inbox_backoff_seconds": 0.1}
    system.given |= {"handler_slow_failures_per_second": 10, "handler_concurrency": 1}
    system.handler.default = fails("it's-broken", status)
    dead_lettered = "SELECT count(*) FROM inbox_messages WHERE dead_lettered_at IS NOT NULL"
    async with system.worker() as worker:
        await system.send()  # that the handler works makes a 500 the message's own fault
        await handled(system)
        for _ in range(5):
            headers = {"Nats-Msg-Id": str(uuid.uuid4())}
            await store(system.broker, f"{system.target.upstream}.event.it's-broken.v1", headers=headers)
        await worker.tells("type_slowed")
        await eventually(lambda: system.pool.fetchval(f"{dead_lettered} AND {status} > 0"), what="one died")
        if source == "page":
            steps = (await page(worker, "Slow"))["next_steps"]
        else:
            [line] = [line for line in worker.written.splitlines() if '"type_slowed"' in line]
            steps = QUOTED.findall(json.loads(line)["reason"])
        assert len(steps) == 2
        system.handler.default = answer(200)
        for step in steps:
            await system.follow(step)
        await handled(system)
        await worker.tells("type_resumed")
        await worker.answers(200)
    assert await system.pool.fetchval(dead_lettered) == 0
    assert (await system.ask(f"STREAM.INFO.{system.name.upper()}_DLQ"))["state"]["messages"] == 0


async def test_the_page_offers_an_event_to_begin_with(system: Patient) -> None:
    async with system.worker() as worker:
        [statement] = (await page(worker, "Ready"))["next_steps"]
        await system.follow(statement)
        await eventually(
            lambda: system.pool.fetchval("SELECT bool_and(state = 'PUBLISHED') FROM outbox_events"),
            what="it is published",
        )


async def test_the_page_lists_what_is_dead(system: Patient) -> None:
    event = await add_event(system.pool, "DEAD", error="too large")
    async with system.worker() as worker:
        found = await page(worker, "Working")
    assert found["text"].startswith("1 dead event")
    [listing] = found["next_steps"]
    assert str(event) in await system.follow(listing)


async def test_the_page_ends_the_pause_of_a_consumer(system: Patient) -> None:
    if system.broker.server_version < (2, 11):
        pytest.skip("this nats-server knows no pause")
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    await system.ask(f"CONSUMER.PAUSE.{system.upstream_stream}.{system.durable}", {"pause_until": until})
    await system.send()
    async with system.worker() as worker:
        [resume] = (await page(worker, "Held"))["next_steps"]
        await system.follow(resume)
        await eventually(
            lambda: system.pool.fetchval("SELECT bool_and(processed_at IS NOT NULL) FROM inbox_messages"),
            what="the message is handled",
        )


async def test_lost_messages_are_the_pages_first_line_until_an_operator_acknowledges_them(
    system: Patient,
) -> None:
    async with system.worker() as worker:  # it records how far the consumer is
        await page(worker, "Ready")
    for _ in range(3):
        await system.send()
    await system.ask(f"STREAM.PURGE.{system.upstream_stream}", {"keep": 1})
    async with system.worker() as worker:
        await worker.tells("messages_missed")
        await handled(system)
    async with system.worker() as worker:  # it detects nothing itself, and reads what the other recorded
        found = await page(worker, "Lost")
        assert "never got 2 messages, the last" in found["text"]
        assert "The limits of the stream or a purge removed them" in found["text"]
        [advice] = found["next_steps"]
        printed = await system.follow(advice, code=1)
    [statement] = re.findall(r"-- only acknowledges[^;]+;", printed)
    await system.follow(statement)
    await system.finds()
    async with system.worker() as worker:
        await page(worker, "Ready")


async def test_a_locked_table_is_no_outage_and_the_named_command_names_its_holder(system: Patient) -> None:
    system.given["database_timeout_seconds"] = 1.0
    async with system.worker() as worker:
        locking = await system.session("somebody's migration")
        await locking.execute("BEGIN; LOCK TABLE outbox_events")
        found = await page(worker, "Paused")
        assert found["text"].startswith("Waiting for PostgreSQL: another session holds a lock: ")
        [advice] = set(QUOTED.findall(found["text"]))
        assert advice in found["next_steps"]
        printed = await system.follow(advice, code=1)
        assert "of somebody's migration" in printed
        [statement] = re.findall(r"SELECT pg_terminate_backend\(\d+\);", printed)
        await system.follow(statement)
        event = await add_event(system.pool)
        published = f"SELECT state = 'PUBLISHED' FROM outbox_events WHERE id = '{event}'"
        await eventually(lambda: system.pool.fetchval(published), what="an event is published")
        await worker.answers(200)


async def test_a_deprecated_value_works_and_the_log_names_the_one_that_means_the_same(
    system: Patient,
) -> None:
    deprecated = "setting_deprecated"
    system.given["outbox_publish_mode"] = "fast"
    event = await add_event(system.pool)
    async with system.worker() as worker:
        await worker.tells(deprecated)
        await eventually(lambda: state(system, event), until=lambda found: found == "PUBLISHED")
        [line] = [json.loads(line) for line in worker.written.splitlines() if f'"{deprecated}"' in line]
    assert line["level"] == "warning"
    [named] = re.findall(r": set SEA_MQ_OUTBOX_PUBLISH_MODE=(\w+)$", line["text"])
    system.given["outbox_publish_mode"] = named
    async with system.worker() as worker:
        assert deprecated not in worker.events()


async def test_a_worker_without_its_tables_starts_after_the_command_that_it_logs(
    system: Patient, postgres_server: PostgresAddress
) -> None:
    async with scratch_database(postgres_server, prefix="empty_") as empty:
        system.given["database_url"] = empty.dsn
        target = replace(system.target, environment=system.environment)
        async with running(target, system.files / "refused.log") as worker:
            assert await worker.ended() == 3, worker.written
        assert "contract_broken" in worker.written
        [command] = set(QUOTED.findall(worker.written))
        await system.follow(command)
        async with system.worker():
            pass


# --- `where`


async def steps_of(p: Patient, wanted: object, *, said: str, code: int = 0) -> list[str]:
    """Return the next commands of `where`."""
    printed = await p.follow(f"python -m sea_mq_worker where {wanted}", code=code)
    assert said in printed
    return WHERE_STEP.findall(printed)


async def state(p: Patient, event: object) -> str | None:
    found: str | None = await p.pool.fetchval("SELECT state FROM outbox_events WHERE id = $1", event)
    return found


@pytest.mark.parametrize(
    ("error", "said", "ends"),
    [
        ("too large", "it is DEAD", "PENDING"),
        ("INVALID_OUTBOX: the subject has a space", "it can never be sent as it is", None),
    ],
)
async def test_the_command_for_a_dead_event_ends_its_death(
    error: str, said: str, ends: str | None, system: Patient
) -> None:
    event = await add_event(system.pool, "DEAD", error=error)
    [step] = await steps_of(system, event, said=said)
    await system.follow(step)
    assert await state(system, event) == ends


async def test_the_command_for_an_event_that_left_the_stream_publishes_it_again(system: Patient) -> None:
    event = await add_event(system.pool)
    async with system.worker():
        await eventually(lambda: state(system, event), until=lambda found: found == "PUBLISHED")
        await system.ask(f"STREAM.PURGE.{system.name.upper()}_EVENTS")
        step, doctor = await steps_of(system, event, said="the stream has lost it since: somebody removed")
        assert "events_lost" in await system.follow(doctor, code=1)
        assert "goes out: the last from" in await system.follow(step)
    assert await state(system, event) == "PENDING"


@pytest.mark.parametrize(
    ("body", "said", "processed"),
    [(b"{}", "it is dead-lettered: ", 1), (b"no JSON", "it can never be handled as it is", 0)],
)
async def test_the_commands_for_a_dead_letter_end_it(
    body: bytes, said: str, processed: int, system: Patient
) -> None:
    system.handler.default = answer(422)
    message = str(uuid.uuid4())
    subject = f"{system.target.upstream}.event.made.v1"
    await store(system.broker, subject, body, headers={"Nats-Msg-Id": message})
    dead = "SELECT count(*) FROM inbox_messages WHERE dead_lettered_at IS NOT NULL"
    async with system.worker():
        await eventually(lambda: system.pool.fetchval(dead), what="it is dead-lettered")
    system.handler.default = answer(200)
    steps = await steps_of(system, message, said=said)
    assert len(steps) == 2
    for step in steps:
        await system.follow(step)
    assert await system.pool.fetchval("SELECT count(processed_at) FROM inbox_messages") == processed
    assert (await system.ask(f"STREAM.INFO.{system.name.upper()}_DLQ"))["state"]["messages"] == 0
    assert await steps_of(system, message, said="effect" if processed else "gave it up") == []


async def test_the_command_for_a_lost_message_gives_it_up(system: Patient) -> None:
    seq = await system.send()
    await system.received(seq=seq, hours=0)
    await system.ask(f"STREAM.PURGE.{system.upstream_stream}")
    message = await system.pool.fetchval("SELECT message_id FROM inbox_messages")
    [step] = await steps_of(system, message, said="it is lost")
    await system.follow(step.partition(", or ")[2])
    assert await steps_of(system, message, said="an operator gave it up") == []


async def test_a_message_that_waits_in_the_stream_is_found_by_the_named_command_or_by_its_own_time(
    system: Patient,
) -> None:
    unknown = str(uuid.uuid4())
    at = int(datetime.now(UTC).timestamp() * 1000)
    timed = str(uuid.UUID(int=at << 80 | 7 << 76 | 2 << 62 | uuid.uuid4().int & 0xFFFFFFFF))
    for message in (unknown, timed):
        await system.send(message)
    said = f"it is in {system.upstream_stream} under sequence"
    [step] = await steps_of(system, unknown, said="it is not here", code=1)
    assert said in await system.follow(step)
    assert await steps_of(system, timed, said=said) == []


async def test_what_a_command_could_not_change_is_shown_by_the_command_that_it_names(system: Patient) -> None:
    event, message = await add_event(system.pool, "DEAD"), uuid.uuid4()
    for command, code in (
        (f"python -m sea_mq_worker outbox mark-dead {event} --reason r", 0),
        (f"python -m sea_mq_worker inbox close {message} --reason r", 1),
    ):
        [step] = QUOTED.findall(await system.follow(command, code=1))
        assert str(event if code == 0 else message) in await system.follow(step, code=code)
