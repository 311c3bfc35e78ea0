"""``pipeline land|archive|reconcile|replay|drain|report``: the jobs on Spark."""

import typer

from sea_mq_worker.cli.pipeline import archive, drain, land, reconcile, replay, report

app = typer.Typer(
    help="Run Apache Spark jobs over the same events: land, archive, reconcile, replay, drain, report.",
    no_args_is_help=True,
)
app.command("archive")(archive.archive)
app.command("drain")(drain.drain)
app.command("land")(land.land)
app.command("reconcile")(reconcile.reconcile)
app.command("replay")(replay.replay)
app.command("report")(report.report)
