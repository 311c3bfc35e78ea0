"""``spark.read.format("jetstream")`` in Spark itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from tests.pipeline.jetstream_support import PASSWORD, Stream, settings_file
from tests.support.documents import blocks

Read: TypeAlias = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, nats_url: str, names: str, tmp_path: Path) -> Read:
    def load(**options: Any) -> DataFrame:
        given = {"stream": names, "config": settings_file(tmp_path, nats_url), **options}
        return spark.read.format("jetstream").options(**given).load()

    return load


async def test_a_stream_is_a_table_read_by_many_tasks(stream: Stream, read: Read) -> None:
    await stream.store(24, Tag="a")
    await stream.store(1, body=b"\x00\xff", subject="b")

    rows = read(rowsPerPartition=10).withColumn("task", F.spark_partition_id()).collect()

    assert [(row.seq, row.task) for row in rows] == [(seq, (seq - 1) // 10) for seq in range(1, 26)]
    assert [tuple(pair) for pair in rows[0].headers] == [("Tag", "a")]
    assert (rows[24].subject, rows[24].headers, rows[24].data) == (f"{stream.name}.b", [], b"\x00\xff")
    assert (rows[0].stream, rows[0].created) == (stream.name, (await stream.info())["created"])
    assert rows[0].time <= rows[24].time


async def test_an_error_names_the_remedy_and_nothing_shows_a_secret(
    stream: Stream, read: Read, capfd: pytest.CaptureFixture[str]
) -> None:
    read().explain("extended")
    with pytest.raises(PySparkException, match="ContractError: stream none does not exist") as wrong:
        read(stream="none").collect()
    shown = capfd.readouterr()
    assert "jetstream" in shown.out
    assert PASSWORD not in shown.out + shown.err + str(wrong.value)


async def test_the_example_of_the_document_reads_a_stream_at_rest_and_live(
    stream: Stream, spark: SparkSession, nats_url: str, tmp_path: Path
) -> None:
    await stream.store(3)
    [example] = [text for _, language, text in blocks("docs/how-to/pipeline.md") if language == "python"]
    config = f'"{stream.name}").option("config", "{settings_file(tmp_path, nats_url)}")'
    found: dict[str, Any] = {"spark": spark}
    exec(example.replace('"SEA_EVENTS")', config), found)
    assert found["orders"].count() == 3
    assert found["live"].isStreaming
