"""Connections to NATS."""

import ssl
from collections.abc import Callable

from sea_mq_worker.adapters.nats.connection import NatsConnection, connect
from sea_mq_worker.connections.secret_files import tls_context
from sea_mq_worker.domain.addresses import nats_addresses
from sea_mq_worker.settings import Settings

_CONNECT_SECONDS = 10.0


async def open_nats(
    settings: Settings,
    *,
    purpose: str,
    on_event: Callable[[str, str], None],
    connect_timeout_seconds: float = _CONNECT_SECONDS,
) -> NatsConnection:
    """Connect to NATS; the first URL may hold user and password, or a token."""
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


def demands_nats_tls(settings: Settings) -> bool:
    """Return whether every connection to NATS must use TLS."""
    s = settings
    servers = nats_addresses(s.nats_url.get_secret_value())
    by_setting = s.nats_tls_ca_file or s.nats_tls_cert_file or s.nats_tls_handshake_first
    return bool(by_setting) or any(server.demands_tls for server in servers)


def nats_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the context that verifies NATS; None uses TLS only if the server requires it.

    Raises:
        SettingsError: a file cannot be used.
    """
    s = settings
    if not demands_nats_tls(s):
        return None
    return tls_context("NATS", ca=s.nats_tls_ca_file, cert=s.nats_tls_cert_file, key=s.nats_tls_key_file)
