"""``python -m sea_mq_worker``."""

import os
import sys

from sea_mq_worker.resources import install_hint

_EXIT_CONTRACT = 3
_INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C may also interrupt the imports that it needs."""
    _fill_standard_streams()
    try:
        from sea_mq_worker.cli import app  # noqa: PLC0415 - a base install has no package that it needs
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("sea_mq_worker"):
            raise
        sys.stderr.write(
            f"The package {missing.name} is not installed; a base install only writes events. Commands need"
            f" the extra `worker`: {install_hint('worker')}\n"
        )
        raise SystemExit(_EXIT_CONTRACT) from None
    app()


def _fill_standard_streams() -> None:
    """Closed descriptors would be given to sockets, and be written to as if they were closed no more."""
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:
            mode = "r" if stream == "stdin" else "w"
            setattr(sys, stream, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - stays open


if __name__ == "__main__":
    main()
