"""The command ``pipeline reconcile``: prove that no message was lost, or name the lost ones."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from sea_mq_worker.cli.pipeline.support import (
    ConfOption,
    DryRunOption,
    LakeOption,
    MasterOption,
    check_period,
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
    SinceOption,
    UntilOption,
    abort,
    print_json,
    print_table,
)
from sea_mq_worker.pipeline.jobs.reconcile.result import (
    LOSS,
    ReconcileRequest,
    Reconciliation,
    Requeue,
    Requeued,
    Verdict,
)

_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
"""Java only passes packed rows on in this job, so its second compiler would cost more than it saves."""


ADVICE: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.MISSING_IN_STREAM: "publish them again by --requeue",
        Verdict.MISSING_IN_INBOX: "look at each by `where ID`, then publish them again by `outbox replay`",
        Verdict.ALTERED: "compare row and message by `where ID`: one of them was changed",
        Verdict.UNEXPECTED: "find their publisher; only workers of this context may publish to the stream",
        Verdict.DUPLICATED: "find their publisher; inboxes ignore the further copies",
        Verdict.OUT_OF_ORDER: "check that no other program publishes events of these keys",
        Verdict.DEAD: "find the reasons by `outbox summary` and `dlq summary`, then replay or redrive them",
        Verdict.LATE: "see by `pipeline report` when it was slow",
    }
)
"""The operator's next step for each verdict that needs one."""

GraceOption = Annotated[
    float, typer.Option(min=0, help="Seconds after publishing or storing in which no ID is missing yet.")
]
LateOption = Annotated[float, typer.Option(min=0, help="Report a hop as late above this number of seconds.")]
OutOption = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Write every ID with a verdict other than delivered to this new folder, as JSON lines"
        " (default: print 3 of each verdict, 20 by --json).",
    ),
]
FailOnOption = Annotated[
    list[Verdict] | None,
    typer.Option(
        metavar="VERDICT",
        help=f"Exit 1 if an ID has this verdict; may be repeated (default: {', '.join(sorted(LOSS))}).",
    ),
]
RequeueOption = Annotated[
    bool, typer.Option("--requeue", help="Publish the events again that the stream lost; needs --reason.")
]
CapOption = Annotated[int, typer.Option(min=1, help="Put back no event if more than this many are lost.")]
RequeueReasonOption = Annotated[str, typer.Option(help="Reason for --requeue, kept in the audit records.")]


def reconcile(
    *,
    lake: LakeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    grace: GraceOption = 60.0,
    late: LateOption = 60.0,
    out: OutOption = None,
    fail_on: FailOnOption = None,
    requeue: RequeueOption = False,
    cap: CapOption = 1000,
    reason: RequeueReasonOption = "",
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
    _check(since, until, out, reason=reason if requeue else None)
    with job_settings("database_url", "nats_url") as settings:
        from sea_mq_worker.pipeline.jobs.reconcile import job

        wanted = ReconcileRequest(
            lake=lake_to_read(lake, settings),
            since=since,
            until=until,
            grace_seconds=grace,
            late_seconds=late,
            out=out,
            requeue=Requeue(actor, reason, cap, dry_run) if requeue else None,
        )
        with open_spark("reconcile", master=master, conf=conf, java_options=_JAVA_OPTIONS) as spark:
            result = job.reconcile(spark, settings, wanted, on_progress=print_progress)
    _end(result, fail_on or LOSS, json=json)


def _check(since: datetime | None, until: datetime | None, out: str | None, *, reason: str | None) -> None:
    """Exit if the period is empty or the folder exists, or without a reason for a change; None: no change."""
    check_period(since, until)
    if reason is not None and not reason.strip():
        abort("--requeue changes rows: give a --reason for the audit records", EXIT_USAGE)
    if out and Path(out).exists():
        abort(f"--out {out} already exists: name a new folder, so that results do not mix", EXIT_USAGE)


def _end(result: Reconciliation, wrong: Collection[Verdict], *, json: bool) -> None:
    wrong = frozenset(wrong)
    failed = result.found(wrong)
    if json:
        print_json(asdict(result) | {"failed_on": sorted(wrong), "failed": failed})
    else:
        _print_result(result)
    if failed:
        abort(f"{failed} findings of {', '.join(sorted(wrong))}", EXIT_FAILED)


def _print_result(result: Reconciliation) -> None:
    typer.echo("read " + ", ".join(f"{count:,} of {source}" for source, count in result.rows.items()))
    rows = [
        (hop.name, verdict, hop.verdicts.get(verdict, 0), hop.findings[verdict], " ".join(named[:3]))
        for hop in result.hops
        for verdict in Verdict
        if verdict in hop.findings
        for named in [hop.examples.get(verdict, ())]
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
    if result.requeued:
        typer.echo(_requeue_text(result.requeued))
    for verdict, advice in ADVICE.items():
        is_done = verdict is Verdict.MISSING_IN_STREAM and result.requeued
        if (count := result.found([verdict])) and not is_done:
            typer.echo(f"{count:,} {verdict}: {advice}")
    ids = sum(hop.ids for hop in result.hops)
    if ids and not result.found(ADVICE):
        unknown = result.found([Verdict.EXPIRED, Verdict.PRUNED])
        more = f"; {unknown:,} more are expired or pruned, so nothing is proven about them"
        typer.echo(f"all {ids - unknown:,} accounted for{more if unknown else ''}")


def _requeue_text(done: Requeued) -> str:
    rows = done.lost - done.archived_count
    if done.capped:
        text = (
            f"{rows} events are lost, more than --cap, so none was put back; check that the settings name the"
            " right broker, then raise --cap"
        )
    elif done.dry_run:
        text = f"{rows} events would be put back"
    else:
        text = f"put back {done.replayed} of {rows} events"
    if done.archived_count:
        again = " ".join(["pipeline replay --reason TEXT", *(f"--id {each}" for each in done.archived)])
        text += f"; {done.archived_count} are only in the archive: run `{again}`"
        text += "" if done.archived_count == len(done.archived) else " for these; --out lists the others"
    return text
