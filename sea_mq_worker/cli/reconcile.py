"""``pipeline reconcile`` and ``pipeline replay``: name the lost events, and publish events again."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from sea_mq_worker.cli.pipeline import (
    ConfOption,
    DryRunOption,
    LakeOption,
    MasterOption,
    check_period,
    job_session,
    print_progress,
    stopping,
)
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    EXIT_USAGE,
    ActorOption,
    JsonOption,
    ReasonOption,
    SinceOption,
    UntilOption,
    abort,
    moment,
    print_json,
    print_table,
)

_WITHOUT_YES_MAX = 10

# --- reconcile


_ADVICE: Mapping[str, str] = {
    "missing-in-stream": "publish them again by --requeue",
    "missing-in-inbox": "look at each by `where ID`, then publish them again by `outbox replay`",
    "altered": "compare row and message by `where ID`: one of them was changed",
    "unexpected": "find their publisher; only workers of this context may publish to the stream",
    "duplicated": "find their publisher; inboxes ignore the further copies",
    "out-of-order": "check that no other program publishes events of these keys",
    "dead": "find the reasons by `outbox summary` and `dlq summary`, then replay or redrive them",
    "late": "see by `pipeline report` when it was slow",
}
"""The operator's next step for each verdict that needs one."""

_LOSS = ("altered", "missing-in-inbox", "missing-in-stream")


def reconcile(
    *,
    lake: LakeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds after publishing or storing in which no ID is missing yet.")
    ] = 60.0,
    late: Annotated[
        float, typer.Option(min=0, help="Report a hop as late above this number of seconds.")
    ] = 60.0,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Write every ID with a verdict other than delivered to this new folder, as JSON lines"
            " (default: print 3 of each verdict, 20 by --json).",
        ),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERDICT",
            help=f"Exit 1 if an ID has this verdict; may be repeated (default: {', '.join(_LOSS)}).",
        ),
    ] = None,
    requeue: Annotated[
        bool,
        typer.Option("--requeue", help="Publish the events again that the stream lost; needs --reason."),
    ] = False,
    cap: Annotated[
        int, typer.Option(min=1, help="Put back no event if more than this many are lost.")
    ] = 1000,
    reason: Annotated[str, typer.Option(help="Reason for --requeue, kept in the audit records.")] = "",
    actor: ActorOption,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Compare outbox, stream and inbox ID by ID; exit 1 if an ID is lost or altered.

    The command checks for every event whether the stream contains it, and for every message of a consumer
    whether the inbox shows its effect. Verdicts: delivered, pending, dead, missing-in-stream,
    missing-in-inbox, altered, unexpected, duplicated, out-of-order, late, expired, pruned. With a lake,
    archived events and landed messages are compared, too. Without --requeue nothing is changed.
    """
    check_period(since, until)
    if requeue and not reason.strip():
        abort("--requeue changes rows: give a --reason for the audit records", EXIT_USAGE)
    if out and "://" not in out and Path(out).exists():
        abort(f"--out {out} already exists: name a new folder, so that results do not mix", EXIT_USAGE)
    wrong = tuple(fail_on or _LOSS)
    needs = ("database_url", "nats_url")
    with job_session("reconcile", *needs, lake=lake, master=master, conf=conf) as (spark, settings, where):
        from sea_mq_worker.pipeline.jobs import reconcile as job
        from sea_mq_worker.pipeline.verdicts import Verdict

        if unknown := [each for each in wrong if each not in {verdict.value for verdict in Verdict}]:
            abort(f"--fail-on {unknown[0]}: is no verdict", EXIT_USAGE)
        result = job.reconcile(
            spark,
            settings,
            lake=where,
            since=since,
            until=until,
            grace_seconds=grace,
            late_seconds=late,
            out=out,
            requeue=job.Requeue(actor, reason, cap, dry_run) if requeue else None,
            on_progress=print_progress,
        )
    _end_reconcile(result, wrong, json=json)


def _end_reconcile(result: Any, wrong: Collection[str], *, json: bool) -> None:
    failed = result.found(wrong)
    if json:
        print_json(replace(result, failed_on=sorted(wrong), failed=failed))
    else:
        _print_reconciliation(result)
    if failed:
        abort(f"{failed} findings of {', '.join(sorted(wrong))}", EXIT_FAILED)


def _print_reconciliation(result: Any) -> None:
    typer.echo("read " + ", ".join(f"{count:,} of {source}" for source, count in result.rows.items()))
    rows = [
        (hop.name, verdict, hop.verdicts.get(verdict, 0), count, " ".join(hop.examples.get(verdict, ())[:3]))
        for hop in result.hops
        for verdict, count in hop.findings.items()
    ]
    print_table(("hop", "verdict", "ids", "findings", "examples"), rows, empty="nothing to compare")
    for hop in result.hops:
        if took := hop.latency:
            typer.echo(
                f"{hop.name}: p50 {took.p50:.3f} s, p95 {took.p95:.3f} s, p99 {took.p99:.3f} s, "
                f"longest {took.longest:.3f} s"
            )
    for note in result.notes:
        typer.echo(note)
    if done := result.requeued:
        lost = done.lost - done.archived_count
        if done.capped:
            text = f"{lost} events are lost, more than --cap, so none was put back; check that the settings"
            text += " name the right broker, then raise --cap"
        else:
            text = (
                f"{lost} events would be put back" if done.dry_run else f"put back {done.replayed} of {lost}"
            )
        if done.archived_count:
            again = " ".join(["pipeline replay --reason TEXT", *(f"--id {each}" for each in done.archived)])
            text += f"; {done.archived_count} are only in the archive: run `{again}`"
            text += "" if done.archived_count == len(done.archived) else " for these; --out lists the others"
        typer.echo(text)
    for verdict, advice in _ADVICE.items():
        is_done = verdict == "missing-in-stream" and result.requeued
        if (count := result.found([verdict])) and not is_done:
            typer.echo(f"{count:,} {verdict}: {advice}")
    ids = sum(hop.ids for hop in result.hops)
    if ids and not result.found(_ADVICE):
        unknown = result.found(["expired", "pruned"])
        more = f"; {unknown:,} more are expired or pruned, so nothing is proven about them"
        typer.echo(f"all {ids - unknown:,} accounted for{more if unknown else ''}")


# --- replay


def _time(text: str) -> str:
    """Check a time, and keep the operator's words: an interrupted replay is found by them on another day."""
    moment(text)
    return text


def _time_option(help_: str) -> Any:
    return typer.Option(parser=_time, metavar="TIME", help=help_)


_States = Annotated[
    list[str] | None, typer.Option(metavar="PUBLISHED|DEAD", help="State; may be repeated (default: both).")
]
_IdsFile = Annotated[
    Path | None, typer.Option(help="File with one event ID per line.", exists=True, dir_okay=False)
]
_Restart = Annotated[
    bool, typer.Option("--restart", help="Begin from the start, although an earlier run was interrupted.")
]
_Yes = Annotated[
    bool, typer.Option("--yes", help=f"Confirm a replay of more than {_WITHOUT_YES_MAX} events.")
]


def replay(
    *,
    state: _States = None,
    type_: Annotated[list[str] | None, typer.Option("--type", help="Event type; may be repeated.")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="Ordering key; may be repeated.")] = None,
    since: Annotated[str | None, _time_option("Select events created from this time on.")] = None,
    until: Annotated[str | None, _time_option("Select events created before this time.")] = None,
    published_since: Annotated[
        str | None, _time_option("Select events last published from this time on.")
    ] = None,
    published_until: Annotated[
        str | None, _time_option("Select events last published before this time.")
    ] = None,
    ids: Annotated[list[UUID] | None, typer.Option("--id", help="Event ID; may be repeated.")] = None,
    ids_file: _IdsFile = None,
    reason: ReasonOption,
    actor: ActorOption,
    lake: LakeOption = None,
    cap: Annotated[int, typer.Option(min=1, help="Replay no event if more than this many match.")] = 1000,
    per_second: Annotated[
        int, typer.Option(min=1, help="Put back at most this many events a second.")
    ] = 1000,
    restart: _Restart = False,
    dry_run: DryRunOption = False,
    yes: _Yes = False,
    json: JsonOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Publish PUBLISHED or DEAD events again, including archived ones, in the order of each ordering key.

    The events keep their IDs. They wait until the earlier copies have left the stream's deduplication window.
    After a crash or a stop, the same command continues the replay. Exit code 0: all events are put back; 1:
    some are not.
    """
    times = {"published_since": published_since, "published_until": published_until}
    words = {name: text for name, text in ({"since": since, "until": until} | times).items() if text}
    if not (state or type_ or key or words or ids or ids_file):
        abort("choose events by --id, --ids-file, --type, --key, --state or a time", EXIT_USAGE)
    if wrong := [each for each in state or () if each not in {"PUBLISHED", "DEAD"}]:
        abort(f"--state {wrong[0]}: expected PUBLISHED or DEAD", EXIT_USAGE)
    chosen: dict[str, Any] = {
        "ids": tuple({*(ids or ()), *_read_ids(ids_file)}),
        "event_types": tuple(type_ or ()),
    }
    needed: dict[str, Any] = {"lake": lake, "master": master, "conf": conf}
    with job_session("replay", "database_url", **needed) as (spark, settings, where):
        from sea_mq_worker.pipeline.jobs import replay as job

        moments: dict[str, Any] = {name: moment(text) for name, text in words.items()}
        selection = job.Selection(
            states=tuple(one for one in job.TERMINAL if one in (state or job.TERMINAL)),
            ordering_keys=tuple(key or ()),
            words=tuple(words.items()),
            **chosen,
            **moments,
        )
        with stopping() as stop:
            result = job.replay(
                spark,
                settings,
                selection,
                lake=where,
                actor=actor,
                reason=reason,
                per_second=per_second,
                restart=restart,
                dry_run=dry_run,
                cap=cap if yes or dry_run else min(cap, _WITHOUT_YES_MAX),
                stop=stop,
                on_progress=print_progress,
            )
    print_json(result) if json else _print_replay(result)
    if not dry_run:
        _exit_unless_complete(result, cap=cap, yes=yes)


def _exit_unless_complete(result: Any, *, cap: int, yes: bool) -> None:
    if result.matched > cap:
        text = f"{result.matched:,} events match, more than {cap:,}; narrow the filters, or raise --cap"
        abort(text, EXIT_USAGE)
    if result.matched > _WITHOUT_YES_MAX and not yes:
        abort(f"{result.matched:,} events match; check them with --dry-run, then add --yes", EXIT_USAGE)
    if result.skipped or result.stopped:
        raise typer.Exit(EXIT_FAILED)


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


def _print_replay(result: Any) -> None:
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
