"""The command ``pipeline report``: write one HTML file about the traffic of outbox and inbox."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.pipeline.support import (
    ConfOption,
    LakeOption,
    MasterOption,
    check_period,
    job_settings,
    lake_to_read,
    open_spark,
    print_progress,
)
from sea_mq_worker.cli.support import EXIT_USAGE, JsonOption, SinceOption, UntilOption, abort, print_json

if TYPE_CHECKING:
    from sea_mq_worker.pipeline.jobs.report.model import Report


def report(
    *,
    out: Annotated[
        Path, typer.Option("--out", help="File to write; an earlier report in this file is replaced.")
    ] = Path("report.html"),
    since: SinceOption = None,
    until: UntilOption = None,
    lake: LakeOption = None,
    title: Annotated[str | None, typer.Option("--title", help="Heading of the page.")] = None,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Write a page with plots of throughput, latency, retries, dead letters, largest keys and the backlog.

    The file needs no network and contains no payloads. With a lake, archived events count too. Dead letters
    are read from their stream, or from the inbox table if no NATS server is configured. With --json the
    figures are also printed.
    """
    check_period(since, until)
    _check_out(out)

    with job_settings("database_url") as settings:
        from sea_mq_worker.pipeline.jobs.report.job import report as report_
        from sea_mq_worker.pipeline.jobs.report.page import page, write_page

        where = lake_to_read(lake, settings)
        with open_spark("report", master=master, conf=conf) as spark:
            figures = report_(
                spark,
                settings,
                since=since,
                until=until,
                lake=where,
                on_progress=lambda text: print_progress(f"report: {text}"),
            )
            write_page(page(figures, title=title), out)
    if json:
        print_json(figures)
    else:
        _summarise(figures, out)


def _check_out(out: Path) -> None:
    from sea_mq_worker.pipeline.jobs.report.page import is_replaceable

    if not out.parent.is_dir():
        abort(f"--out: the folder {out.parent} does not exist", EXIT_USAGE)
    if not is_replaceable(out):
        abort(f"--out: {out} exists and is not a report; choose another name or move it away", EXIT_USAGE)


def _summarise(figures: "Report", out: Path) -> None:
    from sea_mq_worker.pipeline.jobs.report.findings import findings
    from sea_mq_worker.pipeline.jobs.report.formatting import printable

    totals = figures.totals
    typer.echo(
        f"{totals.written:,} events written, {totals.published:,} published; "
        f"{totals.received:,} messages received, {totals.processed:,} processed"
    )
    for finding in findings(figures):
        hint = f" See `{finding.command}`" if finding.command else ""
        typer.echo(f"{finding.level}: {printable(finding.text)}{hint}")
    typer.echo(f"report: {out.resolve()}")
