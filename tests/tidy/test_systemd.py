"""deploy/systemd is a unit that systemd takes, with no more rights than the worker needs."""

import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sea_mq_worker.runtime.supervisor import ExitCode
from tests.support.documents import ROOT, commands
from tests.support.programs import own_programs, refused

DOCUMENT = "docs/how-to/deploying.md"
UNIT = ROOT / "deploy" / "systemd" / "sea-mq-worker@.service"
EXPOSURE_MAX = 1.5
"""Of 10, as `systemd-analyze security` counts; what is left is that it uses the network."""

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd is here")


def values(key: str) -> list[str]:
    """Return what the unit sets ``key`` to, in order."""
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for line in values("Environment") for pair in line.split())


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Path]:
    """The first instance, with a program that is here."""
    path = tmp_path / "sea-mq-worker@1.service"
    path.write_text(UNIT.read_text().replace("/opt/sea-mq-worker/bin/python", sys.executable))
    return path


@pytest.fixture
def scheduled(tmp_path: Path) -> list[Path]:
    """The timers and their services, with a program that is here."""
    files = [*UNIT.parent.glob("*.timer"), *UNIT.parent.glob("sea-mq-worker-*.service")]
    for file in files:
        text = file.read_text().replace("/opt/sea-mq-worker/bin/python", sys.executable)
        (tmp_path / file.name).write_text(text)
    return [tmp_path / file.name for file in files]


def analyzed(*arguments: object) -> str:
    done = subprocess.run(
        ["systemd-analyze", *map(str, arguments)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_systemd
def test_systemd_takes_units_and_timers_without_a_word(instance: Path, scheduled: list[Path]) -> None:
    assert len(scheduled) == 4
    assert analyzed("verify", "--man=no", instance, *scheduled) == ""


def test_a_timer_runs_a_command_of_the_worker_with_settings_of_its_own(scheduled: list[Path]) -> None:
    services = [file.read_text() for file in scheduled if file.suffix == ".service"]
    commands_ = [re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)[0] for text in services]
    assert [refused(*program) for command in commands_ for program in own_programs(command)] == ["", ""]
    settings = {re.findall(r"^LoadCredential=.*/(\S+)$", text, re.MULTILINE)[0] for text in services}
    assert settings == {"janitor.toml", "reader.toml"}


@needs_systemd
@pytest.mark.fault("S16")
def test_systemd_finds_it_little_exposed(instance: Path) -> None:
    reported = analyzed(
        "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX * 10:.0f}", instance
    )
    assert "Overall exposure level" in reported


@pytest.mark.fault("S16")
def test_the_unit_gives_up_what_the_worker_does_not_need() -> None:
    for key, value in (
        ("DynamicUser", "yes"),
        ("CapabilityBoundingSet", ""),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
    ):
        assert values(key) == [value], key


def test_systemd_waits_longer_than_the_worker_needs_to_stop() -> None:
    [timeout] = values("TimeoutStopSec")
    assert float(timeout) >= float(environment()["SEA_MQ_GRACE_SECONDS"]) + 10


def test_only_wrong_settings_are_not_started_again() -> None:
    assert (values("Restart"), values("RestartPreventExitStatus")) == (["always"], [str(ExitCode.USAGE)])
    assert float(values("RestartSec")[0]) >= 10


def test_secrets_come_by_a_credential_and_not_by_the_environment() -> None:
    [credential] = values("LoadCredential")
    name, _, path = credential.partition(":")
    assert environment()["SEA_MQ_CONFIG"] == f"%d/{name}"
    assert path in (ROOT / DOCUMENT).read_text()
    assert not {"SEA_MQ_DATABASE_URL", "SEA_MQ_NATS_URL"} & environment().keys()


@pytest.mark.skipif(not shutil.which("systemctl"), reason="no systemd is here")
def test_the_commands_of_the_document_install_the_unit(tmp_path: Path) -> None:
    """Below a folder: it takes the place of the machine's root, where no systemd runs."""
    (tmp_path / "etc" / "systemd" / "system").mkdir(parents=True)
    for name in ("worker.toml", "janitor.toml", "reader.toml"):
        (tmp_path / name).write_text("")
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    environment, *lines = (command.text for command in commands(DOCUMENT, "systemd"))
    for line in (line for line in lines if line.startswith(("install", "systemctl"))):
        below = re.sub(r" (?=/etc/)", f" {tmp_path}", line).replace("systemctl daemon-reload && ", "")
        below = below.replace("systemctl enable --now", f"systemctl --root={tmp_path} enable")
        subprocess.run(below, shell=True, cwd=tmp_path, check=True, capture_output=True, timeout=60)

    [credential] = values("LoadCredential")
    settings = tmp_path / credential.partition(":")[2].lstrip("/")
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    installed = tmp_path / "etc" / "systemd" / "system"
    assert (installed / UNIT.name).read_text() == UNIT.read_text()
    assert {path.name for path in installed.glob("*.wants/*")} == {
        "sea-mq-worker@1.service",
        "sea-mq-worker@2.service",
        "sea-mq-worker-doctor.timer",
        "sea-mq-worker-prune.timer",
    }
    [start] = values("ExecStart")
    assert start.startswith(f"{environment.split()[-1]}/bin/python ")
