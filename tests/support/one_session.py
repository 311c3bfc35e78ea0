"""Runs commands of the pipeline in one Spark session, because its start takes longer than most commands.

The first argument is the session's kind: ``here``, or ``connect`` for a Spark Connect server. Each
other one is a command as one types it, ``python -m sea_mq_worker`` in front.
"""

import shlex
import sys
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path

from typer.testing import CliRunner

from sea_mq_worker.cli import app
from sea_mq_worker.pipeline import session
from tests.support.spark_cluster import connect_server

if __name__ == "__main__":
    kind, *commands = sys.argv[1:]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        master = stack.enter_context(connect_server(folder)) if kind == "connect" else None
        conf = {"spark.sql.shuffle.partitions": "2"}
        spark = stack.enter_context(session.spark_session("tests", master=master, conf=conf))
        session.spark_session = lambda *_, **__: nullcontext(spark)  # type: ignore[assignment]
        for command in commands:
            ended = CliRunner().invoke(app, shlex.split(command.removeprefix("python -m sea_mq_worker ")))
            sys.stderr.write(ended.stderr)
            sys.stdout.write(ended.stdout)
            if ended.exit_code:
                sys.exit(f"{command}: {ended.exit_code} {ended.exception!r}")
