"""The container's promises hold without an engine: the worker writes nothing and owns nothing."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import asyncpg
import pytest
import yaml

from sea_mq_worker.producer import enqueue
from tests.support.builders import enqueueable
from tests.support.servers import Database
from tests.support.waiting import eventually
from tests.support.worker import apply_streams, deployment

ROOT = Path(__file__).parents[2]
NO_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
os.execv(sys.executable, [sys.executable, "-m", "sea_mq_worker"])
"""
PUBLISHED = "SELECT bool_and(state = 'PUBLISHED') FROM outbox_events"


@pytest.mark.fault("S16")
async def test_the_worker_writes_no_file_and_needs_no_home(
    database: Database, nats_url: str, names: str, tmp_path: Path
) -> None:
    """As on a read-only file system: any byte written to a file would end it with SIGXFSZ."""
    target = deployment(
        context=names, database_url=database.dsn, nats_url=nats_url, handler_url="http://127.0.0.1:1/"
    )
    await apply_streams(target, tmp_path / "streams")
    nowhere = {"HOME": "/nonexistent", "TMPDIR": "/nonexistent", "PATH": os.defpath}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", NO_FILES),
        env={**nowhere, **target.environment},
        cwd="/",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        own = await asyncpg.connect(database.dsn)
        async with own.transaction():
            await enqueue(own, enqueueable())
        await eventually(lambda: own.fetchval(PUBLISHED), what="the event is PUBLISHED")
        await own.close()
        process.send_signal(signal.SIGTERM)
        assert process.stdout
        await process.stdout.read()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.fault("S16")
def test_every_image_ends_as_a_user_without_rights() -> None:
    """By number, so that an engine can tell it is not root without looking into the image."""
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    run = {stage.split()[2]: stage for stage in stages if "ENTRYPOINT" in stage}
    assert set(run) == {"handler", "pipeline", "worker"}
    for stage in run.values():
        users = re.findall(r"^USER (\d+):(\d+)$", stage, flags=re.MULTILINE)
        assert len(users) == 1
        assert all(int(number) > 1000 for number in users[0])
        assert re.search(r"^ENTRYPOINT \[", stage, flags=re.MULTILINE), "a shell would swallow signals"


@pytest.mark.fault("S17")
def test_images_install_only_what_is_locked_by_hash() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    steps = re.findall(r"pip (?:\S+ )*?(?:install|wheel) [^&\n]*", text)
    assert len(steps) == 9
    unlocked = [step for step in steps if "--require-hashes" not in step]
    assert all("--no-deps" in step and re.search(r"/\*\.whl$|/src$", step.strip()) for step in unlocked)


@pytest.mark.fault("S16")
def test_secrets_of_the_composition_are_files() -> None:
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    worker = document["services"]["worker"]
    assert worker["secrets"] == ["admin_token"]
    given = {name for name in worker["environment"] if re.search("TOKEN|SEED|CREDS|KEY", name)}
    assert all(name.endswith("_FILE") for name in given)
