"""cli.md lists every command but the pipeline's, cli.schema.json the output of each with --json."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import TypeAdapter

from sea_mq_worker.cli import app
from sea_mq_worker.cli.outputs import OUTPUTS
from sea_mq_worker.cli.pipeline.outputs import PIPELINE_OUTPUTS

DOCS = Path(__file__).parents[2] / "docs" / "reference"
DOCUMENT, SCHEMA = DOCS / "cli.md", DOCS / "cli.schema.json"
BEGIN, END = "<!-- commands -->\n", "<!-- end of commands -->"
REGENERATE = "run python -m tests.tidy.test_cli_doc"


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Walk the tree of commands, in its order."""
    for one, command in group.commands.items():
        full = f"{name} {one}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, full)
        else:
            yield full, command


COMMANDS = dict(commands(typer.main.get_command(app)))
PRINTED = {**OUTPUTS, **PIPELINE_OUTPUTS}


def table() -> str:
    """Write a row for each command: what it does, in its first sentence, and what it takes."""
    rows = [
        f"| `{name}` | {' '.join(command.help.split(chr(10) * 2)[0].split())} | {options(command)} |"
        for name, command in COMMANDS.items()
        if not name.startswith("pipeline ")  # docs/how-to/pipeline.md
    ]
    return "\n".join(["| command | | takes |", "|---|---|---|", *rows, ""])


def options(command: Any) -> str:
    """Name a command's arguments and options."""
    names = [
        one.opts[0] if one.opts[0].startswith("-") else one.metavar or one.name.upper()
        for one in command.params
        if one.name != "help"
    ]
    return " ".join(f"`{name}`" for name in names)


def schema() -> str:
    """Write the schema of every command's output."""
    adapters = [(name, "serialization", TypeAdapter(output)) for name, output in PRINTED.items()]
    found, definitions = TypeAdapter.json_schemas(adapters)  # type: ignore[arg-type]
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What sea-mq-worker prints with --json, by command",
        "type": "object",
        "properties": {str(name): one for (name, _), one in found.items()},
        **definitions,
    }
    return json.dumps(document, indent=2) + "\n"


def parts() -> tuple[str, str, str]:
    """Take the document apart: before the table, the table, behind it."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    written, _, behind = rest.partition(END)
    return before, written, behind


def test_the_document_lists_the_commands_as_they_are() -> None:
    assert parts()[1] == table(), REGENERATE


def test_the_schema_is_that_of_the_types_that_are_printed() -> None:
    assert SCHEMA.read_text() == schema(), REGENERATE


def test_every_command_that_prints_json_has_a_schema() -> None:
    printing = {
        name for name, command in COMMANDS.items() if any("--json" in one.opts for one in command.params)
    }
    assert printing == set(PRINTED)


if __name__ == "__main__":
    head, _, tail = parts()
    DOCUMENT.write_text(f"{head}{BEGIN}{table()}{END}{tail}")
    SCHEMA.write_text(schema())
