"""A relay as its TOML file in `benchmarks/relays` describes it: how it is installed, prepared and run.

A few lines of code that a library needs around it are in a folder of the same name. Settings are those that
the relay's documentation advises for throughput. `python -m benchmarks.peers --relay NAME` runs one.

- The body must reach the stream as JSON that holds what was inserted as `:body`, in one message per event.
  Each body has its ID as `event`.
- Each event goes to the subject `bench.event.made.v1` of the stream `{stream}`, and the relay must wait for
  the stream's acknowledgement. `Nats-Msg-Id` is the event's ID wherever the relay can set it.
- `open-outbox` is put into its work folder by hand: it is skipped until its program is `{work}/relay` and its
  schema `{work}/open-outbox.sql`.
"""

import asyncio
import hashlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sea_mq_worker.dev.servers import EmbeddedPostgres
from sea_mq_worker.nats.connection import api
from tests.support.jetstream import connected
from tests.support.processes import KeptProcess
from tests.support.servers import database_connection

STREAM = "BENCH_EVENTS"
SUBJECT = "bench.event.made.v1"
_TYPE = "made"
_DATABASE = "bench"
_WINDOW = 120 * 10**9
_PLACE = re.compile(r"(?<!:):(id|type|key|subject|body)\b")


class RelayError(Exception):
    """A description cannot be used, or a command of it failed; the text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event to insert."""

    id: str
    key: str | None
    body: str


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Process(_Part):
    """Commands are lists of arguments, run in the file's folder, with placeholders in braces.

    Attributes:
        install: puts everything into the folder ``{work}``, which is kept from run to run; runs again when
            a command or a file in the relay's folder has changed. If it fails, the relay is skipped.
        prepare: run after the servers' start, before the backlog is written: creates the table, and for CDC
            the publication and the slot; PostgreSQL has ``wal_level=logical``.
        command: runs the relay itself, not a shell around it, until SIGTERM; one that ends by itself failed.
        environment: variables added to the caller's.
    """

    install: tuple[tuple[str, ...], ...] = ()
    prepare: tuple[tuple[str, ...], ...] = ()
    command: tuple[str, ...] = Field(min_length=1)
    environment: Mapping[str, str] = {}


class Table(_Part):
    """SQL for the relay's table.

    Attributes:
        create: run before ``prepare``; may be several statements.
        insert: one statement, run with many events at a time, which writes one event from ``:id`` (a UUID),
            ``:type``, ``:key`` (or null), ``:subject`` and ``:body`` (JSON), all as text; each may occur any
            number of times.
        unfinished: selects the IDs of events that are not settled yet: the CPU time of settling counts.
    """

    create: str = ""
    insert: str = Field(min_length=1)
    unfinished: str = ""


class Message(_Part):
    """Location of the event in a message: JSON pointer to the inserted ``:body``; empty: the whole body."""

    body: str = ""


class Description(_Part):
    """A relay to measure.

    Attributes:
        about: version and settings, shown with the results.
        ordered: whether it keeps the order of a key; one that does not is not measured with keys.
        stream: JetStream settings of the stream that replace the usual ones.
    """

    name: str
    about: str = ""
    folder: Path
    ordered: bool = True
    relay: Process
    table: Table
    message: Message = Message()
    stream: Mapping[str, Any] = {}

    @classmethod
    def load(cls, file: Path) -> Self:
        """Load a file.

        Raises:
            RelayError: the file is missing, is not TOML, or lacks an entry.
        """
        try:
            given = tomllib.loads(file.read_text())
            return cls.model_validate({**given, "folder": file.resolve().parent})
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise RelayError(f"{file}: {error}") from error

    def insertion(self, event: Event) -> tuple[str, Sequence[str | None]]:
        """Return the statement that inserts an event, with ``$1`` for ``:name``, and its arguments."""
        values = {
            "id": event.id,
            "type": _TYPE,
            "key": event.key,
            "subject": SUBJECT,
            "body": event.body,
        }
        used: list[str] = []

        def place(found: re.Match[str]) -> str:
            if found[1] not in used:
                used.append(found[1])
            return f"CAST(${used.index(found[1]) + 1} AS text)"

        return _PLACE.sub(place, self.table.insert), [values[name] for name in used]


def filled(command: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """Replace the placeholders by their values.

    Raises:
        RelayError: a placeholder is unknown.
    """
    try:
        return [part.format_map(places) for part in command]
    except (KeyError, ValueError) as error:
        raise RelayError(
            f"{' '.join(command)}: unknown placeholder {error}; known are {', '.join(sorted(places))}"
        ) from error


def install(description: Description, work: Path) -> None:
    """Run the description's install commands, unless neither they nor the relay's files have changed.

    Raises:
        RelayError: a command failed.
    """
    mark = work / "installed"
    commands = [filled(command, _fixed(work)) for command in description.relay.install]
    state = hashlib.sha256(json.dumps(commands).encode())
    for file in sorted((description.folder / description.name).rglob("*")):
        if file.is_file():
            state.update(file.read_bytes())
    if mark.exists() and mark.read_text() == state.hexdigest():
        return
    work.mkdir(parents=True, exist_ok=True)
    for command in commands:
        asyncio.run(_run(command, environment=os.environ, folder=description.folder))
    mark.write_text(state.hexdigest())


async def prepared(
    description: Description, folder: Path, work: Path, *, postgres: EmbeddedPostgres, nats_url: str
) -> tuple[KeptProcess, str]:
    """Create stream, database and table; return the relay, not yet started, and the database's URL.

    Raises:
        RelayError: a command failed, or names an unknown placeholder.
    """
    config = {"name": STREAM, "subjects": ["bench.event.>"], "storage": "file", "num_replicas": 1}
    async with connected(nats_url) as broker:
        request = {**config, "duplicate_window": _WINDOW, **description.stream}
        await api(broker, f"STREAM.CREATE.{STREAM}", request)
    dsn = postgres.dsn_for(_DATABASE)
    async with database_connection(postgres.dsn) as connection:
        await connection.execute(f"CREATE DATABASE {_DATABASE}")
    if description.table.create:
        async with database_connection(dsn) as connection:
            await connection.execute(description.table.create)
    own = folder / "relay"
    own.mkdir()
    address = urlsplit(dsn)
    places = {
        **_fixed(work),
        "own": str(own),
        "database_url": dsn,
        "database_address": dsn.partition("://")[2],
        "database_host": str(address.hostname),
        "database_port": str(address.port),
        "database_user": str(address.username),
        "database_password": str(address.password),
        "database_name": _DATABASE,
        "nats_url": nats_url,
        "stream": STREAM,
    }
    relay = description.relay
    values = filled(tuple(relay.environment.values()), places)
    environment = {**os.environ, **dict(zip(relay.environment, values, strict=True))}
    for command in relay.prepare:
        await _run(filled(command, places), environment=environment, folder=description.folder)
    process = KeptProcess(
        name="relay",
        command=filled(relay.command, places),
        environment=environment,
        folder=description.folder,
        logs=folder,
    )
    return process, dsn


def _fixed(work: Path) -> dict[str, str]:
    return {"python": sys.executable, "work": str(work), "root": str(Path(__file__).parents[1])}


async def _run(command: Sequence[str], *, environment: Mapping[str, str], folder: Path) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise RelayError(f"{' '.join(command)}: {error}") from error
    written, _ = await process.communicate()
    if process.returncode != 0:
        text = written.decode(errors="replace")[-2000:]
        raise RelayError(f"{' '.join(command)} ended with exit code {process.returncode}:\n{text}")
