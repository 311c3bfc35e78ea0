"""Connections made from settings, waited for where a server is away at the start."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import asyncpg
import tenacity

from sea_mq_worker.adapters.nats.connection import NatsConnection, connect
from sea_mq_worker.adapters.postgres.connection import WORKER_HINTS, connect_pool
from sea_mq_worker.application.pacing import unless_stopped
from sea_mq_worker.domain.errors import UnavailableError
from sea_mq_worker.domain.facts import Noticed
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
    )


async def open_nats(
    settings: Settings,
    *,
    purpose: str,
    on_event: Callable[[str, str], None],
    connect_timeout_seconds: float = _CONNECT_SECONDS,
) -> NatsConnection:
    """Connect to NATS; user and password, or a token, may stand in the URL."""
    urls, user, password, token = _split(settings.nats_url.get_secret_value())
    return await connect(
        urls=urls,
        name=f"sea_mq_worker {settings.context} {purpose}",
        on_event=on_event,
        creds_file=str(settings.nats_creds_file or ""),
        nkey_seed_file=str(settings.nats_nkey_seed_file or ""),
        user=user,
        password=password,
        token=token,
        tls=_tls(settings),
        connect_timeout_seconds=connect_timeout_seconds,
    )


def read_secret(path: Path | None, *, key: str) -> str:
    """Read a secret's file; no file, no secret."""
    if path is None:
        return ""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise SettingsError(f"SEA_MQ_{key.upper()}: {error.strerror}: {path}") from None


def _split(text: str) -> tuple[list[str], str, str, str]:
    """Take the credentials of the first URL out of all, so that no URL shows any."""
    parts = [urlsplit(url.strip() if "://" in url else f"nats://{url.strip()}") for url in text.split(",")]
    urls = [f"{part.scheme}://{part.netloc.rpartition('@')[2]}" for part in parts]
    user, password = unquote(parts[0].username or ""), unquote(parts[0].password or "")
    return (urls, user, password, "") if password else (urls, "", "", user)


def _tls(settings: Settings) -> ssl.SSLContext | None:
    wanted = settings.nats_url.get_secret_value().startswith("tls://")
    if not (wanted or settings.nats_tls_ca_file or settings.nats_tls_cert_file):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.nats_tls_ca_file)
        if settings.nats_tls_cert_file:
            context.load_cert_chain(settings.nats_tls_cert_file, settings.nats_tls_key_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"SEA_MQ_NATS_TLS_CA_FILE, _CERT_FILE or _KEY_FILE: {error}") from None
    return context
