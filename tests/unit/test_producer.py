"""Errors that a producer gets before anything is sent, and the ids that it makes."""

import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from sea_mq_worker.errors import InvalidEventError
from sea_mq_worker.producer import enqueue, enqueue_sync, uuid7
from tests.support.builders import enqueueable as event


@pytest.mark.clause("event-model-02")
def test_each_event_has_an_id_of_its_own_that_sorts_by_time() -> None:
    before = time.time_ns() // 1_000_000
    first = [event().id for _ in range(1000)]
    later = UUID(int=uuid7().int)

    assert len(set(first)) == 1000
    assert {(one.version, one.variant) for one in first} == {(7, uuid.RFC_4122)}
    assert before <= first[0].int >> 80 <= time.time_ns() // 1_000_000
    assert first[0] < later


@pytest.mark.clause("POL-047-001")
@pytest.mark.parametrize(
    ("mistake", "reported"),
    [
        ({"event_type": ""}, "event_type is blank"),
        ({"event_type": "order.*"}, "wildcard"),
        ({"event_type": "order created"}, "space"),
        ({"event_type": None}, "event_type must be a str, not NoneType"),
        ({"event_version": 0}, "below 1"),
        ({"event_version": 2**31}, "above"),
        ({"event_version": "1"}, "event_version must be a int"),
        ({"event_version": True}, "event_version must be a int, not bool"),
        (
            {"occurred_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
            "occurred_at is outside",
        ),
        ({"aggregate_type": " "}, "aggregate_type is blank"),
        ({"aggregate_id": 7}, "aggregate_id must be a str, not int"),
        ({"aggregate_id": "a\0b"}, "NUL"),
        ({"aggregate_id": "a\udcff"}, "half of a surrogate pair"),
        ({"payload": r'["\ud83d\ude00\ud83d"]'}, "half of a surrogate pair"),
        ({"payload": '"\udcff"'}, "payload is text, but not JSON"),
        ({"payload": float("nan")}, "payload is not JSON"),
        ({"payload": {"at": datetime.now(UTC)}}, "payload is not JSON"),
        ({"payload": Decimal("1.00")}, "payload is not JSON"),
        ({"payload": b'{"a": NaN}'}, "NaN is not JSON"),
        ({"payload": "plain text"}, "payload is text, but not JSON"),
        ({"payload": b"\xff"}, "payload is text, but not JSON"),
        ({"payload": {"a": "x\0y"}}, "NUL"),
        ({"payload": '{"total": 1e200000}'}, "the number 1e200000 has more than 4300 digits"),
        ({"payload": "[" + "7" * 4301 + "]"}, "has more than 4300 digits"),
        ({"ordering_key": "ä" * 1024 + "x"}, "ordering_key is longer than 2048 bytes"),
        ({"headers": {"Nats-Msg-Id": "x"}}, "reserved"),
        ({"headers": {"x": "y" * 65_000}}, "headers and names are more than 63488"),
        ({"aggregate_id": "ä" * 11_000}, "headers and names are more than 63488"),
        ({"headers": {"x": 1}}, "not a string"),
        ({"headers": {"x": "a\r\nb"}}, "CR, LF or NUL"),
        ({"headers": {"a b": "x"}}, "name"),
        ({"headers": ["x"]}, "headers must be a Mapping"),
        ({"metadata": {"x": float("inf")}}, "metadata is not JSON"),
        ({"metadata": {"x": object()}}, "metadata is not JSON"),
        ({"occurred_at": datetime(2025, 1, 1)}, "occurred_at has no time zone"),  # noqa: DTZ001 - the mistake
        ({"available_at": "tomorrow"}, "available_at must be a datetime"),
        ({"id": "no uuid"}, "id must be a UUID"),
        ({"id": None}, "id must be a UUID"),
        ({"correlation_id": "c"}, "correlation_id must be a UUID"),
    ],
)
def test_a_mistake_is_reported_by_its_name(mistake: Mapping[str, Any], reported: str) -> None:
    """Before the connection is even looked at."""
    with pytest.raises(InvalidEventError, match=f"INVALID_OUTBOX: .*{reported}"):
        enqueue_sync(object(), event(), event(**mistake))


async def test_what_is_not_an_event_is_refused() -> None:
    with pytest.raises(TypeError, match="expected an Event"):
        await enqueue(object(), [event()])  # type: ignore[arg-type]


def test_a_producer_loads_no_driver_and_no_tracing() -> None:
    program = (
        "import sys, sea_mq_worker.producer;"
        "print({name.partition('.')[0] for name in sys.modules} &"
        " {'asyncpg', 'nats', 'opentelemetry', 'psycopg', 'pydantic', 'sqlalchemy'})"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
