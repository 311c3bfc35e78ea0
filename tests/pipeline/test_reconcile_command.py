"""``pipeline reconcile`` without Spark: its last lines for people, and its check of the disk."""

import shutil
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.cli.pipeline import reconcile
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.jobs.reconcile import job
from sea_mq_worker.pipeline.jobs.reconcile.result import Hop, Reconciliation, Verdict
from sea_mq_worker.pipeline.jobs.reconcile.sources import check_disk


@pytest.mark.parametrize(
    ("counts", "exit_code", "last"),
    [
        ({}, 0, ["all 1,000 accounted for"]),
        ({Verdict.PENDING: 3}, 0, ["all 1,003 accounted for"]),
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
def test_the_output_ends_with_the_next_step_for_each_bad_verdict(
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
    result = Reconciliation(since=None, until=None, compared=[], rows={}, hops=[hop], notes=[], requeued=None)
    monkeypatch.setattr(reconcile, "open_spark", lambda *_, **__: nullcontext())
    monkeypatch.setattr(job, "reconcile", lambda *_, **__: result)
    monkeypatch.setenv("SEA_MQ_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("SEA_MQ_NATS_URL", "nats://127.0.0.1:1")
    ended = CliRunner().invoke(app, ["pipeline", "reconcile"])
    assert ended.exit_code == exit_code
    assert ended.stdout.splitlines()[-len(last) :] == last


def test_a_comparison_that_the_disk_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(master: str) -> Any:
        properties = {"spark.master": master}
        return cast("Any", SimpleNamespace(conf=SimpleNamespace(get=properties.get)))

    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    check_disk(session("local[2]"), 1_000_000)
    check_disk(session("spark://host:7077"), 2_000_000)
    with pytest.raises(PipelineError, match="set TMPDIR to a larger disk"):
        check_disk(session("local[2]"), 2_000_000)
