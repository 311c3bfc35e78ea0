"""Gather the data that the checks judge, after the end of all work, without the proxies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.soak.chaos import Injected
from tests.soak.deployment import CONTEXT, Stage
from tests.soak.service import Heard
from tests.soak.transactions import Transaction, read
from tests.soak.watch import Sample, Watch
from tests.support.jetstream import Stored, consumer_info, stored_messages
from tests.support.kept_process import Life
from tests.support.servers import database_connection


@dataclass(kw_only=True)
class Evidence:
    """The records of producers, servers, handler and workers."""

    ledger: Mapping[str, Transaction]
    outbox: Mapping[str, Any]
    inbox: Mapping[str, Any]
    outbox_log: Sequence[Any]
    inbox_log: Sequence[Any]
    events: Sequence[Stored]
    upstream: Sequence[Stored]
    letters: Sequence[Stored]
    acknowledged: Mapping[int, str]
    consumer: Mapping[str, Any]
    heard: Sequence[Heard]
    effects: Mapping[str, int]
    lives: Sequence[Life]
    faults: Sequence[Injected]
    samples: Sequence[Sample]
    idle_in_transaction: Sequence[Mapping[str, Any]]
    session_samples: int
    logs: Mapping[str, str]
    rejects: frozenset[str] = field(default_factory=frozenset)
    never: frozenset[str] = field(default_factory=frozenset)


async def gather(
    stage: Stage,
    *,
    acknowledged: Mapping[int, str],
    faults: Sequence[Injected],
    watch: Watch,
) -> Evidence:
    """Gather all evidence."""
    target = stage.direct
    async with database_connection(stage.postgres.dsn) as connection:
        outbox = await connection.fetch("SELECT * FROM outbox_events ORDER BY seq")
        inbox = await connection.fetch("SELECT * FROM inbox_messages")
        outbox_log = await connection.fetch("SELECT * FROM soak.outbox_log ORDER BY n")
        inbox_log = await connection.fetch("SELECT * FROM soak.inbox_log ORDER BY n")
    return Evidence(
        ledger=read(stage.ledger),
        outbox={str(row["id"]): row for row in outbox},
        inbox={str(row["message_id"]): row for row in inbox},
        outbox_log=outbox_log,
        inbox_log=inbox_log,
        events=await stored_messages(stage.broker, f"{CONTEXT.upper()}_EVENTS"),
        upstream=await stored_messages(stage.broker, target.upstream_stream),
        letters=await stored_messages(stage.broker, f"{CONTEXT.upper()}_DLQ"),
        acknowledged=acknowledged,
        consumer=await consumer_info(stage.broker, target.upstream_stream, target.durable),
        heard=stage.service.heard,
        effects=stage.service.effects,
        lives=stage.lives(),
        faults=faults,
        samples=watch.samples,
        idle_in_transaction=watch.idle_in_transaction,
        session_samples=watch.session_samples,
        logs={life.title: life.log.read_text() for life in stage.lives()},
        rejects=frozenset(stage.service.rejects),
        never=frozenset(stage.service.never),
    )
