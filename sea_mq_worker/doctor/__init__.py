"""Doctor: find the problems of a deployment, with the consequence and the fix of each.

Doctor reads each dependency once, independently of the others, and changes nothing. Then it judges each
system by itself, and PostgreSQL and NATS together.
"""

from sea_mq_worker.doctor import broker, database, services
from sea_mq_worker.doctor.findings import Examination, Finding, Severity
from sea_mq_worker.settings import Settings

__all__ = ["Examination", "Finding", "Severity", "examine"]


async def examine(settings: Settings) -> Examination:
    """Check everything once."""
    found: list[Finding] = []
    facts = await database.read_database(settings, found)
    seen = await broker.read_broker(settings, facts, found)
    parts: list[tuple[str, bool]] = []
    if "identity" in facts:
        found += [*database.server_findings(facts, settings), *database.session_findings(facts)]
        found += [*database.table_findings(facts), *database.object_findings(facts)]
        version = facts["settings"]["server_version"]["setting"].partition(" ")[0]
        parts.append((f"PostgreSQL {version} (schema {facts['identity']['schema']})", True))
        if "outbox" in facts:
            found += [*database.row_findings(facts, settings), *broker.missed_findings(facts)]
            if any(row["last"] is None for row in facts["sequence"]):
                parts.append(("the sequence of outbox_events (grant SELECT on it)", False))
        else:
            parts.append(("the backlog in its tables", False))
    else:
        parts.append(("PostgreSQL", False))
    if seen:
        found += [
            *broker.topology_findings(seen, settings),
            *broker.stream_findings(seen, settings),
            *broker.consumer_findings(seen, settings),
        ]
        found += broker.lost_findings(facts, seen)
        held = f"streams: {len(seen.streams)}, consumers: {len(seen.consumers)}"
        parts += [(f"NATS {seen.version} ({held})", True), *((where, False) for where in sorted(seen.silent))]
    else:
        parts.append(("NATS", False))
    found += broker.clock_findings(facts.get("clock_offset_seconds"), seen, settings)
    if settings.consumers and settings.handler_url:
        found += [finding async for finding in services.handler_findings(settings)]
        parts.append(("the handler", True))
    parts.append(("the settings", True))
    if settings.admin_port:
        workers = await services.read_readiness(settings)
        for where, answer in workers.items():
            found += services.worker_findings(where, answer)
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
