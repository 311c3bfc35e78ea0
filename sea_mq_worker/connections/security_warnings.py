"""Security warnings about the settings: plaintext connections, and secret files that everybody may read.

They are warnings, not refusals: behind a mesh or in a container network a host's name does not show who can
listen, and some platforms provide secrets in files with such a mode.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sea_mq_worker.connections.nats import demands_nats_tls
from sea_mq_worker.domain.addresses import is_http_exposed, is_loopback, is_postgres_exposed, nats_addresses
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings

_SECRETS = (
    "database_password_file",
    "nats_creds_file",
    "nats_nkey_seed_file",
    "nats_tls_key_file",
    "handler_token_file",
    "handler_tls_key_file",
    "admin_token_file",
)


def exposures(settings: Settings) -> Iterator[Noticed]:
    """Yield one notice per kind of exposure."""
    plain = "; ".join(in_plain_text(settings))
    if plain:
        yield Noticed(event="plaintext_connection", text=plain)
    readable = ", ".join(f"{key} ({path})" for key, path in readable_by_all(settings))
    if readable:
        text = f"every user of this machine may read {readable}; remove the permission (chmod o-rwx)"
        yield Noticed(event="secret_file_exposed", text=text)


def in_plain_text(s: Settings) -> Iterator[str]:
    """Yield the fix for each URL that connects in plain text."""
    mode = os.environ.get("PGSSLMODE", "prefer")
    if is_postgres_exposed(s.database_url.get_secret_value(), default_mode=mode):
        yield f"{ENV_PREFIX}DATABASE_URL: use sslmode=verify-full"
    servers = nats_addresses(s.nats_url.get_secret_value())
    if not demands_nats_tls(s) and not all(is_loopback(server.host) for server in servers):
        yield f"{ENV_PREFIX}NATS_URL: use tls://"
    for key in ("handler_url", "handler_batch_url"):
        if s.consumers and is_http_exposed(getattr(s, key)):
            yield f"{ENV_PREFIX}{key.upper()}: use https://"


def secret_files(s: Settings) -> Iterator[tuple[str, Path]]:
    """Yield the files of secrets, by the variable that names each."""
    for key in _SECRETS:
        if path := getattr(s, key):
            yield f"{ENV_PREFIX}{key.upper()}", path
    if config := os.environ.get(CONFIG_VARIABLE):
        yield CONFIG_VARIABLE, Path(config)


def readable_by_all(s: Settings) -> Iterator[tuple[str, Path]]:
    """Yield the files of secrets that every user may read."""
    for name, path in secret_files(s):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # the reader of the file reports that
        if mode & stat.S_IROTH:
            yield name, path
