"""A stream of a test's own, and what Spark is told to read it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sea_mq_worker.adapters.nats.connection import NatsConnection, api
from tests.support.jetstream import create_stream, store


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that takes ``{name}.>``."""

    connection: NatsConnection
    name: str

    async def create(self, **config: Any) -> None:
        await create_stream(self.connection, self.name, f"{self.name}.>", **{"allow_direct": True, **config})

    async def store(self, count: int, *, body: bytes = b"x", subject: str = "a", **headers: str) -> None:
        for _ in range(count):
            await store(self.connection, f"{self.name}.{subject}", body, headers or None)

    async def store_raw(self, headers: bytes, body: bytes, *, subject: str = "a") -> None:
        """Store a message that nats-py would not write like this."""
        size = len(headers) + len(body)
        control = f"HPUB {self.name}.{subject} {len(headers)} {size}\r\n".encode()
        await self.connection.client._send_command(control + headers + body + b"\r\n")
        await self.connection.client.flush()

    async def delete(self, *seqs: int) -> None:
        for seq in seqs:
            await api(self.connection, f"STREAM.MSG.DELETE.{self.name}", {"seq": seq})

    async def purge(self, *, before: int) -> None:
        await api(self.connection, f"STREAM.PURGE.{self.name}", {"seq": before})

    async def drop(self) -> None:
        await api(self.connection, f"STREAM.DELETE.{self.name}")

    async def info(self) -> dict[str, Any]:
        return await api(self.connection, f"STREAM.INFO.{self.name}")


def settings_file(folder: Path, url: str) -> str:
    """Write the settings that Spark's Python workers read."""
    path = folder / "settings.toml"
    path.write_text(f'nats_url = "{url}"\n')
    return str(path)
