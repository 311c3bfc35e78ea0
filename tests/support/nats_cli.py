"""The nats command line, where it is installed."""

import os
import shutil
from pathlib import Path

import pytest


def nats_cli() -> Path:
    """Return the program from PATH or from Go's folder; skip the test without it, but fail in CI."""
    go_bin = Path(os.environ.get("GOPATH", Path.home() / "go")) / "bin"
    program = shutil.which("nats") or shutil.which("nats", path=str(go_bin))
    if not program:
        missing = "the nats CLI is neither on the PATH nor in Go's bin folder"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return Path(program)
