"""Fixtures for a service's tests: a database with the outbox, the events of a block, a running worker.

Load them by ``pytest_plugins = ["sea_mq_worker.pytest_plugin"]`` in the topmost ``conftest.py``. They need
the extra ``embedded``. They are synchronous, and fit synchronous and asynchronous tests.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from sea_mq_worker.dev.servers import EmbeddedNats, EmbeddedPostgres
from sea_mq_worker.operators.definitions import apply_topology, defined_streams
from sea_mq_worker.postgres.migrations import migrate
from sea_mq_worker.postgres.pool import quoted_schema
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings
from sea_mq_worker.worker import running_worker

_STREAM_BYTES = 64 * 1024 * 1024
_POLL_SECONDS = 0.05
_Rows = Callable[[], Awaitable[list[dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Servers:
    """Embedded PostgreSQL and nats-server of the test session."""

    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    _portal: BlockingPortal


@dataclass(frozen=True, slots=True)
class WrittenEvents:
    """The events that a test's database gets."""

    _rows: _Rows
    _portal: BlockingPortal

    @contextmanager
    def exactly(self, *expected: Mapping[str, Any]) -> Iterator[None]:
        """Check that the block commits exactly these events, in this order.

        Args:
            expected: for each event the columns to compare, such as ``event_type`` and ``payload``.
        """
        before = len(self._portal.call(self._rows))
        yield
        written = self._portal.call(self._rows)[before:]
        wanted = json.loads(json.dumps(expected, default=_as_stored))
        columns = {name for want in wanted for name in want} or {"event_type"}
        found = [{name: event.get(name, "no such column") for name in columns} for event in written]
        is_same = len(found) == len(wanted) and all(
            want.items() <= event.items() for want, event in zip(wanted, found, strict=True)
        )
        if not is_same:
            raise AssertionError(f"expected the events {wanted}, found {found}")


@dataclass(frozen=True, slots=True)
class WorkerUnderTest:
    """A worker that runs on the embedded servers."""

    _rows: _Rows
    _portal: BlockingPortal

    def wait_until_published(self, *, within: float = 10.0) -> None:
        """Wait until every event of the outbox is PUBLISHED; fail after ``within`` seconds, by default 10."""
        self._portal.call(self._published, within)

    async def _published(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while unpublished := [e for e in await self._rows() if e["state"] != "PUBLISHED"]:
            if time.monotonic() > deadline:
                raise AssertionError(f"not published within {seconds:g} s: {unpublished}")
            await asyncio.sleep(_POLL_SECONDS)


RunWorker = Callable[..., AbstractContextManager[WorkerUnderTest]]
"""Takes settings by their names, such as ``handler_url``; the worker runs during the block."""


@pytest.fixture(scope="session")
def sea_mq_servers() -> Iterator[Servers]:
    """Start embedded PostgreSQL and nats-server once for all tests.

    Their folder is not pytest's, which only its owner may enter: under root, PostgreSQL has another user.
    """
    with (
        start_blocking_portal() as portal,
        TemporaryDirectory(prefix="sea-mq-test-") as folder,
        portal.wrap_async_context_manager(
            EmbeddedPostgres(Path(folder, "postgres"), settings={"fsync": "off"})
        ) as postgres,
        portal.wrap_async_context_manager(EmbeddedNats(Path(folder, "nats"))) as nats,
    ):
        yield Servers(postgres, nats, portal)


@pytest.fixture(scope="session")
def _sea_mq_template(sea_mq_servers: Servers) -> Callable[[str], str]:
    """Migrate one database for each schema that a test wants; the tests' databases are its copies."""
    postgres, portal = sea_mq_servers.postgres, sea_mq_servers._portal  # noqa: SLF001 - of this module

    @cache
    def template(schema: str) -> str:
        name = f"sea_mq_template_{schema}"
        portal.call(_fetch, postgres.dsn, f'CREATE DATABASE "{name}"')
        portal.call(partial(migrate, postgres.dsn_for(name), schema=schema))
        return name

    return template


@pytest.fixture
def sea_mq_schema() -> str:
    """Return the schema of the worker's tables; override it if your service has another."""
    return "public"


@pytest.fixture
def sea_mq_database(
    sea_mq_servers: Servers, sea_mq_schema: str, _sea_mq_template: Callable[[str], str]
) -> Iterator[str]:
    """Return the URL of a database with the worker's tables for one test; override it to use your own."""
    name, portal = f"test_{secrets.token_hex(5)}", sea_mq_servers._portal  # noqa: SLF001 - of this module
    template = _sea_mq_template(sea_mq_schema)
    portal.call(_fetch, sea_mq_servers.postgres.dsn, f'CREATE DATABASE {name} TEMPLATE "{template}"')
    yield sea_mq_servers.postgres.dsn_for(name)
    portal.call(_fetch, sea_mq_servers.postgres.dsn, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sea_mq_events(sea_mq_servers: Servers, sea_mq_database: str, sea_mq_schema: str) -> WrittenEvents:
    """Check which events a block commits to ``sea_mq_database``."""
    rows = partial(_written, sea_mq_database, sea_mq_schema)
    return WrittenEvents(rows, sea_mq_servers._portal)  # noqa: SLF001 - of this module


@pytest.fixture
def sea_mq_run_worker(sea_mq_servers: Servers, sea_mq_database: str, sea_mq_schema: str) -> RunWorker:
    """Run a worker on ``sea_mq_database`` and the embedded nats-server; streams stay for the session."""
    portal = sea_mq_servers._portal  # noqa: SLF001 - of this module

    @contextmanager
    def run_worker(**settings: Any) -> Iterator[WorkerUnderTest]:
        own = {
            "database_url": sea_mq_database,
            "database_schema": sea_mq_schema,
            "nats_url": sea_mq_servers.nats.url,
            "consumers": "",
            "stream_replicas": 1,
            "stream_max_bytes": _STREAM_BYTES,
        }
        given = Settings.model_validate(own | settings)
        portal.call(partial(apply_topology, given, streams=defined_streams(given)))
        with portal.wrap_async_context_manager(running_worker(given)) as worker:
            portal.call(worker.started)
            yield WorkerUnderTest(partial(_written, sea_mq_database, given.database_schema), portal)

    return run_worker


def _as_stored(value: object) -> str:
    """Return a time as PostgreSQL writes it in UTC, without zeros at the end of a fraction."""
    if not isinstance(value, datetime):
        return str(value)
    text = value.astimezone(UTC).replace(tzinfo=None).isoformat()
    return f"{text.rstrip('0') if '.' in text else text}+00:00"


async def _written(dsn: str, schema: str) -> list[dict[str, Any]]:
    written = load_queries("testing")["written"]
    settings = {"timezone": "UTC", "search_path": quoted_schema(schema)}
    return [json.loads(row["event"]) for row in await _fetch(dsn, written, settings)]


async def _fetch(dsn: str, statement: str, settings: Mapping[str, str] | None = None) -> Sequence[Any]:
    connection = await asyncpg.connect(dsn, server_settings=settings)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()
