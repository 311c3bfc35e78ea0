"""The command ``pipeline replay``: publish events again, from the table and from the archive."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from sea_mq_worker.cli.arguments import ActorOption, ReasonOption, moment
from sea_mq_worker.cli.pipeline.support import (
    ConfOption,
    DryRunOption,
    MasterOption,
    lake_to_read,
    print_progress,
    run_job,
)
from sea_mq_worker.cli.support import EXIT_FAILED, EXIT_USAGE, JsonOption, abort, print_json, print_table
from sea_mq_worker.domain.events import EventState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.pipeline.jobs.replay.filter import Selection
    from sea_mq_worker.pipeline.jobs.replay.job import ReplayJobResult
    from sea_mq_worker.settings import Settings

_WITHOUT_YES_MAX = 10
_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)


LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        envvar="SEA_MQ_PIPELINE_LAKE",
        help="Lake whose archive contains events that left the table (default: the table only).",
    ),
]
StatesOption = Annotated[
    list[EventState] | None,
    typer.Option("--state", help="PUBLISHED or DEAD; may be repeated (default: both)."),
]
TypesOption = Annotated[list[str] | None, typer.Option("--type", help="Event type; may be repeated.")]
KeysOption = Annotated[list[str] | None, typer.Option("--key", help="Ordering key; may be repeated.")]
IdsOption = Annotated[list[UUID] | None, typer.Option("--id", help="Event ID; may be repeated.")]
IdsFileOption = Annotated[
    Path | None, typer.Option(help="File with one event ID per line.", exists=True, dir_okay=False)
]
SinceOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Select events created from this time on.")
]
UntilOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Select events created before this time.")
]
PublishedSinceOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Select events last published from this time on.")
]
PublishedUntilOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Select events last published before this time.")
]
CapOption = Annotated[int, typer.Option(min=1, help="Replay no event if more than this many match.")]
PaceOption = Annotated[int, typer.Option(min=1, help="Put back at most this many events a second.")]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="Begin from the start, although an earlier run was interrupted.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", help=f"Confirm a replay of more than {_WITHOUT_YES_MAX} events.")
]


def replay(
    *,
    reason: ReasonOption,
    actor: ActorOption,
    lake: LakeOption = None,
    state: StatesOption = None,
    type_: TypesOption = None,
    key: KeysOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    published_since: PublishedSinceOption = None,
    published_until: PublishedUntilOption = None,
    ids: IdsOption = None,
    ids_file: IdsFileOption = None,
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
    selection = _selection(
        {"states": _replayable(state), "event_types": tuple(type_ or ()), "ordering_keys": tuple(key or ())},
        ids={*(ids or ()), *_read_ids(ids_file)},
        times={"since": since, "until": until}
        | {"published_since": published_since, "published_until": published_until},
    )
    result = _run(
        selection,
        {"actor": actor, "reason": reason, "per_second": per_second, "restart": restart, "dry_run": dry_run}
        | {"cap": cap if yes or dry_run else min(cap, _WITHOUT_YES_MAX)},
        lake=lake,
        master=master,
        conf=conf,
    )
    _print_result(result, dry_run=dry_run, json=json)
    _exit_unless_complete(result, cap=cap, dry_run=dry_run, yes=yes)


def _selection(given: Mapping[str, Any], *, ids: set[UUID], times: Mapping[str, str | None]) -> "Selection":
    from sea_mq_worker.pipeline.jobs.replay.filter import Selection

    selection = Selection(
        ids=tuple(ids),
        words=tuple((name, text) for name, text in times.items() if text),
        **{**given, **{name: _moment(name, text) for name, text in times.items()}},
    )
    if selection.is_empty:
        abort("choose events by --id, --ids-file, --type, --key, --state or a time", EXIT_USAGE)
    return selection


def _run(
    selection: "Selection",
    rules: Mapping[str, Any],
    *,
    lake: str | None,
    master: str | None,
    conf: list[str] | None,
) -> "ReplayJobResult":
    def job(spark: "SparkSession", settings: "Settings") -> "ReplayJobResult":
        import asyncio

        from sea_mq_worker.cli.signals import stop_on_signals
        from sea_mq_worker.pipeline.jobs.replay.filter import ReplayRules
        from sea_mq_worker.pipeline.jobs.replay.job import replay as replay_

        async def main() -> "ReplayJobResult":
            stop = asyncio.Event()
            stop_on_signals(stop)
            asked = ReplayRules(**rules)
            where = lake_to_read(lake, settings)
            return await replay_(
                spark, settings, selection, asked, lake=where, stop=stop, on_progress=_print_progress
            )

        return asyncio.run(main())

    return run_job("replay", job, needs=("database_url", "nats_url"), master=master, conf=conf)


def _replayable(state: list[EventState] | None) -> tuple[EventState, ...]:
    states = tuple(one for one in _TERMINAL if one in (state or _TERMINAL))
    if not set(state or ()) <= set(_TERMINAL):
        text = "--state: only PUBLISHED and DEAD events can be replayed; the others are still to be published"
        abort(text, EXIT_USAGE)
    return states


def _moment(name: str, text: str | None) -> datetime | None:
    try:
        return moment(text) if text else None
    except typer.BadParameter as error:
        abort(f"--{name.replace('_', '-')}: {error.message}", EXIT_USAGE)


def _read_ids(path: Path | None) -> list[UUID]:
    """Read one ID per line; ignore empty lines."""
    if path is None:
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                found.append(UUID(line.strip()))
            except ValueError:
                abort(f"{path}:{number}: not an event ID", EXIT_USAGE)
    if not found:
        abort(f"{path}: contains no IDs", EXIT_USAGE)
    return found


def _exit_unless_complete(result: "ReplayJobResult", *, cap: int, dry_run: bool, yes: bool) -> None:
    if result.matched > cap and not dry_run:
        text = f"{result.matched:,} events match, more than {cap:,}; narrow the filters, or raise --cap"
        abort(text, EXIT_USAGE)
    if result.matched > _WITHOUT_YES_MAX and not (dry_run or yes):
        abort(f"{result.matched:,} events match; check them with --dry-run, then add --yes", EXIT_USAGE)
    if result.skipped or result.stopped:
        raise typer.Exit(EXIT_FAILED)


def _print_progress(handled: int, matched: int, replayed: int) -> None:
    print_progress(f"replay: {handled:,} of {matched:,}, {replayed:,} put back")


def _print_result(result: "ReplayJobResult", *, dry_run: bool, json: bool) -> None:
    if json:
        print_json(asdict(result) | {"dry_run": dry_run})
        return
    if result.resumed_after is not None:
        print_progress(
            f"continued an earlier run after seq {result.resumed_after}; --restart begins from the start"
        )
    if dry_run:
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
