"""``pipeline land|archive|reconcile|replay|drain|report|erase|prepare``: the jobs on Spark."""

import typer

from sea_mq_worker.cli.pipeline import archive, drain, erase, land, reconcile, replay, report
from sea_mq_worker.cli.pipeline.support import job_settings, print_progress


def prepare() -> None:
    """Halve the time that Spark needs to start, by an archive of its Java classes (a minute, 200 MB).

    Run it once in each Python environment, and again after an update of Spark or Java. Every job uses the
    archive if it starts Java itself. Java ignores an archive that does not fit its version or Spark's.
    """
    with job_settings():
        from sea_mq_worker.pipeline.class_archive import write_archive
        from sea_mq_worker.pipeline.session import ARCHIVE
        from sea_mq_worker.pipeline.signals import leaving_on_signals

        with leaving_on_signals():
            write_archive(ARCHIVE, on_progress=print_progress)
    typer.echo(f"archive: {ARCHIVE} ({ARCHIVE.stat().st_size >> 20} MiB)")


app = typer.Typer(
    help="Run data jobs over the same events: land, archive, reconcile, replay, drain, report, erase.",
    no_args_is_help=True,
)
app.command("archive")(archive.archive)
app.command("drain")(drain.drain)
app.command("erase")(erase.erase)
app.command("land")(land.land)
app.command("prepare")(prepare)
app.command("reconcile")(reconcile.reconcile)
app.command("replay")(replay.replay)
app.command("report")(report.report)
