"""``pipeline land|archive|reconcile|replay|drain|report|erase``: the jobs on Spark."""

import typer

from sea_mq_worker.cli.pipeline import archive, drain, erase, land, reconcile, replay, report

app = typer.Typer(
    help="Run data jobs over the same events: land, archive, reconcile, replay, drain, report, erase.",
    no_args_is_help=True,
)
app.command("archive")(archive.archive)
app.command("drain")(drain.drain)
app.command("erase")(erase.erase)
app.command("land")(land.land)
app.command("reconcile")(reconcile.reconcile)
app.command("replay")(replay.replay)
app.command("report")(report.report)
