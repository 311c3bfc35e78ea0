"""docker-compose.yml does what README.md says of it, with the images built from this checkout.

Run with `pytest -m compose`; a missing Docker is an error then, not a reason to skip.
"""

import json
import os
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import nats
import pytest
from nats.aio.client import Client

from tests.support.documents import commands
from tests.support.servers import unique
from tests.support.spark_cluster import DELTA
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
START_SECONDS = 900
MANY = 50_000
ENOUGH_FOR_SPARK = 12_000
BY_STATE = "SELECT state, count(*) FROM outbox_events GROUP BY state"
OPEN = "SELECT count(*) FROM outbox_events WHERE is_open"
PROCESSED = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL"

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(START_SECONDS + 120)]


@dataclass(frozen=True, slots=True)
class Stack:
    """The running services of one Compose project."""

    project: str

    def compose(self, *arguments: str) -> str:
        return self.run("docker", "compose", "-p", self.project, *arguments)

    def run(self, *command: str) -> str:
        # Free ports of the machine, so that nothing else that runs here is in the way.
        ports = ("POSTGRES_PORT", "NATS_PORT", "NATS_MONITOR_PORT", "ADMIN_PORT", "HANDLER_PORT")
        result = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | dict.fromkeys(ports, "0"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result.stdout.strip()

    def psql(self, statement: str) -> str:
        """Run a statement where an operator would: in the container of the database."""
        return self.compose("exec", "-T", "postgres", "psql", "-U", "sea", "-d", "sea", "-AtXqc", statement)

    def address(self, service: str, port: int) -> str:
        return self.compose("port", service, str(port))

    def inspect(self, service: str, template: str) -> str:
        (container,) = self.compose("ps", "-a", "-q", service).split()
        return self.run("docker", "inspect", "-f", template, container)

    def is_ready(self) -> bool:
        return self.inspect("worker", "{{.State.Health.Status}}") == "healthy"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """All services, freshly built and empty."""
    stack = Stack(unique("seatest"))
    try:
        stack.compose("up", "--build", "-d")
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "5")


def insert(count: int) -> str:
    """Return the statement of a producer that knows only SDS-047's columns."""
    return f"""
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'order', n::text, 'order.placed', jsonb_build_object('n', n)
        FROM generate_series(1, {count}) AS n
    """


async def connected(stack: Stack, user: str, password: str) -> Client:
    return await nats.connect(
        f"nats://{stack.address('nats', 4222)}", user=user, password=password, inbox_prefix=f"_INBOX_{user}"
    )


async def stored(stack: Stack, stream: str) -> int:
    client = await connected(stack, "sea_operator", "sea")
    try:
        return (await client.jetstream().stream_info(stream)).state.messages
    finally:
        await client.close()


def fetch_json(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return json.load(answer)


async def test_a_message_takes_effect_once_in_the_sample_handler(stack: Stack) -> None:
    ids = [uuid4() for _ in range(5)]
    await publish(stack, ids)
    await eventually(lambda: stack.psql(PROCESSED) == "5", within=60, what="all messages processed")
    effects = [fetch_json(stack.address("handler", 8000), f"/effects/{message_id}") for message_id in ids]
    assert effects == [{"effect": True, "calls": 1}] * 5


async def publish(stack: Stack, ids: list[UUID]) -> None:
    """Publish as the other context does."""
    client = await connected(stack, "vibespro_worker", "vibespro")
    for message_id in ids:
        await client.jetstream().publish(
            "vibespro.event.invoice.paid.v1", b'{"amount": 1}', headers={"Nats-Msg-Id": str(message_id)}
        )
    await client.close()


@pytest.mark.clause("terms-04")
async def test_a_stopped_worker_leaves_no_claim_and_continues_after_a_restart(stack: Stack) -> None:
    await eventually(stack.is_ready, within=60, what="worker ready")
    before = await stored(stack, "SEA_EVENTS")
    stack.psql(insert(MANY))
    stack.compose("stop", "worker")
    assert stack.inspect("worker", "{{.State.ExitCode}}") == "0"
    counts = dict(line.split("|") for line in stack.psql(BY_STATE).splitlines())
    assert "CLAIMED" not in counts
    assert int(counts["PENDING"]) > 0, "stopped too late to tell anything"

    stack.compose("start", "worker")
    await eventually(lambda: stack.psql(OPEN) == "0", within=120, what="the rest published")
    assert await stored(stack, "SEA_EVENTS") == before + MANY


async def test_the_image_of_the_pipeline_lands_events_by_spark(stack: Stack) -> None:
    """With no more rights than deploy/kubernetes/pipeline gives: only /tmp and the lake can be written."""
    image = f"{stack.project}-pipeline"
    stack.psql(insert(ENOUGH_FOR_SPARK))
    stack.run("docker", "build", "--target", "pipeline", "--build-arg", "PIP_INDEX_URL", "-t", image, ".")
    await eventually(lambda: stack.psql(OPEN) == "0", within=60, what="all events published")
    settings = {
        "SEA_MQ_CONSUMERS": "",
        "SEA_MQ_NATS_INBOX_PREFIX": "_INBOX_sea_pipeline",
        "SEA_MQ_NATS_URL": "nats://sea_pipeline:sea@nats:4222",
        "SEA_MQ_PIPELINE_LAKE": "/lake",
        "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
    }
    land = ("land", "--json", "--master", "local[2]")
    given = {**DELTA, "spark.databricks.delta.snapshotPartitions": "2", "spark.log.level": "ERROR"}
    conf = [part for pair in given.items() for part in ("--conf", "=".join(pair))]
    as_on_kubernetes = ("driver", *land[2:], *conf, "local:///app/__main__.py", "pipeline", *land[:2])
    try:
        for start in (land, as_on_kubernetes):
            printed = stack.run(
                *("docker", "run", "--rm", "--network", f"{stack.project}_default"),
                *("--read-only", "--tmpfs", "/tmp:exec", "--tmpfs", "/lake", "--cap-drop", "ALL"),
                *(option for pair in settings.items() for option in ("-e", "=".join(pair))),
                *(image, *start),
            )
            # spark-submit sends stderr to stdout as well; the result is last.
            result = "{" + f"\n{printed}".rpartition("\n{\n")[2]
            assert json.loads(result)["rows"] >= ENOUGH_FOR_SPARK
    finally:
        stack.run("docker", "rmi", "--force", image)


def test_the_worker_runs_without_privileges(stack: Stack) -> None:
    assert stack.compose("exec", "-T", "worker", "id", "-u") == "10001"
    capabilities = stack.compose("exec", "-T", "worker", "grep", "CapBnd", "/proc/self/status")
    assert int(capabilities.split()[1], 16) == 0


async def test_the_commands_of_the_document_send_traffic_and_show_it(stack: Stack) -> None:
    _, link, traffic, depth, *_ = [
        shlex.split(command.text)[2:] for command in commands("docs/how-to/deploying.md", "Docker Compose")
    ]
    token = (ROOT / "deploy" / "admin-token").read_text().strip()
    assert f"/#token={token}" in stack.compose(*link)
    before = await stored(stack, "SEA_EVENTS")
    stack.compose(*traffic)
    await eventually(lambda: stack.psql(OPEN) == "0", within=60, what="all events published")
    assert await stored(stack, "SEA_EVENTS") == before + 1000
    assert "outbox" in stack.compose(depth[0], "-T", *depth[1:])
