"""Operators' commands as they are typed, in this process, against real servers."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
from pydantic import TypeAdapter
from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.cli.outputs import OUTPUTS
from sea_mq_worker.nats.connection import NatsConnection
from sea_mq_worker.postgres.pool import OPERATOR_HINTS
from tests.support.builders import dead_letter, inbound_message
from tests.support.jetstream import SECOND, connected, create_stream, store
from tests.support.rows import opened
from tests.support.servers import Database

WHY = ("--reason", "the handler was broken", "--actor", "ann")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(kw_only=True)
class World:
    """Settings, and the servers that they name."""

    env: dict[str, str]
    pool: asyncpg.Pool
    connection: NatsConnection
    name: str

    async def run(self, *arguments: str, **env: str) -> Answer:
        """Run a command with these further settings; check its --json output against the schema."""
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=self.env | env)
        if "--json" in arguments and result.stdout:
            _check_json(arguments, result.stdout)
        return Answer(code=result.exit_code, out=result.stdout, err=result.stderr)

    async def streams(self, *, duplicate_window_seconds: int = 120) -> None:
        """Create the two streams that operators' commands ask."""
        upper = self.name.upper()
        window = duplicate_window_seconds * SECOND
        await create_stream(
            self.connection, f"{upper}_EVENTS", f"{self.name}.event.>", duplicate_window=window
        )
        await create_stream(self.connection, f"{upper}_DLQ", f"{self.name}.dlq.>")

    async def dead_letter(self, message_id: UUID, payload: bytes = b'{"vibe": 1.00}') -> int:
        """Put a message of the inbox into the dead-letter stream."""
        source = inbound_message(
            subject="a.event.b.v1", payload=payload, headers={"Nats-Msg-Id": str(message_id)}
        )
        message = dead_letter(source, context=self.name)
        return await store(self.connection, message.subject, message.payload, dict(message.headers))

    async def state_of(self, message_id: UUID) -> str:
        return str((await self.run("inbox", "show", str(message_id), "--json")).json["state"])


def _check_json(arguments: Sequence[str], printed: str) -> None:
    """Read the output as its type, and write it again: nothing is missing, nothing more is there."""
    [output] = [OUTPUTS[name] for name in (arguments[0], " ".join(arguments[:2])) if name in OUTPUTS]
    adapter: TypeAdapter[Any] = TypeAdapter(output)
    assert adapter.dump_python(adapter.validate_json(printed), mode="json") == json.loads(printed)


@asynccontextmanager
async def world_of(database: Database, nats_url: str, names: str) -> AsyncIterator[World]:
    """Connect to the servers on which commands run."""
    env = {"SEA_MQ_CONTEXT": names, "SEA_MQ_DATABASE_URL": database.dsn, "SEA_MQ_NATS_URL": nats_url}
    async with opened(database, hints=OPERATOR_HINTS) as pool, connected(nats_url) as connection:
        yield World(env=env, pool=pool, connection=connection, name=names)
