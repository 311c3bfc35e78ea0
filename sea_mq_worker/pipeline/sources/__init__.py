"""Spark data sources: ``jetstream``, ``outbox`` and ``inbox``."""

from pyspark.sql.datasource import DataSource

from sea_mq_worker.pipeline.sources.jetstream import JetStreamSource
from sea_mq_worker.pipeline.sources.tables import InboxSource, OutboxSource

SOURCES: tuple[type[DataSource], ...] = (InboxSource, JetStreamSource, OutboxSource)
"""What a session registers."""
