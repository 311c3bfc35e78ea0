"""Doctor: find the problems of a deployment, with the consequence and the fix of each.

Doctor reads each dependency once, independently of the others, and changes nothing. Then it judges each
system by itself, and PostgreSQL and NATS together.
"""

from sea_mq_worker.doctor.broker import (
    clock_findings,
    consumer_findings,
    pair_findings,
    read_broker,
    stream_findings,
    topology_findings,
)
from sea_mq_worker.doctor.database import (
    object_findings,
    read_database,
    row_findings,
    server_findings,
    session_findings,
    table_findings,
)
from sea_mq_worker.doctor.findings import Examination, Finding, Severity
from sea_mq_worker.doctor.services import handler_findings, read_readiness, worker_findings
from sea_mq_worker.settings import Settings

__all__ = ["Examination", "Finding", "Severity", "examine"]


async def examine(settings: Settings) -> Examination:
    """Check everything once."""
    found: list[Finding] = []
    facts = await read_database(settings, found)
    seen = await read_broker(settings, facts, found)
    parts: list[tuple[str, bool]] = []
    if "identity" in facts:
        found += [*server_findings(facts, settings), *session_findings(facts)]
        found += [*table_findings(facts), *object_findings(facts)]
        version = facts["settings"]["server_version"]["setting"].partition(" ")[0]
        parts.append((f"PostgreSQL {version} (schema {facts['identity']['schema']})", True))
        if "outbox" in facts:
            found += row_findings(facts, settings)
            if any(row["last"] is None for row in facts["sequence"]):
                parts.append(("the sequence of outbox_events (grant SELECT on it)", False))
        else:
            parts.append(("the backlog in its tables", False))
    else:
        parts.append(("PostgreSQL", False))
    if seen:
        found += [
            *topology_findings(seen, settings),
            *stream_findings(seen, settings),
            *consumer_findings(seen, settings),
        ]
        found += pair_findings(facts, seen)
        held = f"streams: {len(seen.streams)}, consumers: {len(seen.consumers)}"
        parts += [(f"NATS {seen.version} ({held})", True), *((where, False) for where in sorted(seen.silent))]
    else:
        parts.append(("NATS", False))
    found += clock_findings(facts.get("clock_offset_seconds"), seen, settings)
    if settings.consumers and settings.handler_url:
        found += [finding async for finding in handler_findings(settings)]
        parts.append(("the handler", True))
    parts.append(("the settings", True))
    if settings.admin_port:
        workers = await read_readiness(settings)
        for where, answer in workers.items():
            found += worker_findings(where, answer)
        at = f"{settings.admin_host}:{settings.admin_port}"
        parts += [(f"the {where}", True) for where in workers] or [
            (f"a worker (none answers at {at})", False)
        ]
    order = list(Severity)
    return Examination(
        findings=sorted(dict.fromkeys(found), key=lambda finding: order.index(finding.severity)),
        checked=[name for name, is_checked in parts if is_checked],
        not_checked=[name for name, is_checked in parts if not is_checked],
    )
