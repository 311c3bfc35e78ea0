"""Doctor: find the problems of a deployment, with the consequence and the fix of each.

Doctor reads each dependency once, independently of the others, and changes nothing. Then it judges each
system by itself, and PostgreSQL and NATS together.
"""

from sea_mq_worker.doctor import broker, database, services
from sea_mq_worker.doctor.findings import Examination, Finding, Severity
from sea_mq_worker.settings import Settings

__all__ = ["Examination", "Finding", "Severity", "examine"]


async def examine(s: Settings) -> Examination:
    """Check everything once."""
    found: list[Finding] = []
    checked: list[str] = []
    not_checked: list[str] = []
    facts = await database.read_database(s, found)
    seen = await broker.read_broker(s, facts, found)
    if "identity" in facts:
        found += database.database_findings(facts, s)
        version = facts["settings"]["server_version"]["setting"].partition(" ")[0]
        checked.append(f"PostgreSQL {version} (schema {facts['identity']['schema']})")
        if database.only_reads(facts):
            not_checked.append("the rights of the worker (this login may only read: use the worker's)")
        if "outbox" not in facts:
            not_checked.append("the backlog in its tables")
        elif any(row["last"] is None for row in facts["sequence"]):
            not_checked.append("the sequence of outbox_events (grant SELECT on it)")
    else:
        not_checked.append("PostgreSQL")
    if seen:
        found += broker.broker_findings(seen, s)
        held = f"streams: {len(seen.streams)}, consumers: {len(seen.consumers)}"
        checked.append(f"NATS {seen.version} ({held})")
        not_checked += sorted(seen.silent)
    else:
        not_checked.append("NATS")
    found += broker.missed_findings(facts, seen)
    found += broker.clock_findings(facts.get("clock_offset_seconds"), seen, s)
    if s.consumers and s.handler_url:
        found += [finding async for finding in services.handler_findings(s)]
        checked.append("the handler")
    checked.append("the settings")
    if s.admin_port:
        workers = await services.read_readiness(s)
        for where, answer in workers.items():
            found += services.worker_findings(where, answer)
            checked.append(f"the {where}")
        if not workers:
            not_checked.append(f"a worker (none answers at {s.admin_host}:{s.admin_port})")
    order = list(Severity)
    return Examination(
        findings=sorted(dict.fromkeys(found), key=lambda finding: order.index(finding.severity)),
        checked=checked,
        not_checked=not_checked,
    )
