"""``pipeline land|archive|erase|report``: jobs on Spark, each a function call; see also ``reconcile``."""

import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from sea_mq_worker.cli.support import (
    EXIT_CONTRACT,
    EXIT_FAILED,
    EXIT_USAGE,
    ActorOption,
    JsonOption,
    ReasonOption,
    SinceOption,
    UntilOption,
    YesOption,
    abort,
    confirm,
    filled,
    moment,
    print_json,
    settings_for,
)
from sea_mq_worker.resources import install_hint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.settings import Settings

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
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
        help="Lake: a folder, an object store as s3://bucket/path, or a schema as catalog:main.events"
        " (default: SEA_MQ_PIPELINE_LAKE).",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing; print the planned changes.")]

app = typer.Typer(
    help="Run data jobs over the same events: land, archive, reconcile, replay, erase, report.",
    no_args_is_help=True,
)


def outputs() -> Mapping[str, object]:
    """Return the type of each command's JSON; docs/reference/cli.schema.json is generated from them."""
    from sea_mq_worker.pipeline.jobs.archive import ArchiveResult
    from sea_mq_worker.pipeline.jobs.erase import EraseResult
    from sea_mq_worker.pipeline.jobs.land import LandResult
    from sea_mq_worker.pipeline.jobs.reconcile import Reconciliation
    from sea_mq_worker.pipeline.jobs.replay import ReplayJobResult
    from sea_mq_worker.pipeline.jobs.report import Report

    return {
        "pipeline land": LandResult,
        "pipeline archive": ArchiveResult,
        "pipeline reconcile": Reconciliation,
        "pipeline replay": ReplayJobResult,
        "pipeline erase": EraseResult,
        "pipeline report": Report,
    }


@contextmanager
def job_session(
    name: str, *needs: str, lake: str | None, master: str | None, conf: Collection[str] | None
) -> "Iterator[tuple[SparkSession, Settings, str | None]]":
    """Yield a new session, the settings and the lake; exit with the code for an error of the block."""
    settings = settings_for(*needs)
    pairs = [text.partition("=") for text in conf or ()]
    if wrong := [key for key, equals, _ in pairs if not (key and equals)]:
        abort(f"--conf {wrong[0]}: expected KEY=VALUE", EXIT_USAGE)
    try:
        from sea_mq_worker.pipeline import register
        from sea_mq_worker.pipeline.session import spark_session
    except ImportError as error:
        abort(f"`pipeline` needs {error.name}: {install_hint('spark,spark-java')}", EXIT_CONTRACT)
    from sea_mq_worker.errors import ContractError, WorkerError
    from sea_mq_worker.settings import SettingsError

    where = lake or settings.pipeline_lake or None
    properties = {key: value for key, _, value in pairs}
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        with spark_session(
            f"sea_mq_worker {name}", master=master, conf=properties, lake=where or ""
        ) as spark:
            register(spark)
            yield spark, settings, where
    except SettingsError as error:
        abort(str(error), EXIT_USAGE)
    except ContractError as error:
        abort(str(error), EXIT_CONTRACT)
    except WorkerError as error:
        abort(str(error), EXIT_FAILED)


def required_lake(lake: str | None) -> str:
    lake = lake or settings_for().pipeline_lake
    return lake or abort("SEA_MQ_PIPELINE_LAKE: is required, or --lake", EXIT_USAGE)


def print_progress(text: str) -> None:
    """Print progress to stderr, so that stdout contains only the result."""
    typer.echo(text, err=True)
    sys.stderr.flush()


def print_result(result: object, text: str, *, json: bool) -> None:
    """Print a result as JSON for programs, or as text for people."""
    print_json(result) if json else typer.echo(text)


def check_period(since: datetime | None, until: datetime | None) -> None:
    """Exit if a period has not begun, or ends before it begins: its result would be empty and look good."""
    if since and since >= (until or datetime.now(UTC)):
        abort("--since: must be past, and earlier than --until", EXIT_USAGE)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets; the second one ends the process."""
    stop = threading.Event()

    def receive(number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    former = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, before in former.items():
            signal.signal(number, before)


# --- land


_Streams = Annotated[
    list[str] | None,
    typer.Option(help="Stream to land; may be repeated (default: SEA_MQ_STREAM and the consumers' streams)."),
]
_Every = Annotated[
    float | None,
    typer.Option(min=0.1, metavar="SECONDS", help="Land new messages at this interval until stopped."),
]
_BatchRows = Annotated[int, typer.Option(min=1, help="Commit at most this many messages at once.")]
_AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Continue if messages were deleted before they could be landed, and report them.",
    ),
]
_DedupeDays = Annotated[
    int | None,
    typer.Option(min=0, help="Search this many days back for copies of a message ID (default: no limit)."),
]
_LateSeconds = Annotated[
    float, typer.Option(min=0, help="Count an event as late if stored this many seconds after it occurred.")
]
_VacuumHours = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Delete files that no version of this many hours needs (default: 168 with --every, otherwise"
        " never); no query may run longer.",
    ),
]
_Schemas = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Also write a typed table for each JSON Schema of this folder, named <type>.v<version>.json.",
    ),
]
_Checkpoints = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER", help="Folder for the queries' checkpoints (default: _checkpoints in the lake)."
    ),
]
_Metrics = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus at this address.")
]


@app.command()
def land(
    *,
    lake: LakeOption = None,
    stream: _Streams = None,
    every: _Every = None,
    batch_rows: _BatchRows = 500_000,
    accept_loss: _AcceptLoss = False,
    dedupe_days: _DedupeDays = None,
    late_seconds: _LateSeconds = 60.0,
    vacuum_hours: _VacuumHours = None,
    schemas: _Schemas = None,
    checkpoints: _Checkpoints = None,
    metrics: _Metrics = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Copy streams into the lake, each message once: as received, as one row per event, and as counts.

    The command ends when all messages that the streams contained at its start are landed; with --every it
    goes on until SIGTERM or SIGINT. It may be killed at any time and run again. Exit code 1: messages were
    deleted before they could be landed, or another failure.
    """
    where = required_lake(lake)
    with job_session("land", "nats_url", lake=where, master=master, conf=conf) as (spark, settings, _):
        from sea_mq_worker.pipeline.jobs import land as job
        from sea_mq_worker.pipeline.jobs.typed import load_event_schemas

        if dry_run:
            found = job.remaining(spark, settings, lake=where, streams=stream)
            lines = [f"{each.stream}: {each.left:,} messages would be landed" for each in found.streams]
            print_result(found, "\n".join(lines), json=json)
            return
        with stopping() as stop:
            result = job.land(
                spark,
                settings,
                lake=where,
                streams=stream,
                every=every,
                schemas=load_event_schemas(schemas) if schemas else (),
                accept_loss=accept_loss,
                batch_rows=batch_rows,
                dedupe_days=dedupe_days,
                late_seconds=late_seconds,
                vacuum_hours=vacuum_hours or (168 if every else None),
                checkpoints=checkpoints,
                metrics=metrics,
                on_progress=print_progress,
                stop=stop,
            )
    for text in result.missing:
        print_progress(f"land: missing: {text}")
    lines = [
        f"{each.stream}: landed {each.rows:,} messages up to sequence {each.last_seq:,}, {each.left:,} left"
        for each in result.streams
    ]
    lines.append(f"{result.events:,} new events, {result.repeats:,} repeats, {result.seconds:,.1f} s")
    if result.differing:
        lines.append(f"{result.differing:,} repeats have another content than the first copy of their ID")
    if result.violations:
        lines.append(f"{result.violations:,} events violate their schema: typed/quarantine has the reasons")
    print_result(result, "\n".join(lines), json=json)


# --- archive


@app.command()
def archive(
    *,
    before: Annotated[
        datetime,
        typer.Option(
            "--before",
            parser=moment,
            metavar="TIME",
            help="Archive events published before this time: ISO 8601, or an age such as 30d.",
        ),
    ],
    reason: ReasonOption,
    actor: ActorOption,
    lake: LakeOption = None,
    per_second: Annotated[
        int, typer.Option(min=1, help="Delete at most about this many events a second, to spare the worker.")
    ] = 20_000,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Move published events from the outbox to the lake; delete only what PostgreSQL finds equal there.

    An event that is replayed in the meantime stays in the outbox. The command may run beside workers, and may
    be repeated after any interruption. Exit code 1: a server failed.
    """
    if before > datetime.now(UTC):
        abort("--before: must be past; otherwise events would leave on publication", EXIT_USAGE)
    where = required_lake(lake)
    with job_session("archive", "database_url", lake=where, master=master, conf=conf) as (spark, settings, _):
        from sea_mq_worker.pipeline.jobs import archive as job

        if dry_run:
            result = job.archivable(settings, before=before)
        else:
            result = job.archive(
                spark,
                settings,
                lake=where,
                before=before,
                actor=actor,
                reason=reason,
                per_second=per_second,
                on_progress=print_progress,
            )
    if result.dry_run:
        text = f"{result.found:,} events would be archived"
    else:
        text = f"archived {result.archived:,} events, deleted {result.deleted:,}"
        for partition in result.dropped:
            text += f"; dropped the empty partition {partition}"
        if result.stayed:
            text += f"; {result.stayed:,} stayed: they were replayed or changed in the meantime"
    if result.unfit:
        text += f"; {result.unfit:,} cannot be archived: they have times outside the years 2 to 9998"
    print_result(result, text, json=json)


# --- erase


def _message_id(text: str) -> str:
    """Return a UUID as the lake has it; any other ID unchanged."""
    filled(text)
    try:
        return str(UUID(text))
    except ValueError:
        return text


@app.command()
def erase(
    *,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", parser=_message_id, metavar="ID", help="Message ID; may be repeated."),
    ] = None,
    aggregate: Annotated[
        str | None,
        typer.Option("--aggregate", metavar="TYPE/ID", help="All events of this aggregate.", callback=filled),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="All events with this ordering key or partition key.", callback=filled),
    ] = None,
    reason: ReasonOption,
    actor: ActorOption,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Delete and overwrite the messages in the streams, too, by sequence."),
    ] = False,
    lake: LakeOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Delete chosen events from database and lake for good; `land` leaves them out from then on.

    An event that is still to be published or handled is refused by its ID. All older versions of the lake's
    tables are deleted as well, so stop `land` and long queries before. The audit keeps the reason and a hash
    of each ID. After an interruption, run the same command again. Exit code 1: an event was refused.
    """
    if not (ids or aggregate or key):
        abort("choose events by --id, --aggregate or --key", EXIT_USAGE)
    kind, _, identity = (aggregate or "").partition("/")
    if aggregate and not (kind and identity):
        abort(f"--aggregate {aggregate}: expected TYPE/ID", EXIT_USAGE)
    chosen: dict[str, Any] = {"ids": tuple(ids or ()), "aggregate": (kind, identity) if aggregate else None}
    chosen |= {"key": key, "lake": required_lake(lake)}
    needs = ("database_url", "nats_url") if stream else ("database_url",)
    with job_session("erase", *needs, lake=chosen["lake"], master=master, conf=conf) as (spark, settings, _):
        from sea_mq_worker.pipeline.jobs import erase as job

        result = job.find(spark, settings, **chosen)
        if not dry_run:
            confirm(result.events, "events will be erased for good", yes=yes)
            result = job.erase(spark, settings, **chosen, actor=actor, reason=reason, streams=stream)
    rows = ", ".join(f"{count:,} in {table}" for table, count in result.rows.items())
    text = f"{result.events:,} events {'would be ' if result.dry_run else ''}erased; rows: {rows}"
    if not result.dry_run:
        text += f"; messages of streams: {result.stream_messages:,}"
    print_result(result, text, json=json)


# --- report


@app.command()
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
    if not out.parent.is_dir():
        abort(f"--out: the folder {out.parent} does not exist", EXIT_USAGE)
    with job_session("report", "database_url", lake=lake, master=master, conf=conf) as (
        spark,
        settings,
        where,
    ):
        from sea_mq_worker.pipeline.jobs import report as job
        from sea_mq_worker.pipeline.jobs import report_page as html

        if not html.is_replaceable(out):
            abort(f"--out: {out} exists and is not a report; choose another name or move it away", EXIT_USAGE)
        figures = job.report(
            spark, settings, since=since, until=until, lake=where, on_progress=print_progress
        )
        html.write_page(html.page(figures, title=title), out)
    if json:
        print_json(figures)
        return
    totals = figures.totals
    typer.echo(
        f"{totals.written:,} events written, {totals.published:,} published; "
        f"{totals.received:,} messages received, {totals.processed:,} processed"
    )
    for finding in html.findings(figures):
        hint = f" See `{finding.command}`" if finding.command else ""
        typer.echo(f"{finding.level}: {html.printable(finding.text)}{hint}")
    typer.echo(f"report: {out.resolve()}")
