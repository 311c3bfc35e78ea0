"""Runs commands of the pipeline in one Spark session, because its start takes longer than most commands.

Each argument is a command as one types it, with or without ``python -m sea_mq_worker``.
"""

import shlex
import sys
from contextlib import nullcontext

from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.pipeline import session

if __name__ == "__main__":
    conf = {"spark.sql.shuffle.partitions": "2"}
    with session.spark_session("tests", conf=conf) as spark:
        session.spark_session = lambda *_, **__: nullcontext(spark)  # type: ignore[assignment]
        for command in sys.argv[1:]:
            ended = CliRunner().invoke(app, shlex.split(command.removeprefix("python -m sea_mq_worker ")))
            sys.stderr.write(ended.stderr)
            sys.stdout.write(ended.stdout)
            if ended.exit_code:
                sys.exit(f"{command}: {ended.exit_code} {ended.exception!r}")
