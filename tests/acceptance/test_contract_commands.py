"""``asyncapi`` and ``schemas check``, as the document shows them."""

import ast
import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.documents import blocks, commands
from tests.support.jetstream import create_stream
from tests.support.operators import World
from tests.support.programs import own_programs
from tests.support.servers import Database

DOCUMENT = "docs/how-to/contracts.md"
SCHEMA = {
    "$id": "https://example.com/order.paid.v1",
    "type": "object",
    "properties": {"order": {"type": "integer"}},
}


@pytest.fixture
def world(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A context that is in a folder with schemas."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "released", SCHEMA)
    write(tmp_path / "schemas", SCHEMA)
    return world


def write(folder: Path, schema: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "order.paid.v1.json").write_text(json.dumps(schema))


async def test_the_commands_of_the_document_compare_schemas_and_describe_events(
    world: World, tmp_path: Path
) -> None:
    check, asyncapi = [words for one in commands(DOCUMENT) for _, words in own_programs(one.text)]
    await create_stream(world.connection, f"{world.name.upper()}_EVENTS", f"{world.name}.event.>")
    await world.connection.client.jetstream().publish(f"{world.name}.event.order.sent.v1", b"{}")
    world.env["SEA_MQ_CONSUMERS"] = ""

    compared, described = await world.run(*check), await world.run(*asyncapi)
    write(tmp_path / "schemas", SCHEMA | {"required": ["order"]})
    changed = await world.run(*check)
    missing = await world.run("schemas", "check", "released", "none")

    assert (compared.code, compared.out) == (0, "compatible\n")
    assert (changed.code, changed.out) == (1, "order.paid.v1: /required has changed\n")
    assert (missing.code, missing.err) == (3, "none: No such file or directory\n")
    assert described.code == 0, described.err
    channels: dict[str, Any] = json.loads(described.out)["channels"]
    assert {channel["address"].partition(".")[2] for channel in channels.values()} == {
        "event.order.paid.v1",
        "event.order.sent.v1",
    }


async def test_the_example_of_the_document_writes_a_checked_event(world: World, database: Database) -> None:
    [example] = [text for _, language, text in blocks(DOCUMENT) if language == "python"]
    code = compile(example, DOCUMENT, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    connection = await asyncpg.connect(database.dsn)
    try:
        await eval(code, {"connection": connection})
        headers = await connection.fetchval("SELECT headers FROM outbox_events")
    finally:
        await connection.close()

    assert json.loads(headers) == {"ce-dataschema": SCHEMA["$id"]}
