"""``audit``: list operators' changes."""

from typing import Annotated

import typer

from sea_mq_worker.cli.arguments import LimitOption, SinceOption, UntilOption
from sea_mq_worker.cli.support import JsonOption, print_page, query_database
from sea_mq_worker.domain.filters import AuditFilter
from sea_mq_worker.domain.read_models import ActionName

_COLUMNS = ("id", "at", "actor", "login", "action", "outcome", "affected", "reason", "selection")


def audit(
    *,
    actor: Annotated[str | None, typer.Option("--actor", help="Part of the actor's name.")] = None,
    action: Annotated[ActionName | None, typer.Option("--action", help="Kind of change.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    after: Annotated[
        int | None, typer.Option("--after", metavar="ID", help="Start the page after this ID.")
    ] = None,
    limit: LimitOption = 100,
    json: JsonOption = False,
) -> None:
    """List operators' changes, newest first: time, actor, login, outcome, number of items, and reason.

    An outcome is done, refused, failed or open. A change is open while it runs, and stays open if it was
    interrupted.
    """
    which = AuditFilter(actor_like=actor, action=action, since=since, until=until, before_id=after)
    found = query_database(lambda tables: tables.audit(which, limit=limit))
    print_page(
        found, _COLUMNS, json=json, empty="no actions", more=found[-1].id if len(found) == limit else None
    )
