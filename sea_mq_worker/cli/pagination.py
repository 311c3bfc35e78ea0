"""Pages of `outbox list` and `inbox list`."""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import typer

from sea_mq_worker.cli.support import echo_safe, print_page
from sea_mq_worker.cli.table_format import cell
from sea_mq_worker.domain.read_models import Page

AfterOption = Annotated[
    UUID | None, typer.Option("--after", metavar="ID", help="Start the page after this ID.")
]
ReadOption = Annotated[
    int, typer.Option("--read", min=0, metavar="N", help="Read at most N rows, newest first (0: no limit).")
]


def print_list(page: Page[Any], columns: Sequence[str], *, what: str, json: bool) -> None:
    """Print a page, the start of the next one, and how many of ``what`` were read if not all."""
    if page.read is None or page.next_after is None:
        print_page(page.rows, columns, json=json, empty=f"no {what}", more=page.next_after)
        return
    print_page(page.rows, columns, json=json, empty=f"none of {page.read} {what}")
    echo_safe(
        f"read {page.read} {what}, back to {cell(page.reached)}: continue with --after {page.next_after}, "
        "or read more with --read",
        err=True,
    )
