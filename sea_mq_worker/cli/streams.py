"""``streams``, ``asyncapi`` and ``schemas``: definitions in NATS, and the contracts with other contexts."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sea_mq_worker.cli.support import (
    EXIT_CONTRACT,
    EXIT_FAILED,
    JsonOption,
    abort,
    echo_safe,
    print_json,
    run_command,
)

if TYPE_CHECKING:
    from sea_mq_worker.operators.definitions import Applied, Change, Difference
    from sea_mq_worker.settings import Settings

app = typer.Typer(
    help="Check and apply the definitions of this context's streams and durable consumers.",
    no_args_is_help=True,
)
StreamsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        metavar="NAME",
        help="Stream to check or apply, with its consumers, also of another context; may be repeated "
        "(default: this context's streams and durables).",
    ),
]


@app.command("check")
def check(*, streams: StreamsOption = None, json: JsonOption = False) -> None:
    """List every field that differs from the definitions; exit 1 if any does."""
    from sea_mq_worker.operators.definitions import check_topology

    differences = run_command(lambda s: check_topology(s, streams=streams or ()), needs=("nats_url",))
    if json:
        print_json([asdict(difference) for difference in differences])
    else:
        _print_differences(differences, fix="`python -m sea_mq_worker streams apply` fixes them")
    if differences:
        raise typer.Exit(EXIT_FAILED)


@app.command("apply")
def apply(
    *,
    streams: StreamsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the changes and make none.")] = False,
    json: JsonOption = False,
) -> None:
    """Create missing streams and consumers, and update those that differ; delete nothing.

    Streams of other contexts are left alone unless --stream names one; consumers wait until they exist. At
    the end the command checks like `streams check`: exit 1 if a field still differs. If the server refuses a
    change, the changes before it are listed.
    """
    from sea_mq_worker.operators.definitions import AWAITED, Applied, apply_topology

    made: list[Change] = []

    def on_change(change: "Change") -> None:
        made.append(change)
        if json:
            return
        echo_safe(f"{'would be ' if dry_run else ''}{change.action} {change.name}")
        if change.action == "updated":
            echo_safe(*(f"  {one.field}: {one.found} -> {one.wanted}" for one in change.differences))
        elif change.by_setting:
            echo_safe(*(f"  {text} by setting" for text in change.by_setting))

    async def work(settings: "Settings") -> "Applied":
        applied = Applied(changes=made)
        try:
            applied = await apply_topology(
                settings, streams=streams or (), dry_run=dry_run, on_change=on_change
            )
        finally:
            if json:
                print_json(asdict(applied))
        return applied

    left = run_command(work, needs=("nats_url",)).differences
    if not json and (left or not (dry_run and made)):
        _print_differences(left, fix="change the definitions, or the streams that they name")
    if not json and dry_run and made:
        typer.echo("nothing was changed; repeat without --dry-run to change it")
    if any(difference.field != AWAITED for difference in left):
        raise typer.Exit(EXIT_FAILED)


def _print_differences(differences: "Sequence[Difference]", *, fix: str) -> None:
    from sea_mq_worker.operators.definitions import AWAITED

    for difference in differences:
        echo_safe(str(difference))
    fields = {difference.field for difference in differences}
    if not fields:
        typer.echo("as defined")
    if AWAITED in fields:
        typer.echo("apply again when what is waited for is there")
    if fields - {AWAITED}:
        typer.echo(fix)


@app.command("export")
def export(
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must have no definitions yet.")],
) -> None:
    """Write the definitions as files, for the nats CLI, or to change them and set SEA_MQ_STREAMS_FOLDER."""

    async def write(settings: "Settings") -> Sequence[Path]:
        from sea_mq_worker.operators.definitions import export_topology

        return export_topology(settings, folder)

    echo_safe(*map(str, run_command(write, needs=())))


# --- ``asyncapi`` and ``schemas check``: the contracts of a context with others.

schemas_app = typer.Typer(help="Check the JSON Schemas of events.", no_args_is_help=True)

SchemasOption = Annotated[
    Path | None,
    typer.Option(
        "--schemas",
        metavar="FOLDER",
        help="Folder of JSON Schemas, one file TYPE.vVERSION.json for each event (default: none).",
    ),
]
_FOLDER = "Folder of JSON Schemas, one file TYPE.vVERSION.json for each event"


def asyncapi(*, schemas: SchemasOption = None) -> None:
    """Print an AsyncAPI 3 document of the events that this context sends and receives, as JSON.

    It has every type in its streams and every type with a schema.
    """
    documents = _read(schemas) if schemas else {}
    print_json(run_command(lambda settings: _asyncapi(settings, documents), needs=("nats_url",)))


async def _asyncapi(settings: "Settings", schemas: Any) -> dict[str, Any]:
    from sea_mq_worker.operators.streams import stored_subjects
    from sea_mq_worker.producer.asyncapi import asyncapi_document

    sent, received = await stored_subjects(settings)
    return asyncapi_document(settings.context, sent=sent, received=received, schemas=schemas)


@schemas_app.command("check")
def check_schemas(
    old: Annotated[Path, typer.Argument(help=f"{_FOLDER}, as released.")],
    new: Annotated[Path, typer.Argument(help=f"{_FOLDER}, as changed.")],
) -> None:
    """Compare two versions of a folder of schemas; exit 1 if a change needs another version of an event.

    Within a version, optional properties may be added and annotations may change.
    """
    from sea_mq_worker.producer.schemas import incompatible_changes

    problems = incompatible_changes(_read(old), _read(new))
    echo_safe(*problems or ["compatible"])
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _read(folder: Path) -> Any:
    from sea_mq_worker.errors import ContractError
    from sea_mq_worker.producer.schemas import read_event_schemas

    try:
        return read_event_schemas(folder)
    except ContractError as error:
        abort(str(error), EXIT_CONTRACT)
