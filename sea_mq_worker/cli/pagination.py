"""Pages of `outbox list` and `inbox list`, and how they go on."""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import typer

from sea_mq_worker.cli.support import echo_safe, print_page
from sea_mq_worker.cli.table_format import cell
from sea_mq_worker.domain.read_models import Page

AfterOption = Annotated[
    UUID | None, typer.Option("--after", metavar="ID", help="Behind this one, the next page.")
]
ReadOption = Annotated[
    int, typer.Option("--read", min=0, help="Look at so many, from the latest on; 0: at all.")
]


def print_list(page: Page[Any], columns: Sequence[str], *, what: str, json: bool) -> None:
    """Print a page, and what is behind it; where not all of ``what`` were looked at, say so."""
    if page.read is None or page.goes_on is None:
        print_page(page.rows, columns, json=json, empty=f"no {what}", more=page.goes_on)
        return
    print_page(page.rows, columns, json=json, empty=f"none of {page.read} {what}")
    reached = f"looked at {page.read} {what}, back to {cell(page.reached)}"
    echo_safe(f"{reached}: --after {page.goes_on} goes on, --read looks at more", err=True)
