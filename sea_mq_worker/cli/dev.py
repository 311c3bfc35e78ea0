"""``dev``: run the worker on embedded servers."""

from pathlib import Path
from typing import Annotated

import typer

from sea_mq_worker.cli.support import EXIT_CONTRACT, EXIT_FAILED, EXIT_USAGE, abort, settings_for


def dev(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            show_default=False,
            help="Program and arguments to run after the sample traffic has arrived. Its environment has the "
            "SEA_MQ_* settings of the servers. The demo stops with the program's exit code.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Data folder of the servers (default: a temporary folder).")
    ] = None,
    events: Annotated[
        int, typer.Option(min=1, help="Number of sample events to send in each direction.")
    ] = 1000,
    leave: Annotated[bool, typer.Option("--exit", help="Stop when the sample traffic has arrived.")] = False,
    own: Annotated[
        bool,
        typer.Option(
            "--own",
            help="Keep the SEA_MQ_* settings of the environment, such as context, consumers and handler, and "
            "start neither the sample handler nor the sample traffic.",
        ),
    ] = False,
) -> None:
    """Run the worker on an embedded PostgreSQL and nats-server with sample traffic; needs no settings."""
    import tempfile

    sample_events = None if own else events
    _settle_environment(own=own)
    if folder is not None:
        raise typer.Exit(_run(command or [], folder.resolve(), events=sample_events, leave=leave))
    try:
        temporary = tempfile.TemporaryDirectory(prefix="sea_mq_worker-", ignore_cleanup_errors=True)
    except OSError as error:
        abort(f"there is no temporary folder ({error.strerror}): name a folder with --folder", EXIT_USAGE)
    with temporary as name:
        raise typer.Exit(_run(command or [], Path(name), events=sample_events, leave=leave))


def _settle_environment(*, own: bool) -> None:
    """Check the settings of the environment if they are to be kept, or remove them."""
    import os

    if own:
        settings_for()
        return
    for name in [name for name in os.environ if name.startswith("SEA_MQ_")]:
        del os.environ[name]


def _run(command: list[str], folder: Path, *, events: int | None, leave: bool) -> int:
    """Return the exit code; without ``events`` the context is the user's own."""
    import asyncio

    from sea_mq_worker.dev.demo import CommandStartError, check_command, run_demo
    from sea_mq_worker.dev.servers import ServerStartError
    from sea_mq_worker.errors import ContractError
    from sea_mq_worker.settings import SettingsError

    try:
        if command:
            check_command(command)
        return asyncio.run(run_demo(command, folder, events=events, leave=leave))
    except (CommandStartError, SettingsError) as error:
        abort(str(error), EXIT_USAGE)
    except ServerStartError as error:
        abort(str(error), EXIT_FAILED)
    except ContractError as error:
        abort(str(error), EXIT_CONTRACT)
