"""The examples of docs/how-to/lake.md read a landed lake, and their schedules run the worker's commands."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import duckdb
import pytest
import pytest_asyncio

from tests.pipeline.jetstream_support import Published, Stream
from tests.pipeline.landing import Lake, event
from tests.support.documents import ROOT, commands, shell
from tests.support.programs import own_programs, refused

DOCUMENT = "docs/how-to/lake.md"
EXAMPLES = ROOT / "examples" / "lake"
ORDERS = 30
TOTAL = sum(range(ORDERS))


def order(context: str, number: int) -> Published:
    made = event(context, number)
    headers = {**made.headers, "ce-type": "order.created"}
    return Published(f"{context}.event.order.created.v1", headers, json.dumps({"total": number}).encode())


@pytest_asyncio.fixture
async def landed(stream: Stream, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Path:
    await stream.publish(order(stream.name, number) for number in range(ORDERS))
    await lake.land(stream.name)
    monkeypatch.setenv("SEA_MQ_STREAM", stream.name)
    monkeypatch.setenv("SEA_MQ_PIPELINE_LAKE", str(lake.folder))
    return lake.folder


def test_duckdb_and_polars_read_the_lake(landed: Path) -> None:
    of_duckdb, of_polars = (
        shell(command.text.removesuffix("lake") + str(landed))
        for command in commands(DOCUMENT)
        if "/with_" in command.text
    )
    assert "order.created" in of_duckdb
    assert f" {ORDERS} " in of_duckdb
    assert f" {ORDERS - 1} " in of_duckdb
    assert f" {ORDERS} " in of_polars
    assert f" {TOTAL}.0 " in of_polars


@pytest.mark.long
def test_dbt_and_dagster_run_in_an_environment_of_their_own(landed: Path, tmp_path: Path) -> None:
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    shutil.copytree(EXAMPLES, tmp_path / "examples" / "lake")
    install, dbt, dagster = (command.text for command in commands(DOCUMENT) if "/with_" not in command.text)
    shell(install, tmp_path)
    own = {
        "PATH": os.pathsep.join(
            [str(tmp_path / "tools" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        "DAGSTER_HOME": str(tmp_path),
    }
    shell(dbt.replace("/srv/lake", str(landed)), tmp_path, **own)
    with duckdb.connect(tmp_path / "examples" / "lake" / "dbt" / "sea_lake.duckdb") as connection:
        assert connection.sql("SELECT sum(orders), sum(total) FROM daily_orders").fetchall() == [
            (ORDERS, TOTAL)
        ]
    shell(dagster, tmp_path, **own)


def test_the_crontab_and_the_unit_land(landed: Path, tmp_path: Path) -> None:
    lines = (EXAMPLES / "crontab").read_text().splitlines()
    land, archive = (line.split(maxsplit=5)[5] for line in lines if line[0] in "*0123456789")
    [unit] = re.findall(r"^ExecStart=(.*)$", (EXAMPLES / "sea-mq-land.service").read_text(), re.MULTILINE)
    for command in (land, unit):
        here = command.replace("/opt/sea-mq-worker/bin/python", sys.executable)
        shell(re.sub("/run/lock|/var/lib/node_exporter", str(tmp_path), here), tmp_path)
    assert "sea_mq_pipeline_last_success" in (tmp_path / "land.prom").read_text()
    [(module, words)] = own_programs(archive)
    assert refused(module, words) == ""


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd is here")
def test_systemd_accepts_the_timer_and_its_service(tmp_path: Path) -> None:
    for path in EXAMPLES.glob("sea-mq-land.*"):
        text = path.read_text().replace("/opt/sea-mq-worker/bin/python", sys.executable)
        (tmp_path / path.name).write_text(text)
    assert shell("systemd-analyze verify --man=no ./sea-mq-land.timer ./sea-mq-land.service", tmp_path) == ""
