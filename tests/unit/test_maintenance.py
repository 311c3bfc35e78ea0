"""Days ahead of an outbox in partitions: made, told, and no reason to stop."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest

from sea_mq_worker.errors import ContractError, StoreUnavailableError
from sea_mq_worker.outbox.maintenance import make_partitions
from sea_mq_worker.testing.events import Emitted, RecordingEvents
from sea_mq_worker.testing.sessions import InMemoryPartitions
from tests.support.simulation import Interrupted

TODAY = date(2025, 12, 31)


async def reported(partitions: Any) -> Sequence[Emitted]:
    events = RecordingEvents()
    await make_partitions(partitions, events, days_ahead=1)
    return events.emitted


def failing(error: Exception) -> Interrupted:
    partitions = Interrupted(InMemoryPartitions(lambda: TODAY), error)
    partitions.down = True
    return partitions


async def test_only_created_partitions_are_reported() -> None:
    partitions = InMemoryPartitions(lambda: TODAY)
    days = "outbox_events_20251231, outbox_events_20260101"
    assert await reported(partitions) == [Emitted("partitions_made", text=days)]
    assert await reported(partitions) == []


async def test_a_worker_without_the_right_to_create_partitions_reports_it_and_continues() -> None:
    assert await reported(failing(ContractError("permission denied"))) == [
        Emitted("partitions_not_made", text="permission denied")
    ]


async def test_an_outage_is_raised_to_the_circuit_breaker() -> None:
    with pytest.raises(StoreUnavailableError):
        await reported(failing(StoreUnavailableError("away")))
