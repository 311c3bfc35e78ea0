"""docker-compose.yml keeps what it promises in its comments, without an engine to ask."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


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
