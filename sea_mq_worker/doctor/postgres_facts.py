"""Read facts about PostgreSQL for `doctor`, without changes.

Each function raises StoreUnavailableError if PostgreSQL cannot serve now, and ContractError if it refuses a
connection or a query.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import asyncpg

from sea_mq_worker.errors import ContractError
from sea_mq_worker.operators.checks import Acknowledged, PostgresStandings, RecordedMissed, acknowledged
from sea_mq_worker.operators.records import MARKED, NUMBERS
from sea_mq_worker.postgres.errors import ReplicaIdentityError, translated
from sea_mq_worker.postgres.migrations import (
    TABLES,
    Migration,
    altered_migrations,
    expected_functions,
    expected_objects,
)
from sea_mq_worker.postgres.pool import fetch, opening, session_settings
from sea_mq_worker.postgres.queries import load_queries

_SETTINGS = (
    *("fsync", "synchronous_commit", "session_replication_role", "autovacuum", "track_counts"),
    *("synchronous_standby_names", "max_prepared_transactions"),
    *("max_connections", "superuser_reserved_connections", "reserved_connections"),
    "transaction_timeout",
    "server_version",
)
_UPDATED = {"outbox_events": "publish_error", "inbox_messages": "last_error"}
"""Tables whose rows a worker changes, and a column that it may change."""
_CONNECT_SECONDS = 5.0
_HEAR_SECONDS = 3.0


class Setting(NamedTuple):
    """A server's setting, as this session has it."""

    name: str
    setting: str
    source: str


class Connections(NamedTuple):
    """Numbers of connections, and their limits (-1: no limit); ``active``: relays with a recent statement."""

    used: int
    database_used: int
    role_used: int
    own: int
    relays: int
    active: int
    workers: int
    database_max: int
    role_max: int


class OpenTransaction(NamedTuple):
    """A transaction that has been open for a long time."""

    pid: int
    state: str
    name: str
    seconds: float


class Prepared(NamedTuple):
    """A prepared transaction that has waited for a long time."""

    name: str
    seconds: float


class LaneHolder(NamedTuple):
    """A session that holds the lane of events with ordering keys and is no worker's."""

    pid: int
    name: str


class Slot(NamedTuple):
    """An inactive replication slot, and the amount of WAL that it retains."""

    name: str
    bytes: int


class TableLock(NamedTuple):
    """A lock on a table that a session holds or waits for; 0 seconds: the start is unknown."""

    relation: str
    pid: int
    mode: str
    granted: bool
    name: str
    seconds: float


class Table(NamedTuple):
    """A table; ``filtered``: row security applies; ``vacuum_from``: dead rows that start a vacuum."""

    name: str
    partitioned: bool
    unlogged: bool
    filtered: bool
    vacuumed: bool
    vacuum_from: float
    dead: int


class Trigger(NamedTuple):
    """A trigger of one of the tables."""

    name: str
    relation: str
    enabled: bool


class ForeignTrigger(NamedTuple):
    """A trigger of somebody else that runs before each change of a row."""

    name: str
    relation: str
    function: str


class Notifications(NamedTuple):
    """How full the queue of notifications is (1: full), and the session with the oldest transaction."""

    usage: float
    pid: int | None
    name: str
    seconds: float


class Publication(NamedTuple):
    """A publication that lets no row of a table change; ``by_index``: rows are identified by an index."""

    name: str
    relation: str
    by_index: bool
    primary_key: str
    problem: str


class Function(NamedTuple):
    """A function of the schema; in ``search_path`` its own schema is written as ``promised.SCHEMA``."""

    name: str
    body: str
    search_path: str


class Lack(NamedTuple):
    """A privilege that the login does not have; no columns: on the table."""

    relation: str
    privilege: str
    columns: Sequence[str]


class OutboxFacts(NamedTuple):
    """Condition of the outbox."""

    due_seconds: float
    dead: int
    ahead: int
    largest_bytes: int
    published_seconds: float


class SequenceFacts(NamedTuple):
    """Sequence of a column: its parameters, the last number assigned, and the highest of late rows.

    ``last`` is None if this login may not read the sequence.
    """

    relation: str
    name: str
    increment: int
    cache: int
    last: int | None
    highest: int | None


class PartitionFacts(NamedTuple):
    """Time for which partitions exist in advance, and size of the default partition, ``remainder``."""

    ahead_seconds: float
    remainder: str | None
    remainder_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxWaiting:
    """Unsettled messages of one consumer that no worker leases; ``unsettled`` counts the leased ones, too."""

    stream: str
    consumer: str
    unsettled: int
    count: int
    seconds: float
    first_seq: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Open events or messages of one last error; ``example`` is the id of one of them."""

    side: str
    error: str
    count: int
    example: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """Facts read from the tables; a lock on a table can delay them.

    Attributes:
        sequences: of the tables that this login may read.
        constraints: definitions as PostgreSQL prints them, by table and name.
        inbox_pruned_before: inbox rows before this time were deleted.
        acknowledged: stream sequences of published rows.
        publications: those that let no row change.
    """

    constraints: Mapping[tuple[str, str], str]
    outbox: OutboxFacts
    failing: Sequence[Failing]
    sequences: Sequence[SequenceFacts]
    partitions: PartitionFacts | None
    inbox: Sequence[InboxWaiting]
    missed: Sequence[RecordedMissed]
    inbox_pruned_before: datetime | None
    acknowledged: Acknowledged
    publications: Sequence[Publication]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """Server, login and tables; ``clock_offset_seconds``: its clock minus this machine's."""

    role: str
    database: str
    schema: str
    context: str | None
    encoding: str
    standbys: int
    clock_offset_seconds: float
    settings: Mapping[str, Setting]
    connections: Connections
    transactions: Sequence[OpenTransaction]
    prepared: Sequence[Prepared]
    lane_holders: Sequence[LaneHolder]
    slots: Sequence[Slot]
    tables: Sequence[Table]
    indexes: Mapping[str, bool]
    triggers: Mapping[str, Trigger]
    foreign_triggers: Sequence[ForeignTrigger]
    notifications: Notifications
    functions: Mapping[str, Function]
    lacks: Sequence[Lack]
    altered: Sequence[Migration]


async def database_facts(pool: asyncpg.Pool, *, long_seconds: float, active_seconds: float) -> DatabaseFacts:
    """Query the facts that no lock can delay.

    Transactions are reported from ``long_seconds`` on. A relay is active within ``active_seconds`` after a
    statement.
    """
    ask = _questions(pool)
    began = time.time()
    [identity] = await ask("identity")
    here = (began + time.time()) / 2
    tables = list(TABLES)
    epoch = identity.pop("epoch")
    return DatabaseFacts(
        **identity,
        clock_offset_seconds=epoch - here,
        settings={row["name"]: Setting(**row) for row in await ask("settings", list(_SETTINGS))},
        connections=Connections(**(await ask("connections", active_seconds))[0]),
        transactions=[OpenTransaction(**row) for row in await ask("transactions", long_seconds)],
        prepared=[Prepared(**row) for row in await ask("prepared", long_seconds)],
        lane_holders=[LaneHolder(**row) for row in await ask("lane")],
        slots=[Slot(**row) for row in await ask("slots")],
        tables=[Table(**row) for row in await ask("tables", tables)],
        indexes={row["name"]: row["valid"] for row in await ask("indexes", tables)},
        triggers={row["name"]: Trigger(**row) for row in await ask("triggers", tables)},
        foreign_triggers=[
            ForeignTrigger(**row)
            for row in await ask("foreign_triggers", list(_UPDATED), list(expected_objects("TRIGGER")))
        ],
        notifications=Notifications(**(await ask("notifications"))[0]),
        functions={
            row["name"]: Function(**row) for row in await ask("functions", list(expected_functions()))
        },
        lacks=[Lack(**row) for row in await ask("rights")],
        altered=await altered_migrations(pool),
    )


async def row_facts(pool: asyncpg.Pool, stream: str) -> RowFacts:
    """Query definitions and backlog of the tables; a lock on a table delays the answer."""
    ask = _questions(pool)
    [audit] = await ask("audit")
    sequences = ["sequence", "action_sequence"] if audit["may_read_ids"] else ["sequence"]
    constraints = await ask("constraints", list(TABLES))
    return RowFacts(
        constraints={(row["relation"], row["name"]): row["definition"] for row in constraints},
        outbox=OutboxFacts(**(await ask("outbox"))[0]),
        failing=[Failing(**row) for row in await ask("failing", NUMBERS, MARKED)],
        sequences=[SequenceFacts(**row) for name in sequences for row in await ask(name)],
        partitions=next((PartitionFacts(**row) for row in await ask("partitions")), None),
        inbox=[InboxWaiting(**row) for row in await ask("inbox")],
        missed=await PostgresStandings(pool=pool).missed(),
        acknowledged=await acknowledged(pool, stream),
        publications=await _blocking_publications(pool, ask),
        inbox_pruned_before=_latest(await ask("inbox_pruned")) if audit["may_read"] else None,
    )


async def table_locks(pool: asyncpg.Pool, *, longer_than_seconds: float) -> Sequence[TableLock]:
    """Query locks that block the worker from a table."""
    ask = _questions(pool)
    return [TableLock(**row) for row in await ask("locks", list(TABLES), longer_than_seconds)]


async def _blocking_publications(
    pool: asyncpg.Pool, ask: Callable[..., Awaitable[Sequence[dict[str, Any]]]]
) -> Sequence[Publication]:
    """Let PostgreSQL plan a change of each table, which checks the publications and changes nothing."""
    found: list[Publication] = []
    for table, column in _UPDATED.items():
        try:
            await fetch(pool, f"EXPLAIN UPDATE {table} SET {column} = NULL")  # noqa: S608
        except ReplicaIdentityError as error:
            rows = await ask("publications", table)
            found += [Publication(**row, problem=error.problem) for row in rows]
        except ContractError:  # a right is missing, which is another finding
            continue
    return found


def _latest(rows: Sequence[Mapping[str, Any]]) -> datetime | None:
    """Return the latest time that is one."""
    times = []
    for row in rows:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            times.append(datetime.fromisoformat(row["before"]).astimezone(UTC))
    return max(times, default=None)


def _questions(pool: asyncpg.Pool) -> Callable[..., Awaitable[Sequence[dict[str, Any]]]]:
    sql = load_queries("doctor")

    async def ask(name: str, *args: object) -> Sequence[dict[str, Any]]:
        return [dict(row) for row in await fetch(pool, sql[name], *args)]

    return ask


async def hears_itself(dsn: str, pool: asyncpg.Pool, *, schema: str) -> bool:
    """Return whether a notification sent by ``pool`` arrives on another connection with the same DSN."""
    settings = session_settings(schema, "sea_mq_worker doctor")
    async with opening(dsn) as address:
        connection = await asyncpg.connect(
            **address,
            timeout=_CONNECT_SECONDS,
            command_timeout=_CONNECT_SECONDS,
            server_settings=settings,
            target_session_attrs="read-write",
        )
    channel, heard = f"sea_mq_doctor.{uuid.uuid4().hex}", asyncio.Event()
    try:
        with translated():
            if await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid():
                return False
            await connection.add_listener(channel, lambda *_: heard.set())
            await fetch(pool, "SELECT pg_notify($1, '')", channel)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEAR_SECONDS):
                await heard.wait()
        return heard.is_set()
    finally:
        connection.terminate()
