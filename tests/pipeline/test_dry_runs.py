"""What a job would do is told without a Spark session, where counting needs none."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sea_mq_worker.adapters.postgres.connection import OPERATOR_HINTS
from sea_mq_worker.cli import app
from sea_mq_worker.pipeline import session
from tests.pipeline.landing import event, publish
from tests.support.jetstream import connected, create_stream
from tests.support.pipeline_settings import write_settings
from tests.support.rows import add_event, opened
from tests.support.servers import Database


@pytest.fixture(autouse=True)
def without_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "spark_session", lambda *_, **__: pytest.fail("a session was started"))


async def told(*command: str) -> Result:
    """Run a command in a thread, since it has event loops of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["pipeline", *command, "--dry-run"])


async def test_what_an_archive_would_move_is_counted(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(tmp_path / "settings.toml", monkeypatch, database_url=database.dsn)
    async with opened(database, hints=OPERATOR_HINTS) as pool:
        await add_event(pool, "PUBLISHED")
        await add_event(pool)

        found = await told("archive", "--lake", str(tmp_path), "--before", "0s", "--reason", "old")

    assert (found.exit_code, found.stdout) == (0, "1 events would be archived\n")


async def test_what_a_drain_would_publish_is_counted(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(tmp_path / "settings.toml", monkeypatch, database_url=database.dsn)
    async with opened(database, hints=OPERATOR_HINTS) as pool:
        await add_event(pool)
        await add_event(pool, "DEAD")

        found = await told("drain")

    due = "1 due or behind an earlier event of their key"
    assert (found.exit_code, found.stdout) == (0, f"unpublished: {due}, 0 waiting for their retry, 1 DEAD\n")


async def test_what_would_be_landed_is_counted(
    nats_url: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(tmp_path / "settings.toml", monkeypatch, nats_url=nats_url, stream=names, consumers="")
    async with connected(nats_url) as server:
        await create_stream(server, names, f"{names}.>", allow_direct=True)
        await publish(server, names, [event(names, number) for number in range(3)])

        found = await told("land", "--lake", str(tmp_path))

    assert (found.exit_code, found.stdout) == (
        0, f"{names}: 3 messages would be landed, after sequence 0\n",
    )  # fmt: skip


async def test_a_missing_server_is_reported_as_by_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"
    write_settings(tmp_path / "settings.toml", monkeypatch, database_url=url)

    found = await told("archive", "--lake", str(tmp_path), "--before", "1d", "--reason", "old")

    assert (found.exit_code, "PostgreSQL cannot be reached" in found.stderr) == (1, True)


@pytest.mark.parametrize("command", ["report", "reconcile", "replay --state DEAD --reason test"])
def test_a_lake_to_be_read_that_is_not_there_is_an_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEA_MQ_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    if command == "reconcile":
        monkeypatch.setenv("SEA_MQ_NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)

    found = CliRunner().invoke(app, ["pipeline", *command.split(), "--lake", "laek"])

    assert (found.exit_code, found.stderr.startswith("laek: there is no lake")) == (1, True)
