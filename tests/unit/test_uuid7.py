"""Ids of version 7 tell when they were made, and from which one to which one a page is read."""

import uuid
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sea_mq_worker.operators.tables import id_bounds
from sea_mq_worker.postgres.partitions import is_uuid7, min_id_at, timestamp_of
from sea_mq_worker.producer import uuid7

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
EXAMPLE = UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")
"""Of RFC 9562, A.6: made on 2022-02-22 at 19:22:22 UTC."""


def test_the_time_of_a_uuid7_is_read_from_it() -> None:
    assert timestamp_of(EXAMPLE) == datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)
    assert abs(timestamp_of(uuid7()) - datetime.now(UTC)) < timedelta(minutes=1)
    assert timestamp_of(UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")).year == 9999


def test_the_lowest_id_of_a_moment_divides_those_made_before_from_those_made_then() -> None:
    at = timestamp_of(EXAMPLE)

    assert min_id_at(at) <= EXAMPLE < min_id_at(at + timedelta(milliseconds=1))
    assert min_id_at(datetime(1969, 1, 1, tzinfo=UTC)) == UUID(int=0)


def test_ids_of_other_versions_have_no_time() -> None:
    assert is_uuid7(uuid7())
    assert not is_uuid7(uuid.uuid4())
    assert not is_uuid7(uuid.uuid1())
    assert not is_uuid7(UUID(int=1))


def test_a_page_ends_at_the_closer_of_two_bounds() -> None:
    early, late = min_id_at(NOON - timedelta(hours=1)), min_id_at(NOON)

    assert id_bounds(None, None, None) == (None, None)
    assert id_bounds(NOON, None, None) == (late, None)
    assert id_bounds(None, NOON, early) == id_bounds(None, NOON - timedelta(hours=1), late) == (None, early)
