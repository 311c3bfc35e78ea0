"""The examples of docs/how-to/lake.md read a landed lake, and their schedules run the worker's commands."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from pyspark.sql import SparkSession

from sea_mq_worker.pipeline.session import packages
from tests.pipeline.jetstream_support import Published, Stream
from tests.pipeline.landing import event, lake_at
from tests.support.documents import ROOT, commands, shell
from tests.support.programs import own_programs, refused
from tests.support.spark_cluster import DELTA, connect_server

DOCUMENT = "docs/how-to/lake.md"
EXAMPLES = ROOT / "examples" / "lake"
ORDERS = 30
TOTAL = sum(range(ORDERS))


def order(context: str, number: int) -> Published:
    made = event(context, number)
    headers = {**made.headers, "ce-type": "order.created"}
    return Published(f"{context}.event.order.created.v1", headers, json.dumps({"total": number}).encode())


def command(part: str) -> str:
    """Return the document's command with these words."""
    [found] = [each.text for each in commands(DOCUMENT) if part in each.text]
    return found


@pytest_asyncio.fixture
async def landed(
    spark: SparkSession, stream: Stream, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    lake = lake_at(spark, tmp_path / "lake", nats_url, monkeypatch)
    await stream.publish(order(stream.name, number) for number in range(ORDERS))
    await lake.land(stream.name)
    monkeypatch.setenv("SEA_MQ_STREAM", stream.name)
    monkeypatch.setenv("SEA_MQ_PIPELINE_LAKE", str(lake.folder))
    return lake.folder


def test_duckdb_polars_and_a_catalog_read_the_lake(spark: SparkSession, landed: Path) -> None:
    of_duckdb, of_polars = (
        shell(command(name).removesuffix("lake") + shlex.quote(str(landed)))
        for name in ("/with_duckdb", "/with_polars")
    )
    assert "order.created" in of_duckdb
    assert f" {ORDERS} " in of_duckdb
    assert f" {ORDERS - 1} " in of_duckdb
    assert f" {ORDERS} " in of_polars
    assert f" {TOTAL}.0 " in of_polars
    *statements, _ = (EXAMPLES / "catalog.sql").read_text().replace("/srv/lake", str(landed)).split(";\n")
    try:
        for statement in statements:
            spark.sql(statement)
        events = spark.sql("SELECT sum(events) AS events FROM sea.gold JOIN sea.silver USING (event_type)")
        assert events.first() == (ORDERS * ORDERS,)
    finally:
        spark.sql("DROP SCHEMA IF EXISTS sea CASCADE")
    assert (landed / "silver" / "_delta_log").is_dir()


@pytest.mark.long
def test_openlineage_names_the_tables_that_land_reads_and_writes(landed: Path, tmp_path: Path) -> None:
    told = tmp_path / "lineage.json"
    lines = (EXAMPLES / "openlineage.conf").read_text().replace("/tmp/lineage.json", str(told)).splitlines()
    options = " ".join(f"--conf {line}" for line in lines)
    lake = shlex.quote(str(tmp_path / "fresh"))
    shell(f"python -m sea_mq_worker pipeline land --master 'local[2]' --lake {lake} {options}")
    events: list[dict[str, Any]] = [*map(json.loads, told.read_text().splitlines())]
    written = {place["name"] for each in events for place in each["outputs"]}
    read = {place["name"] for each in events for place in each["inputs"]}
    tables = {table: str(tmp_path / "fresh" / table) for table in ("bronze", "silver", "gold")}
    assert set(tables.values()) <= written
    assert {tables["bronze"], tables["silver"]} <= read


@pytest.mark.long
def test_a_declarative_pipeline_follows_the_lake_by_spark_connect(landed: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "declarative", tmp_path / "examples" / "lake" / "declarative")
    spec = tmp_path / "examples" / "lake" / "declarative" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/srv/lake", str(landed)))
    with connect_server(tmp_path) as server:
        for _ in range(2):  # the second adds nothing
            shell(command("spark-pipelines").replace("sc://host:15002", server), tmp_path)
    days = pq.read_table(tmp_path / "tables" / "daily").to_pydict()
    assert (sum(days["orders"]), sum(days["total"])) == (ORDERS, TOTAL)


@pytest.mark.long
def test_dbt_and_airflow_run_in_an_environment_of_their_own(landed: Path, tmp_path: Path) -> None:
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    shutil.copytree(EXAMPLES, tmp_path / "examples" / "lake")
    shell(command("examples.lock"), tmp_path)
    own = {"PATH": os.pathsep.join([str(tmp_path), str(tmp_path / "tools" / "bin"), os.environ["PATH"]])}
    dbt = command("dbt build").replace("/srv/lake", shlex.quote(str(landed)))
    shell(dbt, tmp_path, **own, DBT_SEND_ANONYMOUS_USAGE_STATS="false")
    with duckdb.connect(tmp_path / "examples" / "lake" / "dbt" / "sea_lake.duckdb") as connection:
        assert connection.sql("SELECT sum(orders), sum(total) FROM daily_orders").fetchall() == [
            (ORDERS, TOTAL)
        ]

    submit = tmp_path / "spark-submit"
    submit.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/submitted\n')
    submit.chmod(0o755)
    airflow = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "examples" / "lake"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW_CONN_SPARK_DEFAULT": "spark://host:7077",
    }
    shell("airflow db migrate && airflow dags test sea_mq_land 2026-01-02", tmp_path, **own, **airflow)
    words = (tmp_path / "submitted").read_text().splitlines()
    assert words[:2] == ["--master", "spark://host:7077"]
    assert words[words.index("--packages") + 1] == ",".join(packages())
    assert DELTA.items() <= {tuple(word.split("=", 1)) for word in words if "=" in word}
    assert words.index("pipeline") == [word.endswith("__main__.py") for word in words].index(True) + 1
    assert refused("sea_mq_worker", words[words.index("pipeline") :]) == ""


def test_the_crontab_and_the_unit_run_commands_of_the_worker() -> None:
    lines = (EXAMPLES / "crontab").read_text().splitlines()
    units = re.findall(r"^ExecStart=(.*)$", (EXAMPLES / "sea-mq-land.service").read_text(), re.MULTILINE)
    scheduled = [
        re.sub(r"^flock -n \S+ ", "", line.split(maxsplit=5)[5]) for line in lines if line[0] in "*0123456789"
    ]
    found = [program for line in (*scheduled, *units) for program in own_programs(line)]
    assert [words[:2] for _, words in found] == [["pipeline", job] for job in ("land", "archive", "land")]
    assert [refused(module, words) for module, words in found] == [""] * 3


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd is here")
def test_systemd_accepts_the_timer_and_its_service(tmp_path: Path) -> None:
    for path in EXAMPLES.glob("sea-mq-land.*"):
        text = path.read_text().replace("/opt/sea-mq-worker/bin/python", sys.executable)
        (tmp_path / path.name).write_text(text)
    assert shell("systemd-analyze verify --man=no ./sea-mq-land.timer ./sea-mq-land.service", tmp_path) == ""
