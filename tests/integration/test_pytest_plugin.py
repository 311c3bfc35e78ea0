"""The fixtures for a service's tests, in a pytest of their own as a service runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import blocks

SHOP = """
import flask
import psycopg
from sea_mq_worker.producer.once import once
from sea_mq_worker.producer import Event, enqueue_sync

ORDERS = "CREATE TABLE IF NOT EXISTS paid (id int)"

def pay(dsn, order):
    with psycopg.connect(dsn) as connection:
        fields = {"aggregate_type": "order", "aggregate_id": str(order), "event_type": "order.paid"}
        enqueue_sync(connection, Event(**fields, payload={"order": order}))

def paid_orders(dsn):
    with psycopg.connect(dsn) as connection:
        connection.execute(ORDERS)
        return connection.execute("SELECT count(*) FROM paid").fetchone()[0]

def create_app(dsn):
    app = flask.Flask("shop")

    @app.post("/handle")
    def handle():
        message = flask.request.get_json()
        if not isinstance(message["payload"]["order"], int):
            return "", 422
        with psycopg.connect(dsn) as connection, once(connection, message["message_id"]) as first:
            if not first:
                return "", 409
            connection.execute(ORDERS)
            connection.execute("INSERT INTO paid VALUES (%s)", [message["payload"]["order"]])
        return "", 200

    return app
"""
FAILING = """
from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest
from sea_mq_worker.producer import Event, enqueue_sync
from shop import pay

WRONG = {"event_type": "order.paid", "payload": {"order": 8}}, {"no_column": "order.paid"}
HERE = timezone(timedelta(hours=5))

@pytest.mark.parametrize("expected", [[], *([each] for each in WRONG)])
def test_other_events(sea_mq_database, sea_mq_events, expected):
    with pytest.raises(AssertionError, match="order.paid"), sea_mq_events.exactly(*expected):
        pay(sea_mq_database, order=7)

def test_no_event(sea_mq_events):
    missing = pytest.raises(AssertionError, match="found ..$")
    with missing, sea_mq_events.exactly({"event_type": "order.paid"}):
        pass

@pytest.mark.parametrize("due", [datetime(2042, 1, 9, tzinfo=UTC), datetime(2042, 1, 9, 0, 0, 0, 120, HERE)])
def test_a_time(sea_mq_database, sea_mq_events, due):
    event = Event(aggregate_type="a", aggregate_id="1", event_type="a.b", payload={}, available_at=due)
    with sea_mq_events.exactly({"available_at": due, "id": event.id}):
        with psycopg.connect(sea_mq_database) as connection:
            enqueue_sync(connection, event)

async def test_an_asynchronous_test(sea_mq_database, sea_mq_events, sea_mq_run_worker):
    with sea_mq_events.exactly(), sea_mq_run_worker(context="shop"):
        pass
"""
OWN_SCHEMA = """
import psycopg
import pytest
from sea_mq_worker.producer import Event, enqueue_sync

@pytest.fixture
def sea_mq_schema():
    return "Events"

def test_a_schema_of_its_own(sea_mq_database, sea_mq_events, sea_mq_run_worker):
    event = Event(aggregate_type="a", aggregate_id="1", event_type="a.b", payload={})
    with sea_mq_events.exactly({"event_type": "a.b"}), sea_mq_run_worker(context="shop") as worker:
        with psycopg.connect(sea_mq_database) as connection:
            enqueue_sync(connection, event, schema="Events")
        worker.wait_until_published()
"""


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """A folder with a service, and with the document's tests of it."""
    conftest, tests = [text for _, kind, text in blocks("docs/how-to/testing.md") if kind == "python"]
    files = {"shop.py": SHOP, "conftest.py": conftest, "test_shop.py": tests, "test_failing.py": FAILING}
    files["test_schema.py"] = OWN_SCHEMA
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_tests_of_the_document_pass_and_wrong_events_fail(service: Path) -> None:
    options = ["asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"-o{o}" for o in options)]
    done = subprocess.run(
        [*command, "--basetemp", service / "tmp"], cwd=service, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout
