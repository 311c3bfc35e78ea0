"""Ids of version 7 tell when they were made, and from which one to which one a page is read."""

import uuid
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sea_mq_worker.adapters.postgres.operator.pagination import reach
from sea_mq_worker.domain.uuid7 import lowest_id, made_at, tells_time
from sea_mq_worker.producer import uuid7

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
EXAMPLE = UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")
"""Of RFC 9562, A.6: made on 2022-02-22 at 19:22:22 UTC."""


def test_an_id_of_version_7_tells_when_it_was_made() -> None:
    assert made_at(EXAMPLE) == datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)
    assert abs(made_at(uuid7()) - datetime.now(UTC)) < timedelta(minutes=1)
    assert made_at(UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")).year == 9999


def test_the_lowest_id_of_a_moment_divides_those_made_before_from_those_made_then() -> None:
    at = made_at(EXAMPLE)

    assert lowest_id(at) <= EXAMPLE < lowest_id(at + timedelta(milliseconds=1))
    assert lowest_id(datetime(1969, 1, 1, tzinfo=UTC)) == UUID(int=0)


def test_ids_of_other_versions_tell_no_time() -> None:
    assert tells_time(uuid7())
    assert not tells_time(uuid.uuid4())
    assert not tells_time(uuid.uuid1())
    assert not tells_time(UUID(int=1))


def test_a_page_ends_at_the_closer_of_two_bounds() -> None:
    early, late = lowest_id(NOON - timedelta(hours=1)), lowest_id(NOON)

    assert reach(None, None, None) == (None, None)
    assert reach(NOON, None, None) == (late, None)
    assert reach(None, NOON, early) == reach(None, NOON - timedelta(hours=1), late) == (None, early)
