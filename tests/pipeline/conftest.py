"""One Spark session for all tests of the pipeline: it takes seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.session import spark_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("tests", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"}) as session:
        yield session
