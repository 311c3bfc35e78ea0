"""Arguments and options that several operators' commands take."""

import getpass
import os
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

_AGE = re.compile(r"(\d{1,6})([smhd])")
CONFIRM_ABOVE = 10
"""Cap on items that a command changes without a confirmation and reports one by one."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_TIME = "ISO 8601 (UTC), or an age such as 15m, 12h or 30d"


def moment(text: str) -> datetime:
    """Parse a time: ISO 8601, UTC unless it names an offset, or an age such as 90s, 15m, 12h or 30d.

    Raises:
        typer.BadParameter: ``text`` is neither, or the time is outside the years 1 to 9999 in UTC.
    """
    try:
        if age := _AGE.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
        given = datetime.fromisoformat(text)
        return (given if given.tzinfo else given.replace(tzinfo=UTC)).astimezone(UTC)
    except ValueError:
        problem = "is neither an ISO 8601 time nor an age such as 15m, 12h or 30d"
    except OverflowError:
        problem = "is outside the years 1 to 9999"
    raise typer.BadParameter(f"{text!r} {problem}")


def system_user() -> str:
    """Return the name of the OS user, or the uid: in a container the user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def filled(text: str | None) -> str | None:
    """Return the value of an option that does not allow a blank one, as of an unset variable of a shell.

    Raises:
        typer.BadParameter: ``text`` is blank.
    """
    if text is not None and not text.strip():
        raise typer.BadParameter("must not be blank")
    return text


ReasonOption = Annotated[
    str, typer.Option("--reason", help="Reason of the change; kept for the audit.", callback=filled)
]
ActorOption = Annotated[
    str,
    typer.Option(
        "--actor",
        help="Person who makes the change; kept for the audit.",
        default_factory=system_user,
        show_default="the OS user",
        callback=filled,
    ),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Show at most N rows.", metavar="N")]
SinceOption = Annotated[
    datetime | None,
    typer.Option("--since", parser=moment, metavar="TIME", help=f"Choose items from this time on: {_TIME}."),
]
UntilOption = Annotated[
    datetime | None,
    typer.Option("--until", parser=moment, metavar="TIME", help=f"Choose items before this time: {_TIME}."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Count the matches and change nothing.")]
YesOption = Annotated[
    bool, typer.Option("--yes", help=f"Skip the confirmation for more than {CONFIRM_ABOVE} items.")
]
