"""Doctor: what keeps this worker from running well, why it matters, and what mends it.

Each dependency is looked at once and apart from the others, changing nothing; then what was seen is judged,
each system by itself and the pair of them together.
"""

from collections.abc import Sequence

import asyncpg

from sea_mq_worker.adapters.postgres.checkup import DatabaseFacts, database_facts, hears_itself
from sea_mq_worker.adapters.postgres.errors import POOLER
from sea_mq_worker.adapters.postgres.migrations import check_version
from sea_mq_worker.bootstrap.connections.postgres import open_pool
from sea_mq_worker.bootstrap.doctor.backlog import backlog_findings
from sea_mq_worker.bootstrap.doctor.broker import BrokerFacts, broker_facts
from sea_mq_worker.bootstrap.doctor.broker_kinds import BrokerKind, PairKind
from sea_mq_worker.bootstrap.doctor.consumer import consumer_findings
from sea_mq_worker.bootstrap.doctor.database import database_findings, long_seconds
from sea_mq_worker.bootstrap.doctor.database_kinds import DatabaseKind
from sea_mq_worker.bootstrap.doctor.finding import Finding, Severity
from sea_mq_worker.bootstrap.doctor.handler import HandlerKind, handler_findings
from sea_mq_worker.bootstrap.doctor.kinds import MIGRATE, Kind
from sea_mq_worker.bootstrap.doctor.pair import fit_findings, pair_findings
from sea_mq_worker.bootstrap.doctor.stream import stream_findings
from sea_mq_worker.bootstrap.operator.broker import broker
from sea_mq_worker.domain.errors import ContractError, UnavailableError
from sea_mq_worker.settings import Settings

__all__ = ["KINDS", "Finding", "Severity", "examine"]

KINDS: Sequence[Kind] = (*DatabaseKind, *BrokerKind, *HandlerKind, *PairKind)
"""Every kind of finding there is."""

_POSTGRES = "PostgreSQL"


async def examine(settings: Settings) -> Sequence[Finding]:
    """Look at everything once; the worst first."""
    found: list[Finding] = []
    database = await _database(settings, found)
    seen = await _broker(settings, found)
    if database:
        found += [*database_findings(database, settings), *backlog_findings(database, settings)]
    if seen:
        found += [*stream_findings(seen, settings), *consumer_findings(seen, settings)]
        found += fit_findings(seen, settings)
    if database and seen:
        found += pair_findings(database, seen, settings)
    if settings.consumers:
        found += [finding async for finding in handler_findings(settings)]
    return sorted(dict.fromkeys(found), key=lambda finding: list(Severity).index(finding.severity))


async def _database(s: Settings, found: list[Finding]) -> DatabaseFacts | None:
    """Return the facts; what keeps them from being asked is ``found``."""
    try:
        pool = await open_pool(s, purpose="doctor")
    except UnavailableError as error:
        found.append(DatabaseKind.DATABASE_UNREACHABLE.found(_POSTGRES, str(error)))
        return None
    except ContractError as error:
        kind = DatabaseKind.POOLER_UNDECLARED if POOLER in str(error) else DatabaseKind.DATABASE_REFUSES
        found.append(kind.found(_POSTGRES, str(error)))
        return None
    try:
        return await _tables(s, pool, found)
    except UnavailableError as error:
        found.append(DatabaseKind.DATABASE_UNREACHABLE.found(_POSTGRES, str(error)))
    except ContractError as error:
        found.append(DatabaseKind.DATABASE_REFUSES.found(_POSTGRES, str(error)))
    finally:
        await pool.close()
    return None


async def _tables(s: Settings, pool: asyncpg.Pool, found: list[Finding]) -> DatabaseFacts | None:
    try:
        await check_version(pool)
    except ContractError as error:
        where = f"schema {s.database_schema}"
        found.append(DatabaseKind.SCHEMA_VERSION.found(where, str(error), command=MIGRATE))
        return None
    if s.outbox_enabled and s.outbox_notify and not s.database_pooler:
        dsn = s.database_url.get_secret_value()
        if not await hears_itself(dsn, pool, schema=s.database_schema):
            found.append(DatabaseKind.NOTIFY_LOST.found(_POSTGRES, "LISTEN and NOTIFY do not meet"))
    return await database_facts(pool, long_seconds=long_seconds(s))


async def _broker(s: Settings, found: list[Finding]) -> BrokerFacts | None:
    """Return the facts; what keeps them from being asked is ``found``."""
    try:
        async with broker(s) as connection:
            return await broker_facts(connection, s, found)
    except UnavailableError as error:
        found.append(BrokerKind.BROKER_UNREACHABLE.found("NATS", str(error)))
    except ContractError as error:
        found.append(BrokerKind.BROKER_REFUSES.found("NATS", str(error)))
    return None
