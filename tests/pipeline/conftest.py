"""One process for all tests of the pipeline: one Spark session at a time, for each takes all processors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.session import spark_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        item.add_marker(pytest.mark.timeout(600))
        item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("tests", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"}) as session:
        yield session
