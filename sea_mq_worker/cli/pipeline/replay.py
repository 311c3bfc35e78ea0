"""``pipeline replay``: publish events again, from the table and from the archive."""

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
    run_job,
    say,
)
from sea_mq_worker.cli.support import EXIT_FAILED, EXIT_USAGE, JsonOption, abort, print_json, print_table
from sea_mq_worker.domain.events import EventState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sea_mq_worker.pipeline.jobs.replay.filter import Selection
    from sea_mq_worker.pipeline.jobs.replay.job import ReplayResult
    from sea_mq_worker.settings import Settings

_WITHOUT_YES_MAX = 10
_TERMINAL = (EventState.PUBLISHED, EventState.DEAD)


LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        envvar="SEA_MQ_PIPELINE_LAKE",
        help="The lake whose archive has what the table no longer has; none is asked unless given.",
    ),
]
StatesOption = Annotated[
    list[EventState] | None,
    typer.Option("--state", help="PUBLISHED or DEAD; both unless given. May be repeated."),
]
TypesOption = Annotated[list[str] | None, typer.Option("--type", help="Event type; may be repeated.")]
KeysOption = Annotated[list[str] | None, typer.Option("--key", help="Ordering key; may be repeated.")]
IdsOption = Annotated[list[UUID] | None, typer.Option("--id", help="Event id; may be repeated.")]
IdsFileOption = Annotated[
    Path | None, typer.Option(help="File with an event id on each line.", exists=True, dir_okay=False)
]
SinceOption = Annotated[str | None, typer.Option(metavar="TIME", help="Created at this time or later.")]
UntilOption = Annotated[str | None, typer.Option(metavar="TIME", help="Created before this time.")]
PublishedSinceOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Last published at this time or later.")
]
PublishedUntilOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Last published before this time.")
]
CapOption = Annotated[int, typer.Option(min=1, help="If more match, none is replayed.")]
PaceOption = Annotated[int, typer.Option(min=1, help="Pace: how many are put back a second.")]
AnewOption = Annotated[
    bool, typer.Option("--anew", help="Begin from the start although an earlier run was cut short.")
]
YesOption = Annotated[bool, typer.Option("--yes", help=f"Needed above {_WITHOUT_YES_MAX} events.")]


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
    anew: AnewOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Publish PUBLISHED or DEAD events again, those in the archive too, in order of each ordering key.

    They keep their ids, and wait until the stream's duplicate window has forgotten the earlier copies. The
    same command after a crash or a stop goes on where it was. Exit code 0: all are put back; 1: some are not.
    """
    selection = _selection(
        {"states": _replayable(state), "event_types": tuple(type_ or ()), "ordering_keys": tuple(key or ())},
        ids={*(ids or ()), *_read_ids(ids_file)},
        times={"since": since, "until": until}
        | {"published_since": published_since, "published_until": published_until},
    )
    result = _run(
        selection,
        {"actor": actor, "reason": reason, "per_second": per_second, "anew": anew, "dry_run": dry_run}
        | {"cap": cap if yes or dry_run else min(cap, _WITHOUT_YES_MAX)},
        lake=lake,
        master=master,
        conf=conf,
    )
    _tell(result, dry_run=dry_run, json=json)
    _judge(result, cap=cap, dry_run=dry_run, yes=yes)


def _selection(given: Mapping[str, Any], *, ids: set[UUID], times: Mapping[str, str | None]) -> "Selection":
    from sea_mq_worker.pipeline.jobs.replay.filter import Selection

    selection = Selection(
        ids=tuple(ids),
        words=tuple((name, text) for name, text in times.items() if text),
        **{**given, **{name: _moment(name, text) for name, text in times.items()}},
    )
    if selection.is_empty:
        abort("say which events: --id, --ids-file, --type, --key, --state, or a time", EXIT_USAGE)
    return selection


def _run(
    selection: "Selection",
    rules: Mapping[str, Any],
    *,
    lake: str | None,
    master: str | None,
    conf: list[str] | None,
) -> "ReplayResult":
    def job(spark: "SparkSession", settings: "Settings") -> "ReplayResult":
        import asyncio

        from sea_mq_worker.cli.signals import stop_on_signals
        from sea_mq_worker.pipeline.jobs.replay.filter import ReplayRules
        from sea_mq_worker.pipeline.jobs.replay.job import replay as replay_

        async def main() -> "ReplayResult":
            stop = asyncio.Event()
            stop_on_signals(stop)
            asked = ReplayRules(**rules)
            where = lake_to_read(lake, settings)
            return await replay_(
                spark, settings, selection, asked, lake=where, stop=stop, on_progress=_tell_progress
            )

        return asyncio.run(main())

    return run_job("replay", job, needs=("database_url", "nats_url"), master=master, conf=conf)


def _replayable(state: list[EventState] | None) -> tuple[EventState, ...]:
    states = tuple(one for one in _TERMINAL if one in (state or _TERMINAL))
    if not set(state or ()) <= set(_TERMINAL):
        text = "--state: only PUBLISHED and DEAD events can be replayed, the others are on their way"
        abort(text, EXIT_USAGE)
    return states


def _moment(name: str, text: str | None) -> datetime | None:
    try:
        return moment(text) if text else None
    except typer.BadParameter as error:
        abort(f"--{name.replace('_', '-')}: {error.message}", EXIT_USAGE)


def _read_ids(path: Path | None) -> list[UUID]:
    """Read ids, one a line; empty lines do not matter."""
    if path is None:
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                found.append(UUID(line.strip()))
            except ValueError:
                abort(f"{path}:{number}: not an event id", EXIT_USAGE)
    if not found:
        abort(f"{path}: holds no ids", EXIT_USAGE)
    return found


def _judge(result: "ReplayResult", *, cap: int, dry_run: bool, yes: bool) -> None:
    if result.matched > cap and not dry_run:
        text = f"{result.matched:,} events match, more than {cap:,}; narrow the filters, or raise --cap"
        abort(text, EXIT_USAGE)
    if result.matched > _WITHOUT_YES_MAX and not (dry_run or yes):
        abort(f"{result.matched:,} events match; look with --dry-run, then say --yes", EXIT_USAGE)
    if result.skipped or result.stopped:
        raise typer.Exit(EXIT_FAILED)


def _tell_progress(turns: int, matched: int, replayed: int) -> None:
    say(f"replay: {turns:,} of {matched:,}, {replayed:,} put back")


def _tell(result: "ReplayResult", *, dry_run: bool, json: bool) -> None:
    if json:
        print_json(asdict(result) | {"dry_run": dry_run})
        return
    if result.resumed_after is not None:
        say(f"goes on with an earlier run, behind seq {result.resumed_after} (--anew: from the start)")
    if dry_run:
        rows = [(one.event_type, one.table, one.archive) for one in result.types]
        print_table(("event_type", "table", "archive"), rows, empty="no events match")
        typer.echo(f"{result.matched:,} would be replayed")
    elif result.action is not None or not result.matched:
        typer.echo(f"replayed {result.replayed:,} of {result.matched:,}")
    if result.stopped:
        say("stopped; the same command goes on")
    if result.skipped:
        text = "were neither PUBLISHED nor DEAD any more, or not there, when their turn came"
        say(f"{result.skipped:,} {text}: {', '.join(result.skipped_ids)}")
