"""`doctor` as it is typed: what it prints and how it exits."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.doctor import Finding
from tests.support.checkups import Patient, patient
from tests.support.servers import Database


@pytest.fixture
async def well(database: Database, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Patient]:
    """A healthy system, but for what is true of the test's servers."""
    async with patient(database, nats_url, names, tmp_path) as made:
        yield made


async def doctor(p: Patient, *options: str) -> Result:
    env = {f"SEA_MQ_{key.upper()}": str(value) for key, value in p.given.items()}
    return await asyncio.to_thread(CliRunner().invoke, app, ["doctor", *options], env=env)


async def test_a_finding_has_place_state_consequence_and_fix(well: Patient) -> None:
    await well.sql("DROP INDEX idx_outbox_due")
    text = (await doctor(well)).stdout
    assert "error index_missing: table outbox_events: index idx_outbox_due is missing\n" in text
    assert "-> create the index again\n" in text
    assert "CREATE INDEX CONCURRENTLY idx_outbox_due ON outbox_events (available_at, seq)\n" in text


async def test_programs_get_every_key_of_every_finding_and_the_worst_first(well: Patient) -> None:
    await well.sql("DROP INDEX idx_outbox_due")
    found = json.loads((await doctor(well, "--json")).stdout)
    assert {tuple(finding) for finding in found} == {tuple(field.name for field in fields(Finding))}
    severities = [finding["severity"] for finding in found]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)


async def test_only_errors_make_it_fail_unless_it_is_strict(well: Patient) -> None:
    synced = await well.pool.fetchval("SHOW fsync") == "on"
    await well.sql("ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
    assert (await doctor(well)).exit_code == (0 if synced else 1)
    assert (await doctor(well, "--strict")).exit_code == 1
    await well.sql("ALTER TABLE outbox_events DISABLE TRIGGER outbox_wakeup")
    assert (await doctor(well)).exit_code == 1


async def test_the_handler_gets_no_event_and_no_token(well: Patient, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    well.given |= {"handler_token_file": token, "handler_url": f"{well.handler.url}?of=orders"}
    await doctor(well)
    [call] = well.handler.calls
    assert (call.method, call.path, call.body) == ("OPTIONS", "/handle?of=orders", b"")
    assert "authorization" not in call.headers
