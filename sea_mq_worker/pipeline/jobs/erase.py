"""Erase events for good, and keep them away: the lake has a record of erased message IDs, as hashes."""

import hashlib

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from sea_mq_worker.pipeline.lake import ERASED, Lake

ID_HEADERS = ("nats-msg-id", "ce-id", "dlq-message-id")
"""Lowercase names of the headers with the ID of a message, or of the message that became a dead letter."""

_PLACE = ("stream", "incarnation", "created", "seq")


def without_erased(lake: Lake, frame: DataFrame) -> DataFrame:
    """Return the messages without those that have an erased ID, also in a header with another ID.

    Args:
        lake: the lake with the record of erased IDs.
        frame: ``stream``, ``incarnation`` or ``created``, ``seq``, ``message_id``, ``headers`` and what else
            there is. It is read twice, so persist it if it is costly. No row is shuffled: the places of the
            erased messages, which are few, are sent to all executors.
    """
    if not lake.exists(ERASED.name):
        return frame
    place = [name for name in _PLACE if name in frame.columns]
    named = frame.select(*place, fn.explode(message_ids(frame)).alias("id"))
    hashes = lake.read(ERASED.name).select(fn.col("id_sha256").alias("hash"))
    erased = named.join(hashes, fn.sha2("id", 256) == fn.col("hash"), "left_semi").select(*place)
    return frame.join(fn.broadcast(erased), place, "left_anti")


def message_ids(frame: DataFrame) -> Column:
    """Return all IDs by which a message may be known, as they are and in lower case."""
    headers = fn.coalesce(frame["headers"], fn.array())
    named = fn.filter(headers, lambda header: fn.lower(header["key"]).isin(*ID_HEADERS))
    values = fn.transform(named, lambda header: header["value"])
    given = fn.array_compact(fn.concat(values, fn.array(frame["message_id"])))
    return fn.array_distinct(fn.concat(given, fn.transform(given, fn.lower)))


def id_hash(message_id: str) -> str:
    """Return the hash under which an erased message ID is recorded."""
    return hashlib.sha256(message_id.encode()).hexdigest()
