"""Options that filter events or dead letters, for all commands that take them.

A field has the name of the filter's field that it sets. A new filter of events needs a field here and one of
``OutboxFilter``, and a condition in ``sql/queries/lists.sql``, ``replay.sql`` and ``testing/outbox.py``.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli.arguments import SinceOption, UntilOption, filled
from sea_mq_worker.domain.dead_letter_records import DeadLetterFilter
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.domain.events import EventState
from sea_mq_worker.domain.filters import OutboxFilter

NO_CHOICE = "choose events by IDs or by filters: `--help` lists them"
IdsArgument = Annotated[list[UUID] | None, typer.Argument(metavar="[ID]...", help="Event IDs.")]
ErrorOption = Annotated[str | None, typer.Option("--error", help="Part of the last error.", callback=filled)]


def _aggregate(text: str | None) -> str | None:
    if text is not None and not all(map(str.strip, text.split("/", 1))):
        raise typer.BadParameter("expected TYPE or TYPE/ID, neither of them blank")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOptions:
    event_type: Annotated[str | None, typer.Option("--type", help="Event type.")] = None
    ordering_key: Annotated[str | None, typer.Option("--key", help="Ordering key.")] = None
    aggregate: Annotated[
        str | None,
        typer.Option(metavar="TYPE[/ID]", help="Aggregate type, or one aggregate.", callback=_aggregate),
    ] = None
    correlation_id: Annotated[UUID | None, typer.Option("--correlation", help="Correlation ID.")] = None
    since: SinceOption = None
    until: UntilOption = None
    error_like: ErrorOption = None

    @property
    def given(self) -> bool:
        return self != EventOptions()

    def filter(self, states: tuple[EventState, ...], ids: Sequence[UUID] | None = None) -> OutboxFilter:
        """Return the filter; no ``ids``: any."""
        fields = asdict(self)
        aggregate_type, _, aggregate_id = (fields.pop("aggregate") or "").partition("/")
        return OutboxFilter(
            states=states,
            ids=tuple(ids) if ids else None,
            aggregate_type=aggregate_type or None,
            aggregate_id=aggregate_id or None,
            **fields,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterOptions:
    """Filters of dead letters, besides the reason."""

    event_type: Annotated[str | None, typer.Option("--type", help="Original event type.")] = None
    subject: Annotated[str | None, typer.Option(help="Exact original subject.")] = None
    consumer: Annotated[str | None, typer.Option(help="Durable consumer that received the message.")] = None
    since: SinceOption = None
    until: UntilOption = None
    error: Annotated[str | None, typer.Option(help="Part of the dead letter's detail.", callback=filled)] = (
        None
    )

    def filter(self, reason: Reason | None, *, after_seq: int = 0) -> DeadLetterFilter:
        """Return the filter."""
        return DeadLetterFilter(reason=reason, after_seq=after_seq, **asdict(self))
