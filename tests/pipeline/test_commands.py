"""What a job would do is told without a Spark session, where counting needs none."""

import asyncio
from pathlib import Path

import asyncpg
import pytest
from typer.testing import CliRunner, Result

from sea_mq_worker.cli import app
from sea_mq_worker.pipeline import session
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Stream
from tests.pipeline.landing import Lake, events_of
from tests.support.pipeline_settings import write_settings
from tests.support.rows import add_event


@pytest.fixture(autouse=True)
def without_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "spark_session", lambda *_, **__: pytest.fail("a session was started"))


async def told(*command: str) -> Result:
    """Run a command in a thread, since it has event loops of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["pipeline", *command, "--dry-run"])


async def test_what_an_archive_would_move_is_counted(
    settings: Settings, pool: asyncpg.Pool, tmp_path: Path
) -> None:
    await add_event(pool, "PUBLISHED")
    await add_event(pool)

    found = await told("archive", "--lake", str(tmp_path), "--before", "0s", "--reason", "old")

    assert (found.exit_code, found.stdout) == (0, "1 events would be archived\n")


async def test_what_a_drain_would_publish_is_counted(settings: Settings, pool: asyncpg.Pool) -> None:
    await add_event(pool)
    await add_event(pool, "DEAD")

    found = await told("drain")

    due = "1 due or behind an earlier event of their key"
    assert (found.exit_code, found.stdout) == (0, f"unpublished: {due}, 0 waiting for their retry, 1 DEAD\n")


async def test_what_would_be_landed_is_counted(
    lake: Lake, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEA_MQ_STREAM", stream.name)
    await stream.publish(events_of(stream.name, 3))

    found = await told("land", "--lake", str(lake.folder))

    text = f"{stream.name}: 3 messages would be landed, after sequence 0\n"
    assert (found.exit_code, found.stdout) == (0, text)


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
