"""Bugs to plant in the statements of ``sql/queries``; each replaces a piece of one statement."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, ModuleType
from unittest import mock

from sea_mq_worker.adapters.postgres import inbox, outbox, queries
from sea_mq_worker.adapters.postgres.queries import NamedQuery
from tests.simulation.bugs import Plant
from tests.simulation.plan import Message, Plan, Row, SeededDice, Transaction, Trouble, draw_plan

SQL_BUGS: dict[str, Plant] = {}

FOUND_BY: dict[str, tuple[Plan, int]] = {}
"""A plan and a seed that are known to bring each of them out."""


def _event(key: str | None, *troubles: Trouble) -> Plan:
    return Plan(workers=1, transactions=(Transaction(0.5, 0.0, True, (Row(key),)),), troubles=troubles)


def _messages(answers: tuple[str, ...], *troubles: Trouble, count: int = 2) -> Plan:
    sent = tuple(Message(at=0.5, answers=answers) for _ in range(count))
    return Plan(workers=2, messages=sent, troubles=troubles)


_LATE = _event(None, Trouble("answers lost", 0.5, 10.0), Trouble("store is late", 0.5, 10.0))
_OUTAGE = (*[Trouble("answers lost", 0.0, 3.0)] * 2, Trouble("broker down", 2.0, 45.0))
_FROZEN = Trouble("frozen", 1.0, 8.0)


def _bug(
    owner: ModuleType, statement: str, right: str, wrong: str, *, called: str, by: tuple[Plan, int] | int
) -> None:
    """Register a replacement, and what finds it; ``by`` a number: what this seed draws."""

    def planted(sql: str) -> str:
        if right not in sql:
            raise LookupError(f"{statement} does not hold {right}")
        return sql.replace(right, wrong)

    def load_named(file: str, *names: str) -> Mapping[str, NamedQuery]:
        found = queries.load_named(file, *names)
        query = replace(found[statement], sql=planted(found[statement].sql))
        return MappingProxyType({**found, statement: query})

    def load_queries(file: str, *names: str) -> Mapping[str, str]:
        return {name: query.sql for name, query in load_named(file, *names).items()}

    loader = load_named if hasattr(owner, "load_named") else load_queries
    SQL_BUGS[called] = lambda: mock.patch.object(owner, loader.__name__, loader)
    FOUND_BY[called] = (draw_plan(SeededDice(by)), by) if isinstance(by, int) else by


_CLAIM_FENCE = "o.claimed_by = $1::text AND o.claimed_at = $2::timestamptz"
_NO_CLAIM_FENCE = "$1::text IS NOT NULL AND $2::timestamptz IS NOT NULL"
_CLAIMS_FENCE = "o.claimed_by = ($1::text[])[v.claim] AND o.claimed_at = ($2::timestamptz[])[v.claim]"
_NO_CLAIMS_FENCE = "$1::text[] IS NOT NULL AND $2::timestamptz[] IS NOT NULL"
_TOKEN_FENCE = " AND i.locked_by = held.token"

_bug(
    outbox,
    "mark_published",
    _CLAIMS_FENCE,
    _NO_CLAIMS_FENCE,
    called="a publication is settled without its claim",
    by=(_LATE, 45),
)
_bug(
    outbox,
    "settle",
    _CLAIM_FENCE,
    _NO_CLAIM_FENCE,
    called="a failure is settled without its claim",
    by=(_LATE, 14),
)
_bug(
    outbox,
    "mark_published",
    "stream_seq = v.stream_seq",
    "stream_seq = v.stream_seq + 1",
    called="the wrong sequence is written down",
    by=(_event(None), 0),
)
_bug(outbox, "reap", "> $1::float8", "> $1::float8 / 4", called="a lease is reaped before its end", by=8)
_bug(
    outbox,
    "reap_ordered",
    "> $1::float8",
    "> $1::float8 / 4",
    called="a lease of a key is reaped before its end",
    by=8,
)
_bug(
    outbox,
    "reap",
    "o.publish_error END,\n           available_at",
    "o.publish_error END, publish_attempts = o.publish_attempts + 1,\n           available_at",
    called="a reap counts an attempt",
    by=(_event(None, Trouble("killed", 0.6, 0.3)), 0),
)
for lane, key, seed in (("claim", None, 3), ("claim_ordered", "a", 2)):
    _bug(
        outbox,
        lane,
        "publish_attempts = o.publish_attempts + 1",
        "publish_attempts = o.publish_attempts + 1 + (o.failures > 0)::int",
        called=f"attempts are counted twice after a failure in {lane}",
        by=2,
    )
    _bug(
        outbox,
        lane,
        "coalesce(o.first_attempt_at, statement_timestamp())",
        "statement_timestamp()",
        called=f"the first attempt is forgotten in {lane}",
        by=(_event(key, *_OUTAGE), seed),
    )
_bug(
    outbox,
    "claim_ordered",
    "WHERE prefix.nth = prefix.got",
    "WHERE prefix.nth >= prefix.got",
    called="a claim goes on behind a locked head",
    by=46,
)
_bug(
    outbox,
    "claim_ordered",
    "WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.ordering_key = keys.key",
    "WHERE o.state = 'PENDING' AND o.ordering_key IS NOT NULL AND o.ordering_key = keys.key",
    called="a claim ignores the undelivered head of a key",
    by=3,
)
_bug(
    outbox,
    "claim_ordered",
    "AND dead.ordering_key = keys.key AND dead.seq < o.seq",
    "AND dead.ordering_key = keys.key AND dead.seq > o.seq",
    called="a dead event does not hold its key",
    by=19,
)
_bug(
    inbox,
    "insert",
    "i.processed_at IS NULL AND i.dead_lettered_at IS NULL",
    "true",
    called="a settled message is leased again",
    by=10,
)
_bug(
    inbox,
    "insert",
    "i.locked_until <= clock_timestamp()",
    "i.locked_until <= clock_timestamp() + interval '5 seconds'",
    called="a lease is taken before its end",
    by=25,
)
_bug(
    inbox,
    "insert",
    "(i.locked_by IS DISTINCT FROM excluded.locked_by)::int",
    "1",
    called="an insert repeated under its token counts twice",
    by=9,
)
_bug(
    inbox,
    "insert",
    "AND (i.content_hash IS NULL OR i.content_hash = excluded.content_hash)",
    "",
    called="a message is leased whatever its content",
    by=6,
)
for ending, plan, seed in (
    ("mark_processed", _messages(("slow", "slow"), _FROZEN, count=1), 4),
    ("extend", _messages(("slow", "slow"), _FROZEN, count=1), 4),
    ("record_error", _messages(("500", "slow"), *[Trouble("store is late", 0.3, 6.0, w) for w in (0, 1)]), 3),
    ("mark_dead_lettered", _messages(("422", "slow"), _FROZEN), 18),
):
    _bug(inbox, ending, _TOKEN_FENCE, "", called=f"{ending} without the lease", by=(plan, seed))
