"""Days ahead of an outbox in partitions: made, told, and no reason to stop."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from sea_mq_worker.adapters.memory.observer import RecordingObserver, Told
from sea_mq_worker.application.upkeep import PartitionMaker
from sea_mq_worker.domain.errors import ContractError, StoreUnavailableError
from sea_mq_worker.domain.facts import Noticed, Progressed


@dataclass
class Days:
    """Partitions of which so many are missing, or that cannot be made."""

    missing: int
    error: Exception | None = None

    async def make(self, *, days_ahead: int) -> Sequence[str]:
        if self.error:
            raise self.error
        return [f"day {n}" for n in range(min(self.missing, days_ahead))]


async def told(days: Days) -> Sequence[Told]:
    observer = RecordingObserver()
    await PartitionMaker(partitions=days, observer=observer, days_ahead=2).make()
    return observer.facts


async def test_what_was_made_is_told() -> None:
    assert await told(Days(missing=3)) == [Progressed(event="partitions_made", text="day 0, day 1")]


async def test_nothing_is_told_of_nothing() -> None:
    assert await told(Days(missing=0)) == []


async def test_a_worker_that_may_not_make_any_says_so_and_goes_on() -> None:
    refused = ContractError("permission denied")
    assert await told(Days(missing=3, error=refused)) == [
        Noticed(event="partitions_not_made", text="permission denied")
    ]


async def test_an_outage_is_for_the_gate_to_wait_for() -> None:
    with pytest.raises(StoreUnavailableError):
        await told(Days(missing=3, error=StoreUnavailableError("away")))
