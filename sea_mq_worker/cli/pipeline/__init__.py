"""``pipeline land|archive|reconcile|replay|drain|report``: the jobs on Spark."""

import typer

app = typer.Typer(
    help="Jobs on Apache Spark over the same events: keep, prove, send again, drain, report.",
    no_args_is_help=True,
)
