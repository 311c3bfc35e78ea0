"""The output of each command with ``--json``; docs/reference/cli.schema.json is generated from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from sea_mq_worker.cli.database import Depths
from sea_mq_worker.cli.dlq import Counted
from sea_mq_worker.cli.inbox import Closed, Resumed
from sea_mq_worker.cli.outbox import DiscardOutput, MarkedDead, Replayed
from sea_mq_worker.cli.prune import Pruned, WouldPrune
from sea_mq_worker.cli.support import Summary
from sea_mq_worker.doctor.findings import Finding
from sea_mq_worker.operators.dead_letters import DeadLetterOutcome
from sea_mq_worker.operators.definitions import Difference
from sea_mq_worker.operators.lookup_report import LookupReport
from sea_mq_worker.operators.records import (
    DeadLetterSummary,
    InboxRecord,
    OperatorAction,
    OutboxDetail,
    OutboxSummary,
)
from sea_mq_worker.operators.streams import Applied
from sea_mq_worker.postgres.migrations import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDeadLetter(DeadLetterSummary):
    """A dead letter with its content; ``payload`` is base64 if it is not UTF-8."""

    headers: Mapping[str, str]
    payload: str
    payload_encoding: Literal["utf-8", "base64"]


OUTPUTS: Mapping[str, object] = MappingProxyType(
    {
        "where": LookupReport,
        "depth": Depths,
        "doctor": list[Finding],
        "streams check": list[Difference],
        "streams apply": Applied,
        "outbox list": list[OutboxSummary],
        "outbox summary": Summary,
        "outbox show": OutboxDetail,
        "outbox replay": Replayed,
        "outbox mark-dead": MarkedDead,
        "outbox discard": DiscardOutput,
        "inbox list": list[InboxRecord],
        "inbox summary": Summary,
        "inbox show": InboxRecord,
        "inbox close": Closed,
        "inbox resume": Resumed,
        "dlq list": list[DeadLetterSummary],
        "dlq summary": Summary,
        "dlq show": ShownDeadLetter,
        "dlq redrive": list[DeadLetterOutcome] | Counted,
        "dlq purge": list[DeadLetterOutcome] | Counted,
        "partitions list": list[Partition],
        "prune": Pruned | WouldPrune,
        "audit": list[OperatorAction],
    }
)
"""By command."""
