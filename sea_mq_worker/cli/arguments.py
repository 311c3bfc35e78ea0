"""Arguments and options that several operators' commands take."""

import getpass
import os
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

_AGE = re.compile(r"(\d{1,6})([smhd])")
CONFIRM_ABOVE = 10
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
YesOption = Annotated[bool, typer.Option("--yes", help=f"Do not ask, with more than {CONFIRM_ABOVE}.")]
