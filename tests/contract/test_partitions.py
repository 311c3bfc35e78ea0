"""The contract of Partitions, over PostgreSQL and the in-memory fake."""

import asyncio
from datetime import UTC, date, datetime, timedelta

import pytest

from sea_mq_worker.ports import Partitions
from sea_mq_worker.testing.sessions import InMemoryPartitions


def today() -> date:
    return datetime.now(UTC).date()


def days(*ahead: int) -> list[str]:
    return [f"outbox_events_{today() + timedelta(days=n):%Y%m%d}" for n in ahead]


@pytest.fixture(params=["memory", "postgres"])
def single_table(request: pytest.FixtureRequest) -> Partitions:
    if request.param == "memory":
        return InMemoryPartitions(today, None)
    real: Partitions = request.getfixturevalue("postgres_world").partitions()
    return real


@pytest.fixture(params=["memory", "postgres"])
def partitions(request: pytest.FixtureRequest) -> Partitions:
    if request.param == "memory":
        return InMemoryPartitions(today)
    real: Partitions = request.getfixturevalue("partitions_world").partitions()
    return real


async def test_a_single_table_has_no_days_to_make(single_table: Partitions) -> None:
    assert await single_table.make(days_ahead=9) == []


async def test_what_is_missing_is_made_once(partitions: Partitions) -> None:
    await partitions.make(days_ahead=7)
    assert await partitions.make(days_ahead=9) == days(8, 9)
    assert await partitions.make(days_ahead=9) == []


async def test_of_several_that_ask_at_once_none_makes_what_another_makes(partitions: Partitions) -> None:
    await partitions.make(days_ahead=7)
    made = await asyncio.gather(*[partitions.make(days_ahead=9) for _ in range(3)])
    assert sorted(name for names in made for name in names) == days(8, 9)
