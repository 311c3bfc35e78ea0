"""The output of each command with ``--json``; docs/reference/cli.schema.json is generated from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Literal

from sea_mq_worker.cli.database import Depths
from sea_mq_worker.doctor.findings import Finding
from sea_mq_worker.operators.dead_letters import DeadLetterSummary
from sea_mq_worker.operators.definitions import Applied, Difference
from sea_mq_worker.operators.lookup import LookupReport
from sea_mq_worker.operators.prune import Prunable, Referenced
from sea_mq_worker.operators.records import (
    Group,
    InboxRecord,
    OperatorAction,
    OutboxDetail,
    OutboxSummary,
    Side,
)
from sea_mq_worker.operators.redrive import DeadLetterOutcome
from sea_mq_worker.operators.replay import ReplayResult
from sea_mq_worker.postgres.partitions import DroppedPartition, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Output; ``read``: rows that were read, oldest first, at most ``read_max``."""

    read: int
    read_max: int
    groups: Sequence[Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(ReplayResult):
    """Output of `replay`.

    Attributes:
        window_seconds: the stream's deduplication window; null: NATS did not answer.
        last_due_at: when the last event goes out; null: at once, or unknown as the window.
    """

    dry_run: bool
    window_seconds: float | None
    last_due_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedDead:
    """Output of `mark-dead`: IDs now DEAD, and IDs left because they were not PENDING."""

    marked_dead: Sequence[str]
    left: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardOutput:
    """Output: the number of matching events, and the IDs of the deleted ones."""

    matched: int
    discarded: Sequence[str]
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """Output of `close`: IDs now closed, and IDs left because they were not WAITING."""

    closed: Sequence[str]
    left: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Output of `resume`: ID of the audit record, and the event type (empty: all)."""

    action: int
    event_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDeadLetter(DeadLetterSummary):
    """A dead letter with its content; ``payload`` is base64 if it is not UTF-8."""

    headers: Mapping[str, str]
    payload: str
    payload_encoding: Literal["utf-8", "base64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Output of a dry run."""

    matched: int
    dry_run: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Output: deleted rows of each table, the partitions dropped among them, and rows that are referenced."""

    before: datetime
    deleted: Mapping[Side, int]
    dropped: Sequence[DroppedPartition]
    stay: Mapping[Side, Referenced]


@dataclass(frozen=True, slots=True, kw_only=True)
class WouldPrune:
    """Output of a dry run."""

    before: datetime
    would_delete: Mapping[Side, Prunable]


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
