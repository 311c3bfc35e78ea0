"""A lake in an object store: the same table, with credentials from the environment alone."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import boto3
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from sea_mq_worker.embedded.process import free_port
from sea_mq_worker.pipeline.errors import PipelineError
from sea_mq_worker.pipeline.lake.schemas import BRONZE
from sea_mq_worker.pipeline.lake.table import NO_FILES, ConflictError, LakeTable, Watermark
from tests.pipeline.test_lake_table import messages
from tests.support.waiting import answered

BUCKET = "the-lake"
KEY = "AKIDNOTTOBESEEN"


@pytest.fixture
def s3(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server, whose address and credentials this process and the tasks have in their environment."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    given = {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1", "ENDPOINT_URL": url}
    for name, value in {**given, "ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setitem(spark.sparkContext.environment, f"AWS_{name}", value)
    try:
        asyncio.run(answered(f"{url}/moto-api/", within=60))
        boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}/events"
    finally:
        server.kill()
        server.wait()


def test_a_table_in_an_object_store_is_written_and_read(spark: SparkSession, s3: str) -> None:
    table = LakeTable(s3, BRONZE)
    rows = messages(spark, 1, 100_000)
    assert table.commit(table.write(rows), Watermark("land", 100_000, after=0))
    assert not table.commit(NO_FILES, Watermark("land", 100_000, after=0))
    with pytest.raises(ConflictError):
        table.commit(NO_FILES, Watermark("land", 100_001, after=1))

    assert table.watermarks()("land") == 100_000
    assert table.read(spark).exceptAll(rows).isEmpty()
    some = table.read(spark, [("date", "=", "1970-01-02")], columns=["date", "seq"])
    assert some.columns == ["date", "seq"]
    assert some.count() == 100_000 - 86_400 + 1
    assert some.agg(F.min("seq")).first() == (86_400,)
    assert KEY not in some._jdf.queryExecution().toString()


def test_an_unreachable_object_store_is_reported(s3: str) -> None:
    with pytest.raises(PipelineError, match=r"s3://no-such-bucket/bronze cannot be read or written: "):
        LakeTable("s3://no-such-bucket", BRONZE).watermarks()("land")
