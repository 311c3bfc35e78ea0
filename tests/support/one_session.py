"""Runs commands of the pipeline in one process, because a start of Spark takes longer than most commands.

The first argument is ``here`` for one Spark session, or ``connect`` for one Spark Connect server, whose
address replaces SERVER in the commands. Each other argument is a command as one types it, with or without
``python -m sea_mq_worker``.
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
        if kind == "connect":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(connect_server(folder))
            commands = [command.replace("SERVER", server) for command in commands]
        else:
            conf = {"spark.sql.shuffle.partitions": "2"}
            spark = stack.enter_context(session.spark_session("tests", conf=conf))
            session.spark_session = lambda *_, **__: nullcontext(spark)  # type: ignore[assignment]
        for command in commands:
            ended = CliRunner().invoke(app, shlex.split(command.removeprefix("python -m sea_mq_worker ")))
            sys.stderr.write(ended.stderr)
            sys.stdout.write(ended.stdout)
            if ended.exit_code:
                sys.exit(f"{command}: {ended.exit_code} {ended.exception!r}")
