"""Shared by commands: settings, errors as exit codes, output for people and for programs."""

import json as json_
import shutil
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar
from uuid import UUID

import typer

from sea_mq_worker.cli.arguments import CONFIRM_ABOVE
from sea_mq_worker.cli.table_format import cell, plain, table

if TYPE_CHECKING:
    from sea_mq_worker.operations.database import Tables
    from sea_mq_worker.ports.operations import DeadLetterStore
    from sea_mq_worker.settings import Settings

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONTRACT = 3

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

_T = TypeVar("_T")


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


def run_command(work: "Callable[[Settings], Awaitable[_T]]", *, needs: Collection[str]) -> _T:
    """Run an operator's command and translate its errors into exit codes."""
    import asyncio

    from sea_mq_worker.domain.errors import (
        ContractError,
        UnavailableError,
        UnstorableValueError,
        WorkerError,
    )
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


def query_database(query: "Callable[[Tables], Awaitable[_T]]", *, too_long: str = "") -> _T:
    """Run a query and translate its errors into exit codes; ``too_long`` names a faster query."""
    from sea_mq_worker.domain.errors import StatementTooLongError

    async def run(tables: "Tables") -> _T:
        try:
            return await query(tables)
        except StatementTooLongError as error:
            abort(f"{error}; {too_long}" if too_long else str(error), EXIT_FAILED)

    return run_command(lambda settings: _with_tables(settings, run), needs=("database_url",))


def read_dead_letters(read: "Callable[[DeadLetterStore], Awaitable[_T]]") -> _T:
    """Read the dead-letter stream and translate errors into exit codes."""

    async def run(settings: "Settings") -> _T:
        from sea_mq_worker.operations.broker import dead_letters

        async with dead_letters(settings) as stream:
            return await read(stream)

    return run_command(run, needs=("nats_url",))


def change_rows(change: "Callable[[Tables], Awaitable[_T]]") -> _T:
    """Change rows of outbox or inbox and translate errors into exit codes."""
    return run_command(lambda settings: _with_tables(settings, change), needs=("database_url",))


async def _with_tables(settings: "Settings", use: "Callable[[Tables], Awaitable[_T]]") -> _T:
    from sea_mq_worker.operations.database import operations

    async with operations(settings) as tables:
        return await use(tables)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar with the time left if a terminal is there; yield its ``update``."""
    hidden = total <= CONFIRM_ABOVE or not sys.stderr.isatty()
    with typer.progressbar(length=total, label=label, file=sys.stderr, hidden=hidden) as bar:
        yield bar.update


def print_result(
    ended: Collection[UUID],
    asked: Collection[UUID],
    *,
    word: str,
    left_is: str,
    output: Callable[[Sequence[str], Sequence[str]], object] | None,
) -> None:
    """Print how many items were ended, or JSON by ``output``; abort with the reason for the others.

    In the reason, ``left_is``, {} stands for the ID.
    """
    left = sorted(str(one) for one in set(asked) - set(ended))
    if output:
        print_json(output(sorted(map(str, ended)), left))
    else:
        typer.echo(f"{word} {len(ended)} of {len(set(asked))}")
    if left:
        abort("\n".join(f"{one}: {left_is.format(one)}" for one in left), EXIT_FAILED)


def print_page(
    records: Sequence[object], columns: Sequence[str], *, json: bool, empty: str, more: object = None
) -> None:
    """Print dataclasses: all fields as JSON for programs, some columns for people.

    ``more`` is the value of ``--after`` for the next page; None: this is the last page.
    """
    fields = [asdict(record) for record in records]  # type: ignore[call-overload]
    if json:
        print_json(fields)
    else:
        print_table(columns, [[each[column] for column in columns] for each in fields], empty=empty)
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


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one record, one field on each line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        typer.echo(f"{name:<{width}}  {cell(value)}".rstrip())
