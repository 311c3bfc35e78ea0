"""The service on a real PostgreSQL: the events that a request writes, and the answers to messages."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from sea_mq_worker.testing.handler_contract import HandlerContract

pytest_plugins = ["sea_mq_worker.pytest_plugin"]


@pytest.fixture
def service(sea_mq_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The service on a database of the test's own."""
    monkeypatch.setenv("SEA_MQ_DATABASE_URL", sea_mq_database)
    monkeypatch.delitem(sys.modules, "service", raising=False)
    with TestClient(importlib.import_module("service").app) as client:
        yield client


def book(service: TestClient) -> None:
    assert service.post("/bookings", json={"guest": "Ada", "arrives": "2042-06-01"}).json() == {"booking": 1}


def test_a_booking_is_written_with_its_events(service: TestClient, sea_mq_events: Any) -> None:
    about = {"aggregate_type": "booking", "aggregate_id": "1"}
    made, reminder = ({**about, "event_type": f"booking.{name}"} for name in ("made", "reminder"))
    with sea_mq_events.exactly(made, reminder):
        book(service)


def test_payments_are_handled_by_the_workers_contract(service: TestClient) -> None:
    book(service)

    def paid() -> bool:
        return bool(service.get("/bookings/1").json()["paid"])

    contract = HandlerContract(
        post=lambda body: service.post("/handle", json=body).status_code, event_type="payment.received"
    )
    contract.rejects({"booking": 2}, effects=paid)
    contract.rejects({"booking": "one"}, effects=paid)
    contract.processes({"booking": 1}, effects=paid)
    assert paid()
