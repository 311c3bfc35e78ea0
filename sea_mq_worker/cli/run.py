"""``run``: run the worker."""

import os
from pathlib import Path
from typing import Annotated

import typer

from sea_mq_worker.cli.support import EXIT_FAILED, EXIT_USAGE, abort, settings_for

_ALLOCATIONS_PER_COLLECTION = 20_000
"""Threshold of the garbage collector: batches are thousands of short-lived objects without cycles."""


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"sea-mq-worker {version('sea-mq-worker')}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", "-V", help="Print the version.", callback=_print_version, is_eager=True)
]


def _name_config(file: Path | None) -> None:
    if file is not None:
        os.environ["SEA_MQ_CONFIG"] = str(file)


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file with settings (default: the one that SEA_MQ_CONFIG names).",
        callback=_name_config,
    ),
]


UntilEmptyOption = Annotated[
    bool,
    typer.Option(
        "--until-empty",
        help="Only publish the outbox, beside running workers; end when none of the events that were due at "
        "the start can be published. Exit code 1: some are left, DEAD or waiting for a retry.",
    ),
]


def default(context: typer.Context, *, _version: VersionOption = False, _config: ConfigOption = None) -> None:
    """Run the worker if no command is given."""
    if context.invoked_subcommand is None:
        run()


def run(*, until_empty: UntilEmptyOption = False) -> None:
    """Run the worker: publish outbox events, and pass messages through the inbox to the handler."""
    import gc

    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, 20, 20)
    settings = settings_for("database_url", "nats_url")
    if until_empty and not settings.outbox_enabled:
        abort("--until-empty publishes the outbox: set SEA_MQ_OUTBOX_ENABLED=true", EXIT_USAGE)
    import asyncio

    import uvloop

    from sea_mq_worker.errors import WorkerError
    from sea_mq_worker.runtime.waiting import stop_on_signals
    from sea_mq_worker.settings import SettingsError
    from sea_mq_worker.worker import run_worker

    async def main() -> None:
        stop = asyncio.Event()
        stop_on_signals(stop)
        code = await run_worker(settings, stop, until_empty=until_empty)
        os._exit(code)  # closing the loop waits for name lookups, and opens descriptors

    try:
        uvloop.run(main())
    except SettingsError as error:
        abort(str(error), EXIT_USAGE)
    except WorkerError as error:
        abort(str(error), EXIT_FAILED)
