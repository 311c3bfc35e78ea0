"""``python -m sea_mq_worker``."""

import errno
import os
import sys
from contextlib import suppress
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from sea_mq_worker.resources import install_hint

_EXIT_FAILED = 1
_EXIT_CONTRACT = 3
_INTERRUPTED = 130
_UNWRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a write for which the disk has no room, or that fails."""


def main() -> None:
    """Run the command line; Ctrl-C may also interrupt the imports that it needs."""
    _prepare_standard_streams()
    if not __package__:  # started by its path, as by spark-submit: this folder would hide the package `nats`
        sys.path[:] = [
            folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent
        ]
    try:
        from sea_mq_worker.cli import app  # noqa: PLC0415 - a base install has no package that it needs
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("sea_mq_worker"):
            raise
        if sys.argv[1:] in (["-V"], ["--version"]):
            sys.stdout.write(f"sea-mq-worker {version('sea-mq-worker')}\n")
            raise SystemExit from None
        sys.stderr.write(
            f"The package {missing.name} is not installed; a base install only writes events. Commands need"
            f" the extra `worker`: {install_hint('worker')}\n"
        )
        raise SystemExit(_EXIT_CONTRACT) from None
    try:
        app()
    except OSError as error:
        if error.errno not in _UNWRITTEN or error.filename is not None:
            raise
        _leave_unwritten(error)


def _leave_unwritten(error: OSError) -> NoReturn:
    """Report output that the disk did not take; Python would try to write the rest again at its end.

    The exit code stays that of a wrong usage if its report is the output.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with suppress(OSError):
        sys.stderr.write(f"the output cannot be written: {error.strerror}\n")
    raise SystemExit(getattr(error.__context__, "exit_code", _EXIT_FAILED)) from None


def _prepare_standard_streams() -> None:
    """Open closed descriptors, which sockets would get; escape what the encoding of stdout cannot express."""
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:
            mode = "r" if stream == "stdin" else "w"
            setattr(sys, stream, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
