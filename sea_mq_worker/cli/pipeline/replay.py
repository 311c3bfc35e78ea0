"""The command ``pipeline replay``: publish events again, from the table and from the archive."""

import asyncio
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from sea_mq_worker.cli.pipeline.support import (
    ConfOption,
    DryRunOption,
    MasterOption,
    job_settings,
    lake_to_read,
    open_spark,
    print_progress,
)
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    EXIT_USAGE,
    ActorOption,
    JsonOption,
    ReasonOption,
    abort,
    moment,
    print_json,
    print_table,
)
from sea_mq_worker.outbox.event import EventState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.pipeline.jobs.replay.job import ReplayJobResult
    from sea_mq_worker.pipeline.jobs.replay.selection import Selection
    from sea_mq_worker.settings import Settings

_WITHOUT_YES_MAX = 10

LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        envvar="SEA_MQ_PIPELINE_LAKE",
        help="Lake whose archive contains events that left the table (default: the table only).",
    ),
]
CapOption = Annotated[int, typer.Option(min=1, help="Replay no event if more than this many match.")]
PaceOption = Annotated[int, typer.Option(min=1, help="Put back at most this many events a second.")]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="Begin from the start, although an earlier run was interrupted.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", help=f"Confirm a replay of more than {_WITHOUT_YES_MAX} events.")
]


class ReplayableState(StrEnum):
    """State of an event that can be replayed."""

    PUBLISHED = EventState.PUBLISHED
    DEAD = EventState.DEAD


def _time(text: str) -> str:
    """Check a time, and keep the operator's words: an interrupted replay is found by them on another day."""
    moment(text)
    return text


def _time_option(help_: str) -> Any:
    return typer.Option(parser=_time, metavar="TIME", help=help_)


StateOption = Annotated[
    list[ReplayableState] | None, typer.Option(help="State; may be repeated (default: both).")
]
TypesOption = Annotated[list[str] | None, typer.Option("--type", help="Event type; may be repeated.")]
KeysOption = Annotated[list[str] | None, typer.Option("--key", help="Ordering key; may be repeated.")]
CreatedSinceOption = Annotated[str | None, _time_option("Select events created from this time on.")]
CreatedUntilOption = Annotated[str | None, _time_option("Select events created before this time.")]
PublishedSinceOption = Annotated[str | None, _time_option("Select events last published from this time on.")]
PublishedUntilOption = Annotated[str | None, _time_option("Select events last published before this time.")]
IdsOption = Annotated[list[UUID] | None, typer.Option("--id", help="Event ID; may be repeated.")]
IdsFileOption = Annotated[
    Path | None, typer.Option(help="File with one event ID per line.", exists=True, dir_okay=False)
]


def _selection(
    state: list[ReplayableState] | None,
    types: list[str] | None,
    keys: list[str] | None,
    times: Mapping[str, str | None],
    *,
    ids: list[UUID] | None,
    ids_file: Path | None,
) -> "Selection":
    """Return the selection; exit if there is no option."""
    from sea_mq_worker.pipeline.jobs.replay.selection import TERMINAL, Selection

    words = {name: text for name, text in times.items() if text}
    if not (state or types or keys or words or ids or ids_file):
        abort("choose events by --id, --ids-file, --type, --key, --state or a time", EXIT_USAGE)
    moments: dict[str, Any] = {name: moment(text) for name, text in words.items()}
    return Selection(
        states=tuple(one for one in TERMINAL if one in (state or TERMINAL)),
        ids=tuple({*(ids or ()), *_read_ids(ids_file)}),
        event_types=tuple(types or ()),
        ordering_keys=tuple(keys or ()),
        words=tuple(words.items()),
        **moments,
    )


def replay(
    *,
    state: StateOption = None,
    type_: TypesOption = None,
    key: KeysOption = None,
    since: CreatedSinceOption = None,
    until: CreatedUntilOption = None,
    published_since: PublishedSinceOption = None,
    published_until: PublishedUntilOption = None,
    ids: IdsOption = None,
    ids_file: IdsFileOption = None,
    reason: ReasonOption,
    actor: ActorOption,
    lake: LakeOption = None,
    cap: CapOption = 1000,
    per_second: PaceOption = 1000,
    restart: RestartOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Publish PUBLISHED or DEAD events again, including archived ones, in the order of each ordering key.

    The events keep their IDs. They wait until the earlier copies have left the stream's deduplication window.
    After a crash or a stop, the same command continues the replay. Exit code 0: all events are put back; 1:
    some are not.
    """
    times = {
        "since": since,
        "until": until,
        "published_since": published_since,
        "published_until": published_until,
    }
    selection = _selection(state, type_, key, times, ids=ids, ids_file=ids_file)
    given: dict[str, Any] = {"actor": actor, "reason": reason, "per_second": per_second, "restart": restart}
    given |= {"dry_run": dry_run, "cap": cap if yes or dry_run else min(cap, _WITHOUT_YES_MAX)}
    with job_settings("database_url") as settings:
        given["lake"] = lake_to_read(lake, settings)
        with open_spark("replay", master=master, conf=conf) as spark:
            result = asyncio.run(_replay(spark, settings, selection, **given))
    if json:
        print_json(result)
    else:
        _print_result(result)
    if not dry_run:
        _exit_unless_complete(result, cap=cap, yes=yes)


async def _replay(
    spark: "SparkSession", settings: "Settings", selection: "Selection", **given: Any
) -> "ReplayJobResult":
    from sea_mq_worker.pipeline.jobs.replay.job import replay as replay_
    from sea_mq_worker.runtime.waiting import stop_on_signals

    stop = asyncio.Event()
    stop_on_signals(stop)
    return await replay_(spark, settings, selection, stop=stop, on_progress=print_progress, **given)


def _read_ids(path: Path | None) -> Iterator[UUID]:
    """Read one ID per line; ignore empty lines."""
    text = path.read_text(encoding="utf-8", errors="replace") if path else ""
    if path and not text.strip():
        abort(f"{path}: contains no IDs", EXIT_USAGE)
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield UUID(line.strip())
            except ValueError:
                abort(f"{path}:{number}: not an event ID", EXIT_USAGE)


def _exit_unless_complete(result: "ReplayJobResult", *, cap: int, yes: bool) -> None:
    if result.matched > cap:
        text = f"{result.matched:,} events match, more than {cap:,}; narrow the filters, or raise --cap"
        abort(text, EXIT_USAGE)
    if result.matched > _WITHOUT_YES_MAX and not yes:
        abort(f"{result.matched:,} events match; check them with --dry-run, then add --yes", EXIT_USAGE)
    if result.skipped or result.stopped:
        raise typer.Exit(EXIT_FAILED)


def _print_result(result: "ReplayJobResult") -> None:
    if result.resumed_after is not None:
        print_progress(
            f"continued an earlier run after seq {result.resumed_after}; --restart begins from the start"
        )
    if result.dry_run:
        rows = [(one.event_type, one.table, one.archive) for one in result.types]
        print_table(("event_type", "table", "archive"), rows, empty="no events match")
        typer.echo(f"{result.matched:,} events would be replayed")
    elif result.action is not None or not result.matched:
        typer.echo(f"replayed {result.replayed:,} of {result.matched:,} events")
    if result.stopped:
        print_progress("stopped; run the same command to continue")
    if result.skipped:
        text = "events were skipped, because they were gone or no longer PUBLISHED or DEAD"
        print_progress(f"{result.skipped:,} {text}: {', '.join(result.skipped_ids)}")
