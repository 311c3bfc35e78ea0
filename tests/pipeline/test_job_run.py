"""Jobs run in a session of the caller, which keeps its properties, and report their runs to OpenLineage."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.errors import DataLossError
from sea_mq_worker.pipeline.job_run import job_run, lake_datasets, stream_datasets, table_datasets
from sea_mq_worker.pipeline.jobs.land import job, tasks
from sea_mq_worker.pipeline.lake.schemas import BRONZE, GOLD
from sea_mq_worker.settings import Settings
from tests.pipeline.jetstream_support import Stream
from tests.pipeline.landing import Lake, events_of
from tests.support.documents import blocks

FOREIGN = {"spark.sql.session.timeZone": "Pacific/Auckland", "spark.sql.ansi.enabled": "false"}
OWN = Settings(
    context="sea",
    nats_url="nats://user:secret@one:4222,nats://two:4222",  # type: ignore[arg-type]
    database_url="postgresql://user:secret@db:5432/app",  # type: ignore[arg-type]
)


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that OpenLineage's client writes to."""
    file = tmp_path / "events.json"
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(file), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    return file


def sent(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_is_reported_with_its_data_sets_and_without_credentials(
    spark: SparkSession, events: Path
) -> None:
    reads = [*stream_datasets(OWN, ["SEA", "SEA"]), *table_datasets(OWN, "outbox_events")]
    writes = [*lake_datasets("s3://bucket/lake", BRONZE), *lake_datasets("/srv/lake", GOLD)]
    with job_run(spark, OWN, "land", reads=reads, writes=writes):
        [start] = sent(events)
    _, complete = sent(events)
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert (start["job"]["namespace"], start["job"]["name"]) == ("sea", "sea_mq_worker.land")
    for one in (start, complete):
        assert [(each["namespace"], each["name"]) for each in one["inputs"]] == [
            ("nats://one:4222", "SEA"),
            ("postgres://db:5432", "app.outbox_events"),
        ]
        assert [(each["namespace"], each["name"]) for each in one["outputs"]] == [
            ("s3://bucket", "lake/bronze"),
            ("file", "/srv/lake/gold"),
        ]
    assert "secret" not in events.read_text()


def test_a_failed_run_is_reported_as_failed(spark: SparkSession, events: Path) -> None:
    with pytest.raises(DataLossError), job_run(spark, OWN, "land", reads=(), writes=()):
        raise DataLossError("lost")
    assert [one["eventType"] for one in sent(events)] == ["START", "FAIL"]


def test_a_run_goes_on_if_its_events_cannot_be_sent(
    spark: SparkSession, events: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events.mkdir()
    with job_run(spark, OWN, "land", reads=(), writes=()):
        pass
    assert caplog.text.count("was not sent") == 2


async def test_the_example_of_the_api_lands_in_a_notebooks_session_with_other_properties_and_a_job_group(
    spark: SparkSession, stream: Stream, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (job, tasks):
        monkeypatch.setattr(module, "ROWS_IN_PROCESS", 0)
    await stream.publish(events_of(stream.name, 7))
    given = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in FOREIGN.items():
        given.conf.set(name, value)
    monkeypatch.setenv("SEA_MQ_STREAM", stream.name)
    monkeypatch.chdir(lake.folder.parent)
    [example] = [
        text for _, language, text in blocks("docs/reference/pipeline-api.md") if language == "python"
    ]
    names: dict[str, Any] = {"spark": given}
    spark.sparkContext.setJobGroup("cell", "of a notebook")
    try:
        exec(example, names)
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]

    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("cell")) >= 2
    assert names["landed"].rows == 7
    assert {name: given.conf.get(name) for name in FOREIGN} == FOREIGN
    assert sum(row["events"] for row in lake.rows(GOLD)) == 7
