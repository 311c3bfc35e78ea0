"""Shared by commands: settings, errors as exit codes, output for people and for programs."""

import asyncio
import getpass
import json as json_
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar
from uuid import UUID

import typer

from sea_mq_worker.operators.records import Group, Page

if TYPE_CHECKING:
    from asyncpg import Pool

    from sea_mq_worker.settings import Settings

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONTRACT = 3

_T = TypeVar("_T")

# --- Tables that fit the terminal: the first column stays whole, the others shrink or move below it.

_GAP = "  "
_CUT = "\u2026"
_NARROW = 12
"""Characters: no column is cut below this width, so that its text stays useful."""


def cell(value: object) -> str:
    """Format a value for people, on one line."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return plain("" if value is None else str(value))


def plain(text: str) -> str:
    """Escape control characters that a terminal would interpret."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None) -> Iterator[str]:
    """Yield the lines of a table that is at most ``width`` wide; None: no limit.

    The first column is never cut: it identifies the row, often by an ID to copy.
    """
    cells = [tuple(map(cell, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    if width is not None:
        room = width - len(_GAP) * (len(widths) - 1)
        shrunk = _shrunk(widths, room)
        if shrunk is None:
            for row in cells:
                yield from _block(columns, row, width)
            return
        widths = shrunk
    for row in [tuple(columns), *cells]:
        parts = (f"{_cut(text, wide):<{wide}}" for text, wide in zip(row, widths, strict=True))
        yield _GAP.join(parts).rstrip()


def _shrunk(widths: Sequence[int], room: int) -> list[int] | None:
    """Shrink the widest columns except the first; None: the room is too small."""
    found = list(widths)
    while sum(found) > room:
        widest = max(range(1, len(found)), key=lambda place: found[place], default=0)
        if found[widest] <= _NARROW or not widest:
            return None
        found[widest] -= 1
    return found


def _block(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """Yield the first column, and the other columns on lines below it."""
    yield row[0]
    line = ""
    for column, text in zip(columns[1:], row[1:], strict=True):
        if not text:
            continue
        part = _cut(f"{column} {text}", width - len(_GAP))
        if line and len(line) + len(_GAP) + len(part) > width:
            yield line
            line = ""
        line += f"{_GAP}{part}"
    if line:
        yield line


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + _CUT


# --- Arguments and options that several operators' commands take.

_AGE = re.compile(r"(\d{1,6})([smhd])")
CONFIRM_ABOVE = 10
"""Cap on items that a command changes without a confirmation and reports one by one."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_TIME = "ISO 8601 (UTC), or an age such as 15m, 12h or 30d"


def moment(text: str) -> datetime:
    """Parse a time: ISO 8601, UTC unless it names an offset, or an age such as 90s, 15m, 12h or 30d."""
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


def _system_user() -> str:
    """Return the name of the OS user, or the uid: in a container the user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def filled(text: str | None) -> str | None:
    """Return the value of an option that does not allow a blank one, as of an unset variable of a shell."""
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
        default_factory=_system_user,
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
AfterOption = Annotated[
    UUID | None, typer.Option("--after", metavar="ID", help="Start the page after this ID.")
]
ReadOption = Annotated[
    int, typer.Option("--read", min=0, metavar="N", help="Read at most N rows, newest first (0: no limit).")
]
GroupsOption = Annotated[
    int, typer.Option("--groups", min=1, help="Show at most N groups of each kind.", metavar="N")
]
ErrorOption = Annotated[str | None, typer.Option("--error", help="Part of the last error.", callback=filled)]
NO_CHOICE = "choose events by IDs or by filters: `--help` lists them"
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


# --- Run a command: its errors become exit codes.


def abort(text: str, code: int) -> NoReturn:
    """Print the error, one line for each problem, and exit with ``code``, even if stderr is full."""
    with suppress(OSError):
        echo_safe(*text.split("\n"), err=True)
    raise typer.Exit(code)


def echo_safe(*lines: str, err: bool = False) -> None:
    """Print lines for people; escape control characters, line ends among them, of foreign text."""
    typer.echo("\n".join(map(plain, lines)), err=err)


def settings_for(*needs: str) -> "Settings":
    """Load the settings, or abort with their errors."""
    from sea_mq_worker.settings import SettingsError, load_settings, unread_env_file

    if ignored := unread_env_file():
        echo_safe(ignored, err=True)
    try:
        return load_settings(needs=needs)
    except SettingsError as error:
        abort(str(error), EXIT_USAGE)


def confirm(count: int, what: str, *, yes: bool) -> None:
    """Require a confirmation of more than CONFIRM_ABOVE changes; without a terminal require ``yes``."""
    if yes or count <= CONFIRM_ABOVE:
        return
    if not sys.stdin.isatty():
        abort(f"{count} {what}; check with --dry-run, then repeat with --yes", EXIT_USAGE)
    if not typer.confirm(f"{count} {what}. Continue?", err=True):
        abort("nothing was changed", EXIT_FAILED)


def may_change(count: int, what: str, change: str, *, cap: int | None, dry_run: bool, yes: bool) -> bool:
    """Return whether to change ``count`` of ``what``: if there is one, it is no dry run, and it is confirmed.

    Aborts above ``cap``, also in a dry run: the filters may be wrong.
    """
    if cap is not None and count > cap:
        abort(f"more than {cap} {what} match; narrow the filters, or raise --cap", EXIT_USAGE)
    if dry_run or not count:
        return False
    confirm(count, f"{what} will be {change}", yes=yes)
    return True


def run_command(work: "Callable[[Settings], Awaitable[_T]]", *, needs: Collection[str]) -> _T:
    """Run an operator's command and translate its errors into exit codes."""
    from sea_mq_worker.errors import ContractError, UnavailableError, UnstorableValueError, WorkerError
    from sea_mq_worker.settings import SettingsError

    settings = settings_for(*needs)

    async def main() -> _T:
        return await work(settings)

    try:
        return asyncio.run(main())
    except SettingsError as error:
        abort(str(error), EXIT_USAGE)
    except UnstorableValueError as error:
        abort(f"{error}; correct the options", EXIT_USAGE)
    except ContractError as error:
        abort(str(error), EXIT_CONTRACT)
    except UnavailableError as error:
        abort(f"{error}; retry, or run `python -m sea_mq_worker doctor`", EXIT_FAILED)
    except WorkerError as error:
        abort(str(error), EXIT_FAILED)


def on_tables(use: "Callable[[Pool], Awaitable[_T]]", *, too_long: str = "") -> _T:
    """Query or change rows, and translate errors into exit codes; ``too_long`` names a faster query."""
    from sea_mq_worker.errors import StatementTooLongError
    from sea_mq_worker.operators.tables import open_tables

    async def run(settings: "Settings") -> _T:
        async with open_tables(settings) as pool:
            try:
                return await use(pool)
            except StatementTooLongError as error:
                abort(f"{error}; {too_long}" if too_long else str(error), EXIT_FAILED)

    return run_command(run, needs=("database_url",))


# --- Print for people, or JSON for programs.


def print_result(
    ended: Collection[UUID], asked: Collection[UUID], *, word: str, left_is: str, json: bool
) -> None:
    """Print how many items were ended (as JSON: which, under ``word``); abort with the reason for the others.

    In the reason, ``left_is``, {} stands for the ID.
    """
    left = sorted(str(one) for one in set(asked) - set(ended))
    if json:
        print_json({word.replace(" ", "_"): sorted(map(str, ended)), "left": left})
    else:
        typer.echo(f"{word} {len(ended)} of {len(set(asked))}")
    if left:
        abort("\n".join(f"{one}: {left_is.format(one)}" for one in left), EXIT_FAILED)


def print_page(
    records: Sequence[object], columns: Sequence[str], *, json: bool, empty: str, more: object = None
) -> None:
    """Print records: all fields as JSON for programs, some columns for people.

    ``more`` is the value of ``--after`` for the next page; None: this is the last page.
    """
    if json:
        print_json(records)
    else:
        rows = [[getattr(record, column) for column in columns] for record in records]
        print_table(columns, rows, empty=empty)
    if more is not None:
        echo_safe(f"perhaps more: --after {more}", err=True)


def print_json(data: object) -> None:
    """Print one JSON document that fits docs/reference/cli.schema.json; times are ISO 8601."""
    from pydantic_core import to_jsonable_python

    typer.echo(json_.dumps(to_jsonable_python(data), indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Print rows for people, at most as wide as the terminal; uncut to a file or a pipe."""
    if not rows:
        typer.echo(empty)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table(columns, rows, width=width):
        typer.echo(line)


def print_fields(fields: Mapping[str, Any], *, json: bool = False) -> None:
    """Print one record: as JSON, or for people one field on each line."""
    if json:
        print_json(fields)
        return
    width = max(map(len, fields))
    for name, value in fields.items():
        typer.echo(f"{name:<{width}}  {cell(value)}".rstrip())


# --- Pages of `outbox list` and `inbox list`, and `summary`: the largest groups.

SUMMARY_READ_MAX = 50_000
"""Cap on rows that a summary reads: the oldest show why a queue grows, and take about a second."""


def print_summary(
    groups: Sequence[Group],
    *,
    what: str,
    json: bool,
    read: int | None = None,
    read_max: int = SUMMARY_READ_MAX,
) -> None:
    """Print groups, and a note if rows were left unread; ``read``: rows read (None: those of all states)."""
    if read is None:
        read = sum(group.count for group in groups if group.kind == "state")
    if json:
        print_json({"read": read, "read_max": read_max, "groups": groups})
        return
    rows = [(group.name, group.kind, group.count, group.oldest_at) for group in groups]
    print_table(("name", "of", "count", "oldest"), rows, empty=f"no {what}")
    if read >= read_max:
        typer.echo(f"of the oldest {read_max} {what}", err=True)


def print_list(page: Page[Any], columns: Sequence[str], *, what: str, json: bool) -> None:
    """Print a page, the start of the next one, and how many of ``what`` were read if not all."""
    if page.read is None or page.next_after is None:
        print_page(page.rows, columns, json=json, empty=f"no {what}", more=page.next_after)
        return
    print_page(page.rows, columns, json=json, empty=f"none of {page.read} {what}")
    echo_safe(
        f"read {page.read} {what}, back to {cell(page.reached)}: continue with --after {page.next_after}, "
        "or read more with --read",
        err=True,
    )
