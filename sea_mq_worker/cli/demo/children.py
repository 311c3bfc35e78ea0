"""Run the sample handler and the worker as child processes, in the same way as the embedded servers."""

import os
import signal
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import httpx2

from sea_mq_worker.embedded.process import EmbeddedServer


class _Child(EmbeddedServer):
    """A Python program with an HTTP endpoint that reports readiness."""

    crash_signal: ClassVar[signal.Signals] = signal.SIGKILL
    ready_path: ClassVar[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the module to run, followed by its arguments."""

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    async def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *self._command()]
        return self._spawn(command, environment=self._environment(), death_signal=signal.SIGTERM)

    async def _is_ready(self) -> bool:
        try:
            async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
                return (await http.get(self.url + self.ready_path)).is_success
        except httpx2.TransportError:
            return False


class SampleHandler(_Child):
    """``examples/handler.py`` under uvicorn."""

    name: ClassVar[str] = "handler"
    ready_path: ClassVar[str] = "/effects"

    def __init__(self, folder: Path, *, source: Path) -> None:
        """Create the handler; ``source`` is the folder that contains ``handler.py``."""
        super().__init__(folder, port=0)
        self._source = source

    def _command(self) -> list[str]:
        quiet = ["--log-level", "warning", "--no-access-log"]
        return ["uvicorn", "--app-dir", str(self._source), "handler:app", "--port", str(self.port), *quiet]


class WorkerProcess(_Child):
    """``python -m sea_mq_worker run``, configured by environment variables."""

    name: ClassVar[str] = "worker"
    ready_path: ClassVar[str] = "/readyz"

    def __init__(self, folder: Path, *, settings: Mapping[str, str]) -> None:
        """Create the worker with ``SEA_MQ_*`` variables; the admin port is chosen here."""
        super().__init__(folder, port=0)
        self.settings = {**settings, "SEA_MQ_ADMIN_PORT": str(self.port)}

    @property
    def page(self) -> str:
        """The page's address with the admin token behind #, which the browser keeps and uses to sign in."""
        token = Path(self.settings["SEA_MQ_ADMIN_TOKEN_FILE"]).read_text().strip()
        return f"{self.url}/#token={token}"

    def _command(self) -> list[str]:
        return ["sea_mq_worker", "run"]

    def _environment(self) -> Mapping[str, str]:
        others = {name: value for name, value in os.environ.items() if not name.startswith("SEA_MQ_")}
        return {**others, **self.settings}
