"""Connections made from settings, waited for where a server is away at the start."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import asyncpg
import tenacity

from sea_mq_worker.adapters.http.handler import HttpEventHandler
from sea_mq_worker.adapters.nats.connection import NatsConnection, connect
from sea_mq_worker.adapters.postgres.connection import WORKER_HINTS, connect_pool
from sea_mq_worker.application.pacing import unless_stopped
from sea_mq_worker.domain.addresses import nats_addresses
from sea_mq_worker.domain.errors import UnavailableError
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.domain.forbidden_hosts import is_metadata_host
from sea_mq_worker.ports.observer import Observer
from sea_mq_worker.settings import Settings, SettingsError

_WAIT_MAX_SECONDS = 5.0
_CONNECT_SECONDS = 10.0

_T = TypeVar("_T")


async def wait_for(
    connect_once: Callable[[], Awaitable[_T]], *, what: str, observer: Observer, stop: asyncio.Event
) -> _T:
    """Try until the server answers, telling what is waited for.

    Raises:
        StoppedError: asked to stop first.
        ContractError: the server refuses for good.
    """

    def tell(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        observer.observe(Noticed(event="waiting", text=f"waiting for {what}: {error}"))

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(UnavailableError),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=_WAIT_MAX_SECONDS),
        before_sleep=tell,
    )

    async def attempt() -> _T:  # tenacity awaits only what is declared async
        return await connect_once()

    return await unless_stopped(stop, retrying(attempt))


async def open_pool(
    settings: Settings, *, purpose: str, hints: Mapping[str, str] = WORKER_HINTS
) -> asyncpg.Pool:
    """Connect to PostgreSQL; ``purpose`` shows in pg_stat_activity."""
    return await connect_pool(
        settings.database_url.get_secret_value(),
        schema=settings.database_schema,
        size_max=settings.database_pool_max,
        application_name=f"sea_mq_worker {purpose}",
        statement_timeout_seconds=settings.database_timeout_seconds,
        connect_timeout_seconds=_CONNECT_SECONDS,
        hints=hints,
        pooler=settings.database_pooler,
    )


async def open_nats(
    settings: Settings,
    *,
    purpose: str,
    on_event: Callable[[str, str], None],
    connect_timeout_seconds: float = _CONNECT_SECONDS,
) -> NatsConnection:
    """Connect to NATS; user and password, or a token, may stand in the first URL."""
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
        inbox_prefix=settings.nats_inbox_prefix,
        connect_timeout_seconds=connect_timeout_seconds,
    )


def open_handler(settings: Settings, *, concurrency: int) -> HttpEventHandler:
    """Make the client of the service's handler; it connects when first asked.

    Raises:
        SettingsError: the URL, the token or a file cannot be used.
    """
    try:
        return HttpEventHandler(
            url=settings.handler_url,
            timeout_seconds=settings.handler_timeout_seconds,
            concurrency=concurrency,
            accept_statuses=settings.handler_accept_statuses,
            token=read_secret(settings.handler_token_file, key="handler_token_file"),
            verify=handler_tls(settings),
            forbidden=_nothing if settings.handler_allow_link_local else is_metadata_host,
        )
    except ValueError as error:
        raise SettingsError(f"SEA_MQ_HANDLER_URL or SEA_MQ_HANDLER_TOKEN_FILE: {error}") from None


def handler_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return what the handler's certificate is verified with; none: the system's trust store.

    Raises:
        SettingsError: a file cannot be used.
    """
    s = settings
    if not (s.handler_tls_ca_file or s.handler_tls_cert_file):
        return None
    return _tls("HANDLER", s.handler_tls_ca_file, s.handler_tls_cert_file, s.handler_tls_key_file)


def read_secret(path: Path | None, *, key: str) -> str:
    """Read a secret's file; no file, no secret.

    Raises:
        SettingsError: there is none to be read, or nothing in it, which would be no secret either.
    """
    if path is None:
        return ""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"SEA_MQ_{key.upper()}: {error.strerror}: {path}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"SEA_MQ_{key.upper()}: no text: {path}") from None
    if not secret:
        raise SettingsError(f"SEA_MQ_{key.upper()}: empty: {path}")
    return secret


def demands_nats_tls(settings: Settings) -> bool:
    """Tell whether no connection to NATS is made without TLS."""
    s = settings
    servers = nats_addresses(s.nats_url.get_secret_value())
    return bool(s.nats_tls_ca_file or s.nats_tls_cert_file) or any(server.demands_tls for server in servers)


def nats_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return what NATS is verified with; none: TLS only if the server asks for it.

    Raises:
        SettingsError: a file cannot be used.
    """
    s = settings
    if not demands_nats_tls(s):
        return None
    return _tls("NATS", s.nats_tls_ca_file, s.nats_tls_cert_file, s.nats_tls_key_file)


def _tls(side: str, ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key, password=_no_passphrase)
    except (OSError, ssl.SSLError, ValueError) as error:
        where = f"SEA_MQ_{side}_TLS_CA_FILE, _CERT_FILE or _KEY_FILE"
        raise SettingsError(f"{where}: {getattr(error, 'strerror', '') or error}") from None
    return context


def _nothing(_address: str) -> bool:
    return False


def _no_passphrase() -> str:
    """Without it OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted; it must not be")
