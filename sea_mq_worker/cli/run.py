"""``run``, ``dev`` and ``doctor``: run the worker, run it on embedded servers, and find what is wrong."""

import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sea_mq_worker.cli.support import (
    EXIT_CONTRACT,
    EXIT_FAILED,
    EXIT_USAGE,
    JsonOption,
    abort,
    echo_safe,
    print_json,
    run_command,
    settings_for,
)

if TYPE_CHECKING:
    from sea_mq_worker.doctor.findings import Examination

_ALLOCATIONS_PER_COLLECTION = 20_000
"""Threshold of the garbage collector: batches are thousands of short-lived objects without cycles."""


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"sea-mq-worker {version('sea-mq-worker')}")
        raise typer.Exit


def _name_config(file: Path | None) -> None:
    if file is not None:
        os.environ["SEA_MQ_CONFIG"] = str(file)


VersionOption = Annotated[
    bool, typer.Option("--version", "-V", help="Print the version.", callback=_print_version, is_eager=True)
]
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
    import asyncio
    import tempfile
    from contextlib import nullcontext

    if own:
        settings_for()
    else:
        for name in [name for name in os.environ if name.startswith("SEA_MQ_")]:
            del os.environ[name]
    from sea_mq_worker.dev.demo import CommandStartError, check_command, run_demo
    from sea_mq_worker.dev.servers import ServerStartError
    from sea_mq_worker.errors import ContractError
    from sea_mq_worker.settings import SettingsError

    try:
        place = (
            tempfile.TemporaryDirectory(prefix="sea_mq_worker-", ignore_cleanup_errors=True)
            if folder is None
            else nullcontext(str(folder.resolve()))
        )
    except OSError as error:
        abort(f"there is no temporary folder ({error.strerror}): name a folder with --folder", EXIT_USAGE)
    with place as data:
        try:
            if command:
                check_command(command)
            sent = None if own else events
            code = asyncio.run(run_demo(command or [], Path(data), events=sent, leave=leave))
        except (CommandStartError, SettingsError) as error:
            abort(str(error), EXIT_USAGE)
        except ServerStartError as error:
            abort(str(error), EXIT_FAILED)
        except ContractError as error:
            abort(str(error), EXIT_CONTRACT)
    raise typer.Exit(code)


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings, too.")] = False,
    json: JsonOption = False,
) -> None:
    """Check database, streams, consumers, handler and how they fit together; exit 1 on errors."""
    from sea_mq_worker.doctor import examine

    seen = run_command(examine, needs=("database_url", "nats_url"))
    if json:
        print_json([asdict(finding) for finding in seen.findings])
    else:
        for one in seen.findings:
            remedy = (f"   {line}" for text in (one.command, one.sql) for line in text.splitlines())
            head = f"{one.severity} {one.slug}: {one.where}: {one.what}"
            echo_safe(head, f"   {one.why}", f"-> {one.fix}", *remedy, "")
        echo_safe(*summary(seen))
    failing = {"error", "warning"} if strict else {"error"}
    if any(finding.severity in failing for finding in seen.findings):
        raise typer.Exit(EXIT_FAILED)


def summary(seen: "Examination") -> list[str]:
    """Count the findings, and name the parts that doctor checked and could not check."""
    counts = Counter(str(finding.severity) for finding in seen.findings)
    wrong = [f"{n} {word}{'s' * (n > 1)}" for word in ("error", "warning") if (n := counts[word])]
    known = [f"{counts['info']} info"] if counts["info"] else []
    lines = [", ".join([*(wrong or ["no problem found"]), *known]), f"checked: {', '.join(seen.checked)}"]
    if seen.not_checked:
        advice = "; fix the errors above and run doctor again" if counts["error"] else ""
        lines.append(f"not checked: {', '.join(seen.not_checked)}{advice}")
    return lines
