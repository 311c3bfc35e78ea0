"""Connections to the service's handler."""

import ssl

from sea_mq_worker.adapters.http.handler import HttpEventHandler
from sea_mq_worker.connections.secret_files import read_secret, tls_context
from sea_mq_worker.domain.forbidden_hosts import is_metadata_host
from sea_mq_worker.settings import Settings, SettingsError


def open_handler(settings: Settings, *, concurrency: int) -> HttpEventHandler:
    """Create the client of the service's handler; it connects at the first call.

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
            keep_problem=settings.handler_keep_problem,
            forbidden=_allow_all if settings.handler_allow_link_local else is_metadata_host,
        )
    except ValueError as error:
        raise SettingsError(f"SEA_MQ_HANDLER_URL or SEA_MQ_HANDLER_TOKEN_FILE: {error}") from None


def handler_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the context that verifies the handler's certificate; None for the system's trust store.

    Raises:
        SettingsError: a file cannot be used.
    """
    s = settings
    if not (s.handler_tls_ca_file or s.handler_tls_cert_file):
        return None
    return tls_context(
        "HANDLER", ca=s.handler_tls_ca_file, cert=s.handler_tls_cert_file, key=s.handler_tls_key_file
    )


def _allow_all(_address: str) -> bool:
    return False
