"""`doctor` as it is typed: what it prints and how it exits."""

import asyncio
import json
from dataclasses import fields
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.cli.run import summary
from sea_mq_worker.doctor.findings import Examination, Finding
from tests.support.checkups import Patient


async def doctor(system: Patient, *options: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["doctor", *options], env=system.environment)


async def test_programs_get_every_key_of_every_finding_and_the_worst_first(system: Patient) -> None:
    await system.sql("DROP INDEX idx_outbox_due")
    found = json.loads((await doctor(system, "--json")).stdout)
    assert {tuple(finding) for finding in found} == {tuple(field.name for field in fields(Finding))}
    severities = [finding["severity"] for finding in found]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)


async def test_only_errors_make_it_fail_unless_it_is_strict(system: Patient) -> None:
    synced = await system.pool.fetchval("SHOW fsync") == "on"
    await system.sql("ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
    assert (await doctor(system)).exit_code == (0 if synced else 1)
    assert (await doctor(system, "--strict")).exit_code == 1
    await system.sql("ALTER TABLE outbox_events DISABLE TRIGGER outbox_wakeup")
    assert (await doctor(system)).exit_code == 1


def test_only_errors_are_to_be_fixed_before_another_run() -> None:
    checkup = Examination(findings=[], checked=["NATS"], not_checked=["a worker"])
    assert summary(checkup) == ["no problem found", "checked: NATS", "not checked: a worker"]


async def test_the_handler_gets_no_event_and_no_token(system: Patient, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    system.given |= {"handler_token_file": token, "handler_url": f"{system.handler.url}?of=orders"}
    await doctor(system)
    [call] = system.handler.calls
    assert (call.method, call.path, call.body) == ("OPTIONS", "/handle?of=orders", b"")
    assert "authorization" not in call.headers
