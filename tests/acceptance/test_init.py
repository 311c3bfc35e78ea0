"""`init`: the files that it writes fit together, and it replaces nothing by itself."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.settings import ENV_PREFIX, load_settings


def init(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["init", str(folder), *options])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "new" / "bookings"
    written = init(folder, "--context", "bookings", "--consume", "payments", "--consume", "mail")
    assert written.exit_code == 0, written.output
    assert {str(file) for file in folder.iterdir()} <= set(written.stdout.splitlines())
    return folder


@pytest.fixture
def environment(project: Path) -> dict[str, str]:
    lines = (project / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line.startswith(ENV_PREFIX))


def test_the_settings_are_complete(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(needs=("database_url", "nats_url", "handler_url"))
    assert settings.stream == "BOOKINGS_EVENTS"
    assert [(each.stream, each.durable) for each in settings.consumers] == [
        ("PAYMENTS_EVENTS", "bookings__from_payments"),
        ("MAIL_EVENTS", "bookings__from_mail"),
    ]


def test_the_settings_lead_to_the_servers_of_the_compose_file(
    project: Path, environment: dict[str, str]
) -> None:
    services = yaml.safe_load((project / "docker-compose.yml").read_text())["services"]
    database = urlsplit(environment["SEA_MQ_DATABASE_URL"])
    assert database.password == services["postgres"]["environment"]["POSTGRES_PASSWORD"]
    broker = urlsplit(environment["SEA_MQ_NATS_URL"])
    for name, url in (("postgres", database), ("nats", broker)):
        assert services[name]["ports"] == [f"{url.hostname}:{url.port}:{url.port}"]


def test_a_file_that_exists_is_replaced_only_by_force(project: Path) -> None:
    mine = project / "service.py"
    mine.write_text("mine")
    (project / ".env").unlink()
    refused = init(project, "--context", "bookings")
    assert (refused.exit_code, str(mine) in refused.stderr) == (1, True)
    assert (mine.read_text(), (project / ".env").exists()) == ("mine", False)
    assert init(project, "--context", "bookings", "--force").exit_code == 0
    assert mine.read_text() != "mine"


@pytest.mark.parametrize("options", [["--context", "Bookings"], ["--context", "a", "--consume", "b.c"]])
def test_a_name_that_is_no_context_is_refused(tmp_path: Path, options: list[str]) -> None:
    assert init(tmp_path / "new", *options).exit_code == 2
    assert not (tmp_path / "new").exists()
