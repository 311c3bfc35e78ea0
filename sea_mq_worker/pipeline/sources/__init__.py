"""Spark data sources: ``jetstream``, ``outbox`` and ``inbox``."""

from pyspark.sql.datasource import DataSource

SOURCES: tuple[type[DataSource], ...] = ()
"""What a session registers."""
