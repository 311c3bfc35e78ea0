"""Common parts of the pipeline's commands: options, the Spark session, progress, exit codes."""

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.support import EXIT_CONTRACT, EXIT_FAILED, EXIT_USAGE, abort, print_json, settings_for
from sea_mq_worker.resources import install_hint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.settings import Settings

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        "--remote",
        help="Spark master in the form of spark-submit, or a Spark Connect server as sc://host:15002"
        " (default: the configured master, or local[*]).",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Set a Spark property; may be repeated."),
]
LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        envvar="SEA_MQ_PIPELINE_LAKE",
        help="Lake: a folder, or an object store as s3://bucket/path (default: SEA_MQ_PIPELINE_LAKE).",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing; print the planned changes.")]


@contextmanager
def job_settings(*needs: str) -> "Iterator[Settings]":
    """Yield the settings of a job; exit with the code for an error of the block, or if Spark is missing."""
    settings = settings_for(*needs)
    try:
        import sea_mq_worker.pipeline.session  # noqa: F401 - imports all packages that the jobs need
    except ImportError as error:
        missing = f"`pipeline` needs {error.name}: {install_hint('spark,spark-java')}"
        abort(missing if error.name else str(error), EXIT_CONTRACT)
    from sea_mq_worker.errors import ContractError, WorkerError
    from sea_mq_worker.settings import SettingsError

    try:
        yield settings
    except SettingsError as error:
        abort(str(error), EXIT_USAGE)
    except ContractError as error:
        abort(str(error), EXIT_CONTRACT)
    except WorkerError as error:
        abort(str(error), EXIT_FAILED)


@contextmanager
def open_spark(
    name: str, *, master: str | None, conf: Collection[str] | None, java_options: str = ""
) -> "Iterator[SparkSession]":
    """Yield a new Spark session, see ``spark_session``; print its stages' progress, and end it on signals."""
    from sea_mq_worker.pipeline.session import spark_session
    from sea_mq_worker.pipeline.signals import leaving_on_signals
    from sea_mq_worker.pipeline.stage_progress import stage_progress

    pairs = [text.partition("=") for text in conf or ()]
    if wrong := [key for key, equals, _ in pairs if not (key and equals)]:
        abort(f"--conf {wrong[0]}: expected KEY=VALUE", EXIT_USAGE)
    title, properties = f"sea_mq_worker {name}", {key: value for key, _, value in pairs}
    with (
        leaving_on_signals(),
        spark_session(title, master=master, conf=properties, java_options=java_options) as spark,
        stage_progress(spark, print_progress),
    ):
        yield spark


def check_period(since: datetime | None, until: datetime | None) -> None:
    """Exit if a period has not begun, or ends before it begins: its result would be empty and look good."""
    if since and since >= (until or datetime.now(UTC)):
        abort("--since: must be past, and earlier than --until", EXIT_USAGE)


def required_lake(given: str | None) -> str:
    """Return the lake of a job that needs one; exit if none is configured."""
    lake = given or settings_for().pipeline_lake
    return lake or abort("SEA_MQ_PIPELINE_LAKE: is required, or --lake", EXIT_USAGE)


def lake_to_read(given: str | None, settings: "Settings") -> str | None:
    """Return the lake that a job reads in addition to the tables, after a check; None: none is configured."""
    from sea_mq_worker.pipeline.lake.table import check_lake

    if lake := given or settings.pipeline_lake:
        check_lake(lake)
    return lake or None


def print_progress(text: str) -> None:
    """Print progress to stderr, so that stdout contains only the result."""
    typer.echo(text, err=True)
    sys.stderr.flush()


def print_result(result: object, text: str, *, json: bool) -> None:
    """Print a result as JSON for programs, or as text for people."""
    print_json(result) if json else typer.echo(text)
