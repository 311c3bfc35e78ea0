"""The command ``pipeline erase``: delete chosen events everywhere, for good."""

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sea_mq_worker.cli.pipeline.support import (
    DryRunOption,
    LakeOption,
    job_settings,
    print_result,
    required_lake,
)
from sea_mq_worker.cli.support import (
    EXIT_FAILED,
    EXIT_USAGE,
    ActorOption,
    JsonOption,
    ReasonOption,
    YesOption,
    abort,
    confirm,
    filled,
)

if TYPE_CHECKING:
    from sea_mq_worker.pipeline.jobs.erase.job import EraseResult


def _message_id(text: str) -> str:
    """Return a UUID as the lake has it; any other ID unchanged."""
    filled(text)
    try:
        return str(UUID(text))
    except ValueError:
        return text


IdsOption = Annotated[
    list[str] | None,
    typer.Option("--id", parser=_message_id, metavar="ID", help="Message ID; may be repeated."),
]
AggregateOption = Annotated[
    str | None,
    typer.Option("--aggregate", metavar="TYPE/ID", help="All events of this aggregate.", callback=filled),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="All events with this ordering key or partition key.", callback=filled),
]
StreamOption = Annotated[
    bool,
    typer.Option("--stream", help="Delete and overwrite the messages in the streams, too, by sequence."),
]


def erase(
    *,
    id: IdsOption = None,  # noqa: A002 - the option's name
    aggregate: AggregateOption = None,
    key: KeyOption = None,
    reason: ReasonOption,
    actor: ActorOption,
    stream: StreamOption = False,
    lake: LakeOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Delete chosen events from database and lake for good; `land` leaves them out from then on.

    An event that is still to be published or handled is refused by its ID. All older versions of the lake's
    tables are deleted as well, so stop `land` and long queries before. The audit keeps the reason and a hash
    of each ID. After an interruption, run the same command again. Exit code 1: an event was refused, or files
    remain that a run may be writing.
    """
    if not (id or aggregate or key):
        abort("choose events by --id, --aggregate or --key", EXIT_USAGE)
    ids, parts, where = frozenset(id or ()), _parts(aggregate), required_lake(lake)
    with job_settings("database_url", *(("nats_url",) if stream else ())) as settings:
        from sea_mq_worker.pipeline.jobs.erase.job import erase as erase_
        from sea_mq_worker.pipeline.jobs.erase.job import find
        from sea_mq_worker.pipeline.jobs.erase.lake_rows import EventChoice

        found = find(settings, where, EventChoice(ids=ids, aggregate=parts, key=key))
        result = found.result
        if not dry_run:
            confirm(result.events, "events will be erased for good", yes=yes)
            result = erase_(settings, where, found, actor=actor, reason=reason, streams=stream)
    print_result(result, _summary(result), json=json)
    if result.unused_files:
        text = (
            "a run may be writing these files, which no version of the lake contains; run again in an hour:"
        )
        abort("\n".join((text, *result.unused_files)), EXIT_FAILED)


def _parts(aggregate: str | None) -> tuple[str, str] | None:
    kind, _, identity = (aggregate or "").partition("/")
    if aggregate and not (kind and identity):
        abort(f"--aggregate {aggregate}: expected TYPE/ID", EXIT_USAGE)
    return (kind, identity) if aggregate else None


def _summary(result: "EraseResult") -> str:
    rows = ", ".join(f"{count:,} in {table}" for table, count in result.rows.items())
    text = f"{result.events:,} events {'would be ' if result.dry_run else ''}erased; rows: {rows}"
    return text if result.dry_run else f"{text}; messages of streams: {result.stream_messages:,}"
