"""Image and composition keep their promises, without an engine to ask."""

import asyncio
import os
import re
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

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
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
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
    worker = SERVICES["worker"]
    assert worker["secrets"] == ["admin_token"]
    given = {name for name in worker["environment"] if re.search("TOKEN|SEED|CREDS|KEY", name)}
    assert all(name.endswith("_FILE") for name in given)


@pytest.mark.fault("S16")
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service


@pytest.mark.fault("S10")
@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_the_engine_waits_longer_than_the_worker_needs_to_stop() -> None:
    worker = SERVICES["worker"]
    grace = float(worker["environment"]["SEA_MQ_GRACE_SECONDS"])
    assert float(worker["stop_grace_period"].removesuffix("s")) > grace


def test_the_labels_of_the_image_are_those_of_the_package() -> None:
    labels = dict(re.findall(r'opencontainers\.image\.(\w+)="(.+?)"', (ROOT / "Dockerfile").read_text()))
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels == {
        "title": package["name"],
        "description": package["description"],
        "licenses": package["license"],
    }


def test_no_stage_before_the_workers_image_is_one_of_the_pipeline() -> None:
    """A builder may build every stage up to its target; the last stage is the target that nobody names."""
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = [name for _, name in stages]
    assert not [name for name in names[: names.index("worker")] if "pipeline" in name]
    assert stages[-1][0] == "worker"
    builds = [service["build"] for service in SERVICES.values() if "build" in service]
    assert {build["target"] for build in builds} == {"worker", "handler"}
    text = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert not [line for line in re.findall(r"docker build.*", text) if "--target" not in line]


def test_the_build_of_the_image_has_every_file_of_the_wheel() -> None:
    """The engine sends what `.dockerignore` names after `!`; the stage copies files or folders."""
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")]
    stage = (ROOT / "Dockerfile").read_text().partition("AS worker-build")[2].partition("\nFROM")[0]
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", stage, re.MULTILINE) for word in line.split()]
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [Path(path) for key in ("packages", "force-include", "sbom-files") for path in wheel[key]]
    for there in (sent, copied):
        assert [path for path in needed if not any(path.is_relative_to(each) for each in there)] == []
