"""Real PostgreSQL and nats-server from wheels, run on a folder: for `dev`, tests and benchmarks.

Needs the extra ``embedded``. Works offline, as root and as an ordinary user, on Linux and macOS.
"""

from sea_mq_worker.embedded.nats import EmbeddedNats
from sea_mq_worker.embedded.postgres import EmbeddedPostgres
from sea_mq_worker.embedded.process import ServerStartError

__all__ = ["EmbeddedNats", "EmbeddedPostgres", "ServerStartError"]
