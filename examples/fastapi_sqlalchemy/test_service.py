"""The service on a real PostgreSQL: the events that a request writes, and the answers to messages."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from fastapi.testclient import TestClient

from sea_mq_worker.embedded import EmbeddedPostgres


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The service on a PostgreSQL with the worker's tables."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))
    asyncio.run(server.start())
    os.environ["SEA_MQ_DATABASE_URL"] = server.dsn
    subprocess.run([sys.executable, "-m", "sea_mq_worker", "migrate"], check=True)
    from service import app  # noqa: PLC0415 - it reads the URL

    with TestClient(app) as client:
        yield client
    asyncio.run(server.stop())


def outbox() -> list[tuple[str, str]]:
    """Return type and aggregate of each event."""

    async def read() -> list[Any]:
        connection = await asyncpg.connect(os.environ["SEA_MQ_DATABASE_URL"])
        try:
            return await connection.fetch("SELECT event_type, aggregate_id FROM outbox_events ORDER BY seq")
        finally:
            await connection.close()

    return [tuple(row) for row in asyncio.run(read())]


def booked(service: TestClient) -> int:
    answer = service.post("/bookings", json={"guest": "Ada", "arrives": "2042-06-01"})
    return int(answer.json()["booking"])


def payment(of: object) -> dict[str, Any]:
    return {
        "message_id": str(uuid4()),
        "subject": "payments.event.payment.received.v1",
        "event_type": "payment.received",
        "event_version": 1,
        "occurred_at": "2042-05-01T12:00:00Z",
        "correlation_id": None,
        "causation_id": None,
        "payload": {"booking": of},
    }


def test_a_booking_and_its_events_are_written_together(service: TestClient) -> None:
    number = str(booked(service))
    assert outbox()[-2:] == [("booking.made", number), ("booking.reminder", number)]


def test_a_payment_has_its_effect_once(service: TestClient) -> None:
    number = booked(service)
    message = payment(of=number)
    assert [service.post("/handle", json=message).status_code for _ in range(2)] == [200, 409]
    assert service.get(f"/bookings/{number}").json() == {"guest": "Ada", "paid": True}


@pytest.mark.parametrize("of", [10**6, "no number"])
def test_a_payment_of_no_booking_is_refused_for_good(service: TestClient, of: object) -> None:
    message = payment(of)
    assert [service.post("/handle", json=message).status_code for _ in range(2)] == [422, 422]
