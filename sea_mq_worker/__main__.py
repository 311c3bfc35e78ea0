"""``python -m sea_mq_worker``."""

import os
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; what it takes to load may be cut short by Ctrl-C like all else."""
    _fill_standard_streams()
    try:
        from sea_mq_worker.cli import app  # noqa: PLC0415 - what is told above
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    app()


def _fill_standard_streams() -> None:
    """Closed descriptors would be given to sockets, and be written to as if they were closed no more."""
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:
            mode = "r" if stream == "stdin" else "w"
            setattr(sys, stream, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open


if __name__ == "__main__":
    main()
