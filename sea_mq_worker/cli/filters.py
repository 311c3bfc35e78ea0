"""Filters of events and of dead letters: shared options, and the filters that they make."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer

from sea_mq_worker.domain.dead_letter_records import DeadLetterFilter
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.read_models import OutboxFilter

ErrorOption = Annotated[str | None, typer.Option("--error", help="Part of the last error.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="Event type.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Ordering key.")]
AggregateOption = Annotated[
    str | None, typer.Option("--aggregate", metavar="TYPE[/ID]", help="Aggregate type, or one aggregate.")
]
CorrelationOption = Annotated[UUID | None, typer.Option("--correlation", help="Correlation ID.")]
SubjectOption = Annotated[str | None, typer.Option("--subject", help="Exact original subject.")]
ConsumerOption = Annotated[
    str | None, typer.Option("--consumer", help="Durable consumer that received the message.")
]
OriginalTypeOption = Annotated[str | None, typer.Option("--type", help="Original event type.")]
DetailOption = Annotated[str | None, typer.Option("--error", help="Part of the detail.")]


def event_filter(
    states: tuple[EventState, ...],
    *,
    type_: str | None,
    key: str | None,
    aggregate: str | None,
    correlation: UUID | None,
    since: datetime | None,
    until: datetime | None,
    error: str | None,
    ids: Sequence[UUID] | None = None,
) -> OutboxFilter:
    """Build a filter of events from the options that several commands take."""
    aggregate_type, _, aggregate_id = (aggregate or "").partition("/")
    return OutboxFilter(
        states=states,
        ids=tuple(ids) if ids else None,
        event_type=type_,
        ordering_key=key,
        aggregate_type=aggregate_type or None,
        aggregate_id=aggregate_id or None,
        correlation_id=correlation,
        since=since,
        until=until,
        error_like=error,
    )


def dead_letter_filter(
    *,
    reason: Reason | None = None,
    event_type: str | None = None,
    subject: str | None = None,
    consumer: str | None = None,
    since: datetime | None,
    until: datetime | None,
    error: str | None = None,
    after_seq: int = 0,
) -> DeadLetterFilter:
    """Build a filter of dead letters from the options that several commands take."""
    return DeadLetterFilter(
        reason=reason or "",
        subject=subject or "",
        event_type=event_type or "",
        consumer=consumer or "",
        since=since,
        until=until,
        error=error or "",
        after_seq=after_seq,
    )
