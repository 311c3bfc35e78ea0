"""Opens the connections that the settings name: to PostgreSQL, NATS and the handler.

Each function raises SettingsError if a URL, a secret or a file cannot be used, and UnavailableError if this
machine can open no file now. It imports the driver of its server: a command starts without those of others.
"""

import os
import ssl
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sea_mq_worker.errors import UnavailableError, is_shortage
from sea_mq_worker.runtime.addresses import (
    is_http_exposed,
    is_loopback,
    is_metadata_host,
    is_postgres_exposed,
    nats_addresses,
)
from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings, SettingsError

if TYPE_CHECKING:
    import asyncpg

    from sea_mq_worker.inbox.http import HttpBatchHandler, HttpEventHandler
    from sea_mq_worker.nats.connection import NatsConnection
    from sea_mq_worker.postgres.pool import Join

_CONNECT_SECONDS = 10.0
_READ_AGAIN_SECONDS = 1.0
_BATCH_BYTES = 2**20
"""Most bytes of a batch's body; a larger message is sent by itself."""
_ANSWER_BYTES_MAX = 65_536
_STATUS_BYTES_MAX = 256
"""Room for a message's ID and status in the answer to a batch."""


async def open_pool(
    settings: Settings,
    *,
    purpose: str,
    hints: Mapping[str, str] | None = None,
    join: "Join | None" = None,
) -> "asyncpg.Pool":
    """Connect to PostgreSQL; pg_stat_activity shows ``purpose``. ``join`` gets each new connection."""
    from sea_mq_worker.postgres.pool import WORKER_HINTS, connect_pool

    return await connect_pool(
        settings.database_url.get_secret_value(),
        schema=settings.database_schema,
        size_max=settings.database_pool_max,
        application_name=f"sea_mq_worker {purpose}",
        statement_timeout_seconds=settings.database_timeout_seconds,
        connect_timeout_seconds=_CONNECT_SECONDS,
        hints=WORKER_HINTS if hints is None else hints,
        pooler=settings.database_pooler,
        join=join,
    )


async def open_nats(
    settings: Settings,
    *,
    purpose: str,
    on_event: Callable[[str, str], None],
    connect_timeout_seconds: float = _CONNECT_SECONDS,
) -> "NatsConnection":
    """Connect to NATS; the first URL may hold user and password, or a token."""
    from sea_mq_worker.nats.connection import connect

    servers = nats_addresses(settings.nats_url.get_secret_value())
    return await connect(
        urls=[server.url for server in servers],
        name=f"sea_mq_worker {settings.context} {purpose}",
        on_event=on_event,
        creds_file=str(settings.nats_creds_file or ""),
        nkey_seed_file=str(settings.nats_nkey_seed_file or ""),
        user=servers[0].user,
        password=servers[0].password,
        token=servers[0].token,
        tls=nats_tls(settings),
        handshake_first=settings.nats_tls_handshake_first,
        domain=settings.nats_jetstream_domain,
        ignore_discovered=settings.nats_ignore_discovered_servers,
        inbox_prefix=settings.nats_inbox_prefix,
        connect_timeout_seconds=connect_timeout_seconds,
    )


def open_handler(
    settings: Settings, *, concurrency: int, on_batch_failed: Callable[[str], None] | None = None
) -> "HttpEventHandler | HttpBatchHandler":
    """Create the client of the service's handler; it connects at the first call.

    With ``on_batch_failed`` it sends batches, too, where the settings name an endpoint for them.
    """
    from sea_mq_worker.inbox.http import HttpBatchHandler, HttpEventHandler

    s = settings

    def client(key: str, answer_bytes_max: int) -> HttpEventHandler:
        try:
            return HttpEventHandler(
                url=getattr(s, key),
                timeout_seconds=s.handler_timeout_seconds,
                concurrency=concurrency,
                accept_statuses=s.handler_accept_statuses,
                token=SecretFile(s.handler_token_file, key="handler_token_file"),
                response_bytes_max=answer_bytes_max,
                verify=handler_tls(s),
                keep_problem=s.handler_keep_problem,
                forbidden=(lambda _: False) if s.handler_allow_link_local else is_metadata_host,
            )
        except ValueError as error:
            raise SettingsError(f"SEA_MQ_{key.upper()} or SEA_MQ_HANDLER_TOKEN_FILE: {error}") from None

    single = client("handler_url", _ANSWER_BYTES_MAX)
    if on_batch_failed is None or not s.handler_batch_url:
        return single
    return HttpBatchHandler(
        single=single,
        batch=client("handler_batch_url", _ANSWER_BYTES_MAX + _STATUS_BYTES_MAX * s.handler_batch_max),
        concurrency=concurrency,
        messages_max=s.handler_batch_max,
        bytes_max=_BATCH_BYTES,
        on_failed=on_batch_failed,
    )


# --- Secrets and certificates, from the files that settings name.


class SecretFile:
    """Returns the secret of a file, empty without a file; reads the file again after a second.

    A file that cannot be read is a wrong setting at first, and later an UnavailableError.
    """

    def __init__(self, path: Path | None, *, key: str) -> None:
        self._path = path
        self._key = key
        self._read()

    def __call__(self) -> str:
        if self._path and time.monotonic() >= self._read_again_at:
            try:
                self._read()
            except SettingsError as error:
                raise UnavailableError(str(error)) from None
        return self._secret

    def _read(self) -> None:
        self._secret = read_secret(self._path, key=self._key)
        self._read_again_at = time.monotonic() + _READ_AGAIN_SECONDS


def read_secret(path: Path | None, *, key: str) -> str:
    """Read a secret from its file; empty without a file."""
    if path is None:
        return ""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise _kind(error)(f"SEA_MQ_{key.upper()}: {error.strerror}: {path}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"SEA_MQ_{key.upper()}: no text: {path}") from None
    if not secret:
        raise SettingsError(f"SEA_MQ_{key.upper()}: empty: {path}")
    return secret


def demands_nats_tls(s: Settings) -> bool:
    """Return whether every connection to NATS must use TLS."""
    servers = nats_addresses(s.nats_url.get_secret_value())
    by_setting = s.nats_tls_ca_file or s.nats_tls_cert_file or s.nats_tls_handshake_first
    return bool(by_setting) or any(server.demands_tls for server in servers)


def nats_tls(s: Settings) -> ssl.SSLContext | None:
    """Return the context that verifies NATS; None uses TLS only if the server requires it."""
    if not demands_nats_tls(s):
        return None
    return tls_context("NATS", ca=s.nats_tls_ca_file, cert=s.nats_tls_cert_file, key=s.nats_tls_key_file)


def handler_tls(s: Settings) -> ssl.SSLContext | None:
    """Return the context that verifies the handler's certificate; None for the system's trust store."""
    ca, cert = s.handler_tls_ca_file, s.handler_tls_cert_file
    return tls_context("HANDLER", ca=ca, cert=cert, key=s.handler_tls_key_file) if ca or cert else None


def tls_context(side: str, *, ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return the context that verifies a server; without ``ca`` it uses the system's trust store."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key, password=_no_passphrase)
    except (OSError, ssl.SSLError, ValueError) as error:
        where = f"SEA_MQ_{side}_TLS_CA_FILE, _CERT_FILE or _KEY_FILE"
        raise _kind(error)(f"{where}: {getattr(error, 'strerror', '') or error}") from None
    return context


def _no_passphrase() -> str:
    """Raise instead of a prompt, which OpenSSL would show at the terminal."""
    raise ValueError("the private key is encrypted; use an unencrypted key")


def _kind(error: OSError | ValueError) -> type[SettingsError | UnavailableError]:
    return UnavailableError if isinstance(error, OSError) and is_shortage(error) else SettingsError


# --- Security warnings about the settings: plaintext connections, and secret files that everybody may read.
#
# They are warnings, not refusals: behind a mesh or in a container network a host's name does not show who
# can listen, and some platforms provide secrets in files with such a mode.

_SECRETS = (
    *("database_password_file", "admin_token_file", "handler_token_file", "handler_tls_key_file"),
    *("nats_creds_file", "nats_nkey_seed_file", "nats_tls_key_file"),
)


def exposures(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the key and the text of a notice per kind of exposure."""
    if plain := "; ".join(_in_plain_text(settings)):
        yield "plaintext_connection", plain
    readable = ", ".join(f"{key} ({path})" for key, path in _secret_files(settings) if _is_exposed(path))
    if readable:
        text = f"every user of this machine may read {readable}; remove the permission (chmod o-rwx)"
        yield "secret_file_exposed", text


def _in_plain_text(s: Settings) -> Iterator[str]:
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


def _secret_files(s: Settings) -> Iterator[tuple[str, Path]]:
    """Yield the files of secrets, by the variable that names each."""
    for key in _SECRETS:
        if path := getattr(s, key):
            yield f"{ENV_PREFIX}{key.upper()}", path
    if config := os.environ.get(CONFIG_VARIABLE):
        yield CONFIG_VARIABLE, Path(config)


def _is_exposed(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False  # the reader of the file reports that
