"""``audit``: what operators did."""

from typing import Annotated

import typer

from sea_mq_worker.cli.arguments import LimitOption, SinceOption, UntilOption
from sea_mq_worker.cli.support import JsonOption, print_page, query_database
from sea_mq_worker.domain.read_models import AuditFilter

_COLUMNS = ("id", "at", "actor", "action", "outcome", "affected", "reason", "selection")


def audit(
    *,
    actor: Annotated[str | None, typer.Option("--actor", help="Part of who did it.")] = None,
    action: Annotated[
        str | None,
        typer.Option(
            "--action",
            help="replay, mark_dead, discard, redrive, purge, close, prune_outbox, prune_inbox,"
            " partition_outbox.",
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    after: Annotated[
        int | None, typer.Option("--after", metavar="ID", help="Behind this one, the next page.")
    ] = None,
    limit: LimitOption = 100,
    json: JsonOption = False,
) -> None:
    """List what operators did, the latest first: who, when, what came of it, to how many, and why.

    An outcome is done, refused, failed, or open while it is under way; what was cut short stays open.
    """
    which = AuditFilter(actor_like=actor, action=action, since=since, until=until, before_id=after)
    found = query_database(lambda tables: tables.audit(which, limit=limit))
    print_page(
        found, _COLUMNS, json=json, empty="no actions", more=found[-1].id if len(found) == limit else None
    )
