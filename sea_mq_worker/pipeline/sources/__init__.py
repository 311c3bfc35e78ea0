"""Spark data sources: ``jetstream``, ``outbox`` and ``inbox``."""

from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.sources.jetstream.source import JetStreamSource
from sea_mq_worker.pipeline.sources.tables.source import InboxSource, OutboxSource


def register(spark: SparkSession) -> None:
    """Register the sources with a session, so that ``spark.read.format`` accepts their names.

    Spark then starts a Python process to look for installed sources, which takes a second.
    """
    for source in (InboxSource, JetStreamSource, OutboxSource):
        spark.dataSource.register(source)
