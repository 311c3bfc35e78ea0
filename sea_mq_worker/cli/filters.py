"""Filters of events and of dead letters: the options that several commands take, and what they make."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sea_mq_worker.domain.dead_letter_records import DeadLetterFilter
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.domain.events import EventState

if TYPE_CHECKING:
    from sea_mq_worker.domain.read_models import OutboxFilter

ErrorOption = Annotated[str | None, typer.Option("--error", help="Part of the last error.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="Event type.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Ordering key.")]
AggregateOption = Annotated[str | None, typer.Option("--aggregate", metavar="TYPE[/ID]", help="Aggregate.")]
CorrelationOption = Annotated[UUID | None, typer.Option("--correlation", help="Correlation id.")]
SubjectOption = Annotated[str | None, typer.Option("--subject", help="Original subject, exactly.")]
ConsumerOption = Annotated[str | None, typer.Option("--consumer", help="Received by this durable consumer.")]
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
) -> "OutboxFilter":
    """Return the filter of events that the options of a command describe."""
    from sea_mq_worker.domain.read_models import OutboxFilter

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


def dead_letter_filter(  # noqa: PLR0917 - in the order in which commands take them
    reason: Reason | None,
    subject: str | None,
    consumer: str | None,
    since: datetime | None,
    until: datetime | None,
    error: str | None,
    event_type: str | None = None,
    after_seq: int = 0,
) -> DeadLetterFilter:
    """Make a filter of dead letters of what several commands take."""
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
