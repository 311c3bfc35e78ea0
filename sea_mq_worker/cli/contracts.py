"""``asyncapi`` and ``schemas check``: the contracts of a context with others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sea_mq_worker.cli.support import EXIT_CONTRACT, EXIT_FAILED, abort, echo_safe, print_json, run_command

if TYPE_CHECKING:
    from sea_mq_worker.settings import Settings

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
    from sea_mq_worker.domain.asyncapi import asyncapi_document
    from sea_mq_worker.operations.broker import stored_subjects

    sent, received = await stored_subjects(settings)
    return asyncapi_document(settings.context, sent=sent, received=received, schemas=schemas)


@schemas_app.command("check")
def check(
    old: Annotated[Path, typer.Argument(help=f"{_FOLDER}, as released.")],
    new: Annotated[Path, typer.Argument(help=f"{_FOLDER}, as changed.")],
) -> None:
    """Compare two versions of a folder of schemas; exit 1 if a change needs another version of an event.

    Within a version, optional properties may be added and annotations may change.
    """
    from sea_mq_worker.domain.schema_compatibility import incompatible_changes

    problems = incompatible_changes(_read(old), _read(new))
    echo_safe(*problems or ["compatible"])
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _read(folder: Path) -> Any:
    from sea_mq_worker.domain.errors import ContractError
    from sea_mq_worker.event_schemas import read_event_schemas

    try:
        return read_event_schemas(folder)
    except ContractError as error:
        abort(str(error), EXIT_CONTRACT)
