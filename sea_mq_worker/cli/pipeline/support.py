"""Common parts of the pipeline's commands: options, the Spark session, progress, exit codes."""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sea_mq_worker.cli.support import EXIT_CONTRACT, EXIT_FAILED, EXIT_USAGE, abort, settings_for
from sea_mq_worker.resources import install_hint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.settings import Settings

_INSTALL = install_hint("spark,spark-java")

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

_T = TypeVar("_T")


def run_job(
    name: str,
    job: "Callable[[SparkSession, Settings], _T]",
    *,
    needs: Collection[str],
    master: str | None,
    conf: Collection[str] | None,
    java_options: str = "",
) -> _T:
    """Run a job in a new Spark session, see ``spark_session``; translate its errors into exit codes."""
    properties = _properties(conf or ())
    settings = settings_for(*needs)
    with _exit_codes():
        from sea_mq_worker.pipeline.session import spark_session
        from sea_mq_worker.pipeline.signals import leaving_on_signals
        from sea_mq_worker.pipeline.stage_progress import stage_progress

        with (
            leaving_on_signals(),
            spark_session(
                f"sea_mq_worker {name}", master=master, conf=properties, java_options=java_options
            ) as spark,
            stage_progress(spark, print_progress),
        ):
            return job(spark, settings)


def run_without_spark(job: "Callable[[Settings], _T]", *, needs: Collection[str]) -> _T:
    """Run a job that needs no Spark session, such as a dry run; otherwise the same as ``run_job``."""
    settings = settings_for(*needs)
    with _exit_codes():
        return job(settings)


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Exit with the code for an error of the block, or if Spark is not installed."""
    try:
        import sea_mq_worker.pipeline.session  # noqa: F401 - imports all packages that the jobs need
    except ImportError as error:
        missing = f"`pipeline` needs {error.name}: {_INSTALL}"
        abort(missing if error.name else str(error), EXIT_CONTRACT)
    from sea_mq_worker.domain.errors import ContractError, WorkerError
    from sea_mq_worker.settings import SettingsError

    try:
        yield
    except SettingsError as error:
        abort(str(error), EXIT_USAGE)
    except ContractError as error:
        abort(str(error), EXIT_CONTRACT)
    except WorkerError as error:
        abort(str(error), EXIT_FAILED)


def required_lake(given: str | None) -> str:
    """Return the lake of a job that needs one; exit if none is configured."""
    lake = given or settings_for().pipeline_lake
    return lake or abort("SEA_MQ_PIPELINE_LAKE: is required, or --lake", EXIT_USAGE)


def lake_to_read(given: str | None, *, needs: Collection[str]) -> str | None:
    """Return the lake that a job reads in addition to the tables; None if none is configured.

    Exit before Spark starts if the lake does not exist.
    """

    def check(settings: "Settings") -> str | None:
        from sea_mq_worker.pipeline.lake.table import check_lake

        lake = given or settings.pipeline_lake or None
        if lake:
            check_lake(lake)
        return lake

    return run_without_spark(check, needs=needs)


def print_progress(text: str) -> None:
    """Print progress to stderr, so that stdout contains only the result."""
    typer.echo(text, err=True)
    sys.stderr.flush()


def _properties(given: Collection[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if wrong := [key for key, equals, _ in pairs if not (key and equals)]:
        abort(f"--conf {wrong[0]}: expected KEY=VALUE", EXIT_USAGE)
    return {key: value for key, _, value in pairs}
