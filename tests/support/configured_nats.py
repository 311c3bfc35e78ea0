"""A nats-server that includes a configuration file as it is shipped."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sea_mq_worker.dev.servers import EmbeddedNats


class ConfiguredNats(EmbeddedNats):
    """Takes addresses and store from EmbeddedNats, and all else from ``included``."""

    def __init__(self, folder: Path, *, included: Path, environment: Mapping[str, str]) -> None:
        """Let ``included`` refer to the variables of ``environment``."""
        super().__init__(folder)
        self._included = included
        self._environment = environment

    async def _launch(self) -> subprocess.Popen[bytes]:
        (self.folder / self._included.name).write_text(self._included.read_text())
        file = self.folder / "nats-server.conf"
        file.write_text(
            f"host: 127.0.0.1\nport: {self.port}\nhttp: {self.monitor_url.removeprefix('http://')}\n"
            f'jetstream {{ store_dir: "{self.folder / "jetstream"}" }}\ninclude "{self._included.name}"\n'
        )
        command = [str(self._program()), "--config", str(file)]
        return self._spawn(command, environment={**os.environ, **self._environment})
