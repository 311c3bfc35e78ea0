"""``dev``: the worker on servers of its own."""

from pathlib import Path
from typing import Annotated

import typer

from sea_mq_worker.cli.support import EXIT_CONTRACT, EXIT_FAILED, fail


def dev(
    folder: Annotated[
        Path | None, typer.Option(help="Where the servers keep their data; a temporary folder unless given.")
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="Sample events to send each way.")] = 1000,
    leave: Annotated[bool, typer.Option("--exit", help="Stop when the sample traffic has arrived.")] = False,
) -> None:
    """Show the worker on an embedded PostgreSQL and nats-server, with sample traffic; needs no settings."""
    import asyncio
    import os
    import tempfile

    try:
        from sea_mq_worker.cli.demo.show import perform
        from sea_mq_worker.embedded import ServerStartError
    except ImportError as error:
        fail(
            f"`dev` needs {error.name}: install it with pip install 'sea-mq-worker[embedded]'", EXIT_CONTRACT
        )
    for name in [name for name in os.environ if name.startswith("SEA_MQ_")]:
        del os.environ[name]
    try:
        if folder is not None:
            complete = asyncio.run(perform(folder.resolve(), events=events, leave=leave))
        else:
            with tempfile.TemporaryDirectory(
                prefix="sea_mq_worker-", ignore_cleanup_errors=True
            ) as temporary:
                complete = asyncio.run(perform(Path(temporary), events=events, leave=leave))
    except ServerStartError as error:
        fail(str(error), EXIT_FAILED)
    raise typer.Exit(0 if complete else EXIT_FAILED)
