"""docs/how-to/sending.md and docs/how-to/streams.md: a sender without a worker, and the nats CLI."""

import ast
import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sea_mq_worker.inbox.message import HandlerRequest, parse_message
from sea_mq_worker.nats.connection import NatsConnection, api
from sea_mq_worker.nats.message import stored
from sea_mq_worker.operators.definitions import check, definitions
from sea_mq_worker.producer import uuid7
from sea_mq_worker.resources import resource_folder
from sea_mq_worker.settings import Settings
from tests.support.documents import blocks, commands
from tests.support.jetstream import connected, create_stream
from tests.support.nats_cluster import nats_cluster

SENDING, STREAMS = "docs/how-to/sending.md", "docs/how-to/streams.md"
STREAM = "T_PAYMENTS"
SHIPPED = resource_folder("streams")
ROOM_BYTES = 64 * 2**30
"""max_bytes is reserved when a stream is made; nothing near it is written."""


def nats_cli() -> Path:
    """Return the folder of the program; without it skip the test, but fail in CI."""
    go_bin = Path(os.environ.get("GOPATH", Path.home() / "go")) / "bin"
    program = shutil.which("nats") or shutil.which("nats", path=str(go_bin))
    if not program:
        missing = "the nats CLI is neither on the PATH nor in Go's bin folder"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return Path(program).parent


async def shell(line: str, folder: Path, programs: Path, **environment: str) -> str:
    """Run a line with the programs of a folder and this Python on PATH; return what it prints."""
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    process = await asyncio.create_subprocess_exec(
        "bash", "-e", "-c", line, cwd=folder, env=os.environ | environment | {"PATH": path},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, f"{line}: {output.decode()}"
    return output.decode()


@pytest_asyncio.fixture
async def payments(nats_url: str) -> AsyncIterator[NatsConnection]:
    """A stream for the messages of the context of the document."""
    async with connected(nats_url) as connection:
        await create_stream(connection, STREAM, "payments.event.>")
        yield connection
        await api(connection, f"STREAM.DELETE.{STREAM}")


async def the_message(payments: NatsConnection) -> HandlerRequest:
    """Parse the one message of the stream as the worker does."""
    message = (await api(payments, f"STREAM.MSG.GET.{STREAM}", {"seq": 1}))["message"]
    parsed = parse_message(stored(message, stream=STREAM, consumer="", deliveries=1))
    assert isinstance(parsed, HandlerRequest), parsed
    return parsed


async def test_a_message_of_the_example_has_a_valid_form(payments: NatsConnection) -> None:
    [example] = [text for _, language, text in blocks(SENDING) if language == "python"]
    code = compile(example, SENDING, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, {"connection": payments.client, "json": json, "uuid7": uuid7})
    parsed = await the_message(payments)
    assert (parsed.event_type, parsed.payload) == ("payment.received", b'{"booking": 1}')


async def test_a_message_of_the_nats_cli_has_a_valid_form(
    payments: NatsConnection, nats_url: str, tmp_path: Path
) -> None:
    [command] = commands(SENDING)
    await shell(command.text, tmp_path, nats_cli(), NATS_URL=nats_url)
    parsed = await the_message(payments)
    assert parsed.message_id in command.text


@pytest.mark.slow
async def test_the_nats_cli_takes_exported_files_on_a_small_single_server(
    nats_url: str, names: str, tmp_path: Path
) -> None:
    settings = {
        "NATS_URL": nats_url,
        "SEA_MQ_NATS_URL": nats_url,
        "SEA_MQ_CONTEXT": names,
        "SEA_MQ_CONSUMERS": f"{names.upper()}P_EVENTS/{names}__from_{names}p",
        "SEA_MQ_STREAM_REPLICAS": "1",
        "SEA_MQ_STREAM_MAX_BYTES": "67108864",
    }
    [export] = commands(STREAMS, "Other values")
    lines = [export, *commands(STREAMS, "With the nats CLI")]
    outputs = [await shell(line.text, tmp_path, nats_cli(), **settings) for line in lines]
    assert outputs[-1] == "as defined\n"


@pytest.mark.clause("streams", "durable-consumer")
async def test_the_nats_cli_takes_every_file_as_it_is(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Three replicas and all."""
    lines = [f"nats stream add --config {file}" for file in sorted(SHIPPED.glob("*.json"))]
    lines += [
        f"nats consumer add {file.stem.partition('.')[0]} --config {file}"
        for file in sorted((SHIPPED / "consumers").glob("*.json"))
    ]
    async with nats_cluster(tmp_path_factory.mktemp, room_bytes=ROOM_BYTES) as cluster:
        url = cluster.nodes[0].url
        for line in lines:
            await shell(line, tmp_path, nats_cli(), NATS_URL=url, XDG_CONFIG_HOME=str(tmp_path))
        async with connected(url) as connection:
            assert await check(connection, definitions(Settings())) == []
