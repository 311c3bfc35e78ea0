"""The table of all commands but the pipeline's, and the schema of each command's JSON output."""

import json
import re
from collections.abc import Iterator
from typing import Any

import typer
from pydantic import TypeAdapter

from sea_mq_worker.cli import app
from sea_mq_worker.cli.outputs import OUTPUTS
from sea_mq_worker.cli.pipeline import outputs as pipeline_outputs
from tools.docs.markdown import entries

PRINTED: dict[str, Any] = {**OUTPUTS, **pipeline_outputs()}
"""By command, the type that it prints with ``--json``."""


def commands() -> dict[str, Any]:
    """Return every command by its full name, in the order of the program."""
    return dict(_below(typer.main.get_command(app)))


def _below(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for one, command in group.commands.items():
        full = f"{name} {one}".strip()
        if hasattr(command, "commands"):
            yield from _below(command, full)
        else:
            yield full, command


def list_of_commands() -> str:
    """Return an entry for each command: the first clause of its help, which has the rest."""
    return entries(
        (name, f"{re.split(r'[;.]', command.help)[0]}.")
        for name, command in commands().items()
        if not name.startswith("pipeline ")  # docs/how-to/pipeline.md
    )


def schema() -> str:
    """Return the JSON schema of every command's output; the types share their definitions."""
    adapters: list[Any] = [(name, "serialization", TypeAdapter(type_)) for name, type_ in PRINTED.items()]
    found, definitions = TypeAdapter.json_schemas(adapters)
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Output of sea-mq-worker with --json, by command",
        "type": "object",
        "properties": {str(name): one for (name, _), one in found.items()},
        **definitions,
    }
    return json.dumps(document, indent=2) + "\n"
