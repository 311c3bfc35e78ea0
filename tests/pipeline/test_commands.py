"""The pipeline's commands where they need no Spark: refusals, counts, checks, and jobs without work."""

import asyncio
import shlex
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest
from typer.testing import CliRunner, Result

from sea_mq_worker.cli import app
from sea_mq_worker.cli.pipeline import reconcile
from sea_mq_worker.pipeline import session
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.reconcile import job
from sea_mq_worker.pipeline.jobs.reconcile.result import Hop, Reconciliation, Requeued, Verdict
from sea_mq_worker.pipeline.jobs.reconcile.sources import check_disk
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Stream
from tests.pipeline.landing import Lake, events_of
from tests.support.pipeline_settings import write_settings
from tests.support.rows import add_event

NO_DATABASE, NO_BROKER = "postgresql://nobody@127.0.0.1:1/none", "nats://127.0.0.1:1"


@pytest.fixture(autouse=True)
def without_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "spark_session", lambda *_, **__: pytest.fail("a session was started"))


def pipeline(*words: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *words])


async def told(*words: str) -> Result:
    """Run a command in a thread, since it has event loops of its own."""
    return await asyncio.to_thread(pipeline, *words)


async def test_what_an_archive_would_move_is_counted_and_with_nothing_to_do_it_starts_no_session(
    settings: Settings, pool: asyncpg.Pool, tmp_path: Path
) -> None:
    await add_event(pool, "PUBLISHED")
    await add_event(pool)
    command = ("archive", "--lake", str(tmp_path), "--reason", "old", "--before")

    found, done = await told(*command, "0s", "--dry-run"), await told(*command, "1d")

    assert (found.exit_code, found.stdout) == (0, "1 events would be archived\n")
    assert (done.exit_code, done.stdout) == (0, "archived 0 events in 0 batches, deleted 0\n")


async def test_what_a_drain_would_publish_is_counted(settings: Settings, pool: asyncpg.Pool) -> None:
    await add_event(pool)
    await add_event(pool, "DEAD")

    found = await told("drain", "--dry-run")

    due = "1 due or behind an earlier event of their key"
    assert (found.exit_code, found.stdout) == (0, f"unpublished: {due}, 0 waiting for their retry, 1 DEAD\n")


async def test_what_would_be_landed_is_counted(
    lake: Lake, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEA_MQ_STREAM", stream.name)
    await stream.publish(events_of(stream.name, 3))

    found = await told("land", "--lake", str(lake.folder), "--dry-run")

    text = f"{stream.name}: 3 messages would be landed, after sequence 0\n"
    assert (found.exit_code, found.stdout) == (0, text)


def test_a_missing_server_is_reported_by_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings(tmp_path / "settings.toml", monkeypatch, database_url=NO_DATABASE)

    found = pipeline("archive", "--lake", str(tmp_path), "--before", "1d", "--reason", "old", "--dry-run")

    assert (found.exit_code, "PostgreSQL cannot be reached" in found.stderr) == (1, True)


@pytest.mark.parametrize("command", ["report", "reconcile", "replay --state DEAD --reason test"])
def test_a_lake_to_be_read_that_is_not_there_is_an_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEA_MQ_DATABASE_URL", NO_DATABASE)
    if command == "reconcile":
        monkeypatch.setenv("SEA_MQ_NATS_URL", NO_BROKER)
    monkeypatch.chdir(tmp_path)

    found = pipeline(*command.split(), "--lake", "laek")

    assert (found.exit_code, found.stderr.startswith("laek: there is no lake")) == (1, True)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("archive --lake x --before 9999-01-01T00:00:00Z", "--before: must be past"),
        ("erase", "choose events by"),
        ("erase --aggregate ada", "expected TYPE/ID"),
        ("erase --id 1 --key ''", "'--key': must not be blank"),
        ("erase --id ''", "'--id': must not be blank"),
        ("replay", "choose events by"),
        ("replay --state PENDING", "'PENDING' is not one of"),
        ("replay --since yesterday", "'--since': 'yesterday' is neither"),
        ("replay --published-until 1x", "'--published-until': '1x' is neither"),
    ],
)
def test_a_choice_that_is_none_is_refused(command: str, text: str) -> None:
    refused = pipeline(*shlex.split(command), "--reason", "test")
    assert (refused.exit_code, text in refused.output) == (2, True)


@pytest.mark.parametrize("command", ["report", "reconcile"])
@pytest.mark.parametrize("period", ["--since 2d --until 3d", "--since 9999-01-01"])
def test_a_period_without_time_is_refused(command: str, period: str) -> None:
    refused = pipeline(command, *period.split())
    assert (refused.exit_code, refused.stderr) == (2, "--since: must be past, and earlier than --until\n")


def test_a_file_that_is_no_text_is_refused_as_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_bytes(b"\xff\xfe\n")
    refused = pipeline("replay", "--ids-file", str(path), "--reason", "test")
    assert (refused.exit_code, refused.stderr) == (2, f"{path}:1: not an event ID\n")


@pytest.mark.parametrize(
    ("counts", "exit_code", "last"),
    [
        ({}, 0, ["all 1,000 accounted for"]),
        ({Verdict.PENDING: 3}, 0, ["all 1,003 accounted for"]),
        (
            {Verdict.EXPIRED: 2, Verdict.PRUNED: 1},
            0,
            ["all 1,000 accounted for; 3 more are expired or pruned, so nothing is proven about them"],
        ),
        ({Verdict.DEAD: 2}, 0, [f"2 dead: {reconcile.ADVICE[Verdict.DEAD]}"]),
        (
            {Verdict.MISSING_IN_STREAM: 1200, Verdict.LATE: 1},
            1,
            [
                "1,200 missing-in-stream: publish them again by --requeue",
                "1 late: see by `pipeline report` when it was slow",
            ],
        ),
    ],
)
def test_reconcile_ends_with_the_next_step_for_each_bad_verdict(
    counts: dict[Verdict, int], exit_code: int, last: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = counts | {Verdict.DELIVERED: 1000}
    hop = Hop(
        name="outbox -> S",
        ids=sum(verdicts.values()),
        verdicts=verdicts,
        findings=verdicts,
        examples={},
        latency=None,
    )
    result = Reconciliation(since=None, until=None, rows={}, hops=[hop], notes=[], requeued=None)
    monkeypatch.setattr(reconcile, "open_spark", lambda *_, **__: nullcontext())
    monkeypatch.setattr(job, "reconcile", lambda *_, **__: result)
    monkeypatch.setenv("SEA_MQ_DATABASE_URL", NO_DATABASE)
    monkeypatch.setenv("SEA_MQ_NATS_URL", NO_BROKER)

    ended = pipeline("reconcile")

    assert ended.exit_code == exit_code
    assert ended.stdout.splitlines()[-len(last) :] == last


def test_lost_events_of_the_archive_are_named_with_the_whole_command_that_sends_them_again() -> None:
    done = Requeued(lost=3, replayed=1, capped=False, archived=["a"], archived_count=2, dry_run=False)
    assert reconcile._requeue_text(done) == (
        "put back 1 of 1 events; 2 are only in the archive: run `pipeline replay --reason TEXT --id a`"
        " for these; --out lists the others"
    )


def test_a_requeue_is_not_advised_again_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    lost = {Verdict.MISSING_IN_STREAM: 1}
    hop = Hop(name="outbox -> S", ids=1, verdicts=lost, findings=lost, examples={}, latency=None)
    done = Requeued(lost=1, replayed=1, capped=False, archived=[], archived_count=0, dry_run=False)
    result = Reconciliation(since=None, until=None, rows={"S": 1}, hops=[hop], notes=[], requeued=done)
    reconcile._print_result(result)
    assert capsys.readouterr().out.splitlines()[-1] == "put back 1 of 1 events"


def test_a_comparison_that_the_disk_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(master: str) -> Any:
        properties = {"spark.master": master}
        return cast("Any", SimpleNamespace(conf=SimpleNamespace(get=properties.get)))

    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    check_disk(session("local[2]"), 1_000_000)
    check_disk(session("spark://host:7077"), 2_000_000)
    with pytest.raises(PipelineError, match="set TMPDIR to a larger disk"):
        check_disk(session("local[2]"), 2_000_000)
