"""Doctor: find the problems of a deployment, with the consequence and the fix of each.

Doctor reads each dependency once, independently of the others, and changes nothing. Then it judges each
system by itself, and PostgreSQL and NATS together.
"""

from collections.abc import Iterator, Sequence

from sea_mq_worker.doctor.broker import (
    BrokerFacts,
    BrokerKind,
    PairKind,
    broker_facts,
    consumer_findings,
    stream_findings,
)
from sea_mq_worker.doctor.cross_checks import (
    backlog_findings,
    clock_findings,
    fit_findings,
    lost_findings,
    pair_findings,
)
from sea_mq_worker.doctor.database import (
    DatabaseKind,
    constraint_findings,
    database_findings,
    publication_findings,
    read_database,
)
from sea_mq_worker.doctor.findings import Examination, Finding, Kind, Severity
from sea_mq_worker.doctor.others import (
    ExposureKind,
    HandlerKind,
    WorkerKind,
    WorkerReadiness,
    exposure_findings,
    handler_findings,
    read_readiness,
    worker_findings,
)
from sea_mq_worker.doctor.postgres_facts import DatabaseFacts, RowFacts
from sea_mq_worker.errors import ContractError, UnavailableError
from sea_mq_worker.operators.streams import broker
from sea_mq_worker.settings import Settings

__all__ = ["KINDS", "Examination", "Finding", "Severity", "examine"]

KINDS: Sequence[Kind] = (*DatabaseKind, *BrokerKind, *HandlerKind, *PairKind, *ExposureKind, *WorkerKind)
"""All kinds of findings."""


async def examine(settings: Settings) -> Examination:
    """Check everything once."""
    found: list[Finding] = []
    database, rows = await read_database(settings, found)
    seen = await _broker(settings, rows, found)
    if database:
        found += database_findings(database, settings)
    if database and rows:
        found += [*constraint_findings(database, rows), *publication_findings(database, rows)]
        found += backlog_findings(database, rows, settings)
    if seen:
        found += [*stream_findings(seen, settings), *consumer_findings(seen, settings)]
        found += fit_findings(seen, settings)
    if database and seen:
        found += clock_findings(database, seen, settings)
    if rows and seen:
        found += pair_findings(rows, seen, settings)
    if settings.consumers:
        found += [finding async for finding in handler_findings(settings)]
    found += exposure_findings(settings)
    workers = await read_readiness(settings) if settings.admin_port else ()
    for worker in workers:
        found += worker_findings(worker)
    parts = list(_parts(database, rows, seen, workers, settings))
    return Examination(
        findings=sorted(dict.fromkeys(found), key=lambda finding: list(Severity).index(finding.severity)),
        checked=[name for name, is_checked in parts if is_checked],
        not_checked=[name for name, is_checked in parts if not is_checked],
    )


def _parts(
    database: DatabaseFacts | None,
    rows: RowFacts | None,
    broker: BrokerFacts | None,
    workers: Sequence[WorkerReadiness],
    s: Settings,
) -> Iterator[tuple[str, bool]]:
    """Name each part, and whether doctor could check it."""
    if database:
        version = database.settings["server_version"].setting.partition(" ")[0]
        yield f"PostgreSQL {version} (schema {database.schema})", True
        if rows is None:
            yield "the backlog in its tables", False
        for sequence in rows.sequences if rows else ():
            if sequence.last is None:
                yield f"the sequence of {sequence.relation} (grant SELECT on it)", False
    else:
        yield "PostgreSQL", False
    if broker:
        held = f"streams: {len(broker.streams)}, consumers: {len(broker.consumers)}"
        yield f"NATS {broker.version} ({held})", True
        yield from ((where, False) for where in sorted(broker.silent))
    else:
        yield "NATS", False
    if s.consumers and s.handler_url:
        yield "the handler", True
    yield "the settings", True
    yield from ((f"the {worker.where}", True) for worker in workers)
    if s.admin_port and not workers:
        yield f"a worker (none answers at {s.admin_host}:{s.admin_port})", False


async def _broker(s: Settings, rows: RowFacts | None, found: list[Finding]) -> BrokerFacts | None:
    """Return the facts; append findings about NATS itself to ``found``."""
    try:
        async with broker(s) as connection:
            seen = await broker_facts(connection, s, found)
            if rows and s.stream in seen.streams:
                found += await lost_findings(connection, rows.acknowledged, s.stream)
            return seen
    except UnavailableError as error:
        found.append(BrokerKind.BROKER_UNREACHABLE.finding("NATS", str(error)))
    except ContractError as error:
        found.append(BrokerKind.BROKER_REFUSES.finding("NATS", str(error)))
    return None
