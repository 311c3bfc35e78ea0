"""Everything the audit judges, gathered once all is quiet, past every proxy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from tests.soak.faults import Injected
from tests.soak.fleet import Life
from tests.soak.ledger import Transaction, read
from tests.soak.service import Heard
from tests.soak.stage import CONTEXT, Stage
from tests.soak.streams import Message, stored
from tests.soak.watch import Sample, Watch
from tests.support.jetstream import consumer_info


@dataclass(kw_only=True)
class Evidence:
    """What was written by whom, from every side."""

    ledger: Mapping[str, Transaction]
    outbox: Mapping[str, Any]
    inbox: Mapping[str, Any]
    outbox_log: Sequence[Any]
    inbox_log: Sequence[Any]
    events: Sequence[Message]
    upstream: Sequence[Message]
    letters: Sequence[Message]
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
    drained: bool
    left: str = ""
    rejects: frozenset[str] = field(default_factory=frozenset)
    never: frozenset[str] = field(default_factory=frozenset)


async def gather(
    stage: Stage,
    *,
    ledger: Path,
    acknowledged: Mapping[int, str],
    faults: Sequence[Injected],
    watch: Watch,
    left: str,
) -> Evidence:
    """Read all of it."""
    target = stage.direct
    connection = await asyncpg.connect(stage.postgres.dsn)
    try:
        outbox = await connection.fetch("SELECT * FROM outbox_events ORDER BY seq")
        inbox = await connection.fetch("SELECT * FROM inbox_messages")
        outbox_log = await connection.fetch("SELECT * FROM soak.outbox_log ORDER BY n")
        inbox_log = await connection.fetch("SELECT * FROM soak.inbox_log ORDER BY n")
    finally:
        await connection.close()
    lives = [life for member in stage.members.values() for life in member.lives]
    return Evidence(
        ledger=read(ledger),
        outbox={str(row["id"]): row for row in outbox},
        inbox={str(row["message_id"]): row for row in inbox},
        outbox_log=outbox_log,
        inbox_log=inbox_log,
        events=await stored(stage.broker, f"{CONTEXT.upper()}_EVENTS"),
        upstream=await stored(stage.broker, target.upstream_stream),
        letters=await stored(stage.broker, f"{CONTEXT.upper()}_DLQ"),
        acknowledged=acknowledged,
        consumer=await consumer_info(stage.broker, target.upstream_stream, target.durable),
        heard=stage.service.heard,
        effects=stage.service.effects,
        lives=lives,
        faults=faults,
        samples=watch.samples,
        idle_in_transaction=watch.idle_in_transaction,
        session_samples=watch.session_samples,
        logs={f"{life.worker}-{life.number}": life.log.read_text() for life in lives},
        drained=not left,
        left=left,
        rejects=frozenset(stage.service.rejects),
        never=frozenset(stage.service.never),
    )
