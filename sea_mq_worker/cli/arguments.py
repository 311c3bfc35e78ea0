"""Arguments and options that several operators' commands take."""

import getpass
import os
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import typer

from sea_mq_worker.adapters.postgres.records import OutboxFilter
from sea_mq_worker.domain.events import EventState

_AGE = re.compile(r"(\d{1,6})([smhd])")
FEW = 10
"""So many are changed without a question, and told one by one."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str) -> datetime:
    """Read a time: ISO 8601, UTC unless it names an offset, or an age as 90s, 15m, 12h or 30d.

    Raises:
        typer.BadParameter: it is neither.
    """
    if age := _AGE.fullmatch(text):
        return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither an ISO 8601 time nor an age such as 15m, 12h or 30d"
        ) from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def system_user() -> str:
    """Name who runs the command; in a container the user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _not_blank(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("must not be blank, it is kept for the audit")
    return text


def event_filter(  # noqa: PLR0917 - in the order in which commands take them
    states: tuple[EventState, ...],
    type_: str | None,
    key: str | None,
    aggregate: str | None,
    correlation: UUID | None,
    since: datetime | None,
    until: datetime | None,
    error: str | None,
) -> OutboxFilter:
    """Make a filter of what several commands take."""
    aggregate_type, _, aggregate_id = (aggregate or "").partition("/")
    return OutboxFilter(
        states=states,
        event_type=type_,
        ordering_key=key,
        aggregate_type=aggregate_type or None,
        aggregate_id=aggregate_id or None,
        correlation_id=correlation,
        since=since,
        until=until,
        error_like=error,
    )


ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept for the audit.", callback=_not_blank)]
ActorOption = Annotated[
    str,
    typer.Option(
        "--actor",
        help="Who; kept for the audit.",
        default_factory=system_user,
        show_default="the OS user",
        callback=_not_blank,
    ),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")]
SinceOption = Annotated[
    datetime | None, typer.Option("--since", parser=moment, metavar="TIME", help="At this time or later.")
]
UntilOption = Annotated[
    datetime | None, typer.Option("--until", parser=moment, metavar="TIME", help="Before this time.")
]
ErrorOption = Annotated[str | None, typer.Option("--error", help="Part of the last error.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="Event type.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Ordering key.")]
AggregateOption = Annotated[str | None, typer.Option("--aggregate", metavar="TYPE[/ID]", help="Aggregate.")]
CorrelationOption = Annotated[UUID | None, typer.Option("--correlation", help="Correlation id.")]
YesOption = Annotated[bool, typer.Option("--yes", help=f"Do not ask, with more than {FEW}.")]
