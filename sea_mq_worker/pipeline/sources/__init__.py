"""Spark data sources: ``jetstream``, ``outbox`` and ``inbox``."""

from pyspark.sql.datasource import DataSource

from sea_mq_worker.pipeline.sources.jetstream import JetStreamSource

SOURCES: tuple[type[DataSource], ...] = (JetStreamSource,)
"""What a session registers."""
