"""The bare handler as a child process, kept like the sample handler."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from sea_mq_worker.embedded.process import Account, EmbeddedServer, spawn

_PROGRAM = Path(__file__).with_name("bare.py")


class BareHandler(EmbeddedServer):
    """``bare.py`` on a free port."""

    name: ClassVar[str] = "bare"
    crash_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, folder: Path) -> None:
        """Take the folder for its log."""
        super().__init__(folder, port=0)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def _launch(self) -> subprocess.Popen[bytes]:
        return spawn(
            [sys.executable, str(_PROGRAM), str(self.port)],
            folder=self.folder,
            log=self.log,
            account=Account.own(),
            environment=os.environ,
            death_signal=signal.SIGTERM,
        )

    async def _is_ready(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True
