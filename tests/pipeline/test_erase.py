"""An erased event is nowhere afterwards, and nothing brings it back."""

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.jobs.erase import id_hash, without_erased
from sea_mq_worker.pipeline.lake import ERASED, Lake

GONE = "0b6b7f0e-5a52-4c0c-8f0f-2d9f4ad4b7aa"


def test_a_message_with_an_erased_id_in_any_header_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path / "lake"))
    headers = [
        [("Nats-Msg-Id", GONE.upper())],
        [("x", GONE)],
        [("DLQ-Message-Id", "other"), ("dlq-message-id", GONE)],
        [],
        None,
    ]
    rows = [("S", "i", seq, "other", given) for seq, given in enumerate(headers, 1)]
    columns = "stream STRING, incarnation STRING, seq BIGINT, message_id STRING"
    columns += ", headers ARRAY<STRUCT<key: STRING, value: STRING>>"
    frame = spark.createDataFrame([*rows, ("S", "i", 6, GONE, None)], columns)
    assert without_erased(lake, frame) is frame, "a lake without a record has erased nothing"

    lake.create(ERASED)
    spark.createDataFrame([(id_hash(GONE), datetime.now(UTC))], ERASED.ddl).writeTo(
        lake.table(ERASED.name)
    ).append()

    assert sorted(row.seq for row in without_erased(lake, frame).collect()) == [2, 4, 5]
