"""Connections to the service's handler.

Each function raises SettingsError if a URL, the token or a file cannot be used.
"""

import ssl
from collections.abc import Callable

from sea_mq_worker.adapters.http.batch_handler import HttpBatchHandler
from sea_mq_worker.adapters.http.handler import HttpEventHandler
from sea_mq_worker.connections.secret_files import SecretFile, tls_context
from sea_mq_worker.domain.forbidden_hosts import is_metadata_host
from sea_mq_worker.settings import Settings, SettingsError

_ANSWER_BYTES_MAX = 65_536
_STATUS_BYTES_MAX = 256
"""Room for a message's ID and status in the answer to a batch."""


def open_handler(settings: Settings, *, concurrency: int) -> HttpEventHandler:
    """Create the client of the service's handler for single messages; it connects at the first call."""
    return _client(settings, "handler_url", concurrency=concurrency)


def open_batch_handler(
    settings: Settings, *, concurrency: int, on_failed: Callable[[str], None]
) -> HttpBatchHandler:
    """Create the client of a handler that has a batch endpoint; it connects at the first call."""
    answer_bytes_max = _ANSWER_BYTES_MAX + _STATUS_BYTES_MAX * settings.handler_batch_max
    return HttpBatchHandler(
        single=open_handler(settings, concurrency=concurrency),
        batch=_client(
            settings, "handler_batch_url", concurrency=concurrency, answer_bytes_max=answer_bytes_max
        ),
        concurrency=concurrency,
        messages_max=settings.handler_batch_max,
        bytes_max=settings.handler_batch_bytes_max,
        on_failed=on_failed,
    )


def _client(
    settings: Settings, key: str, *, concurrency: int, answer_bytes_max: int = _ANSWER_BYTES_MAX
) -> HttpEventHandler:
    try:
        return HttpEventHandler(
            url=getattr(settings, key),
            timeout_seconds=settings.handler_timeout_seconds,
            concurrency=concurrency,
            accept_statuses=settings.handler_accept_statuses,
            token=SecretFile(settings.handler_token_file, key="handler_token_file"),
            response_bytes_max=answer_bytes_max,
            verify=handler_tls(settings),
            keep_problem=settings.handler_keep_problem,
            forbidden=_allow_all if settings.handler_allow_link_local else is_metadata_host,
        )
    except ValueError as error:
        raise SettingsError(f"SEA_MQ_{key.upper()} or SEA_MQ_HANDLER_TOKEN_FILE: {error}") from None


def handler_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the context that verifies the handler's certificate; None for the system's trust store."""
    s = settings
    if not (s.handler_tls_ca_file or s.handler_tls_cert_file):
        return None
    return tls_context(
        "HANDLER", ca=s.handler_tls_ca_file, cert=s.handler_tls_cert_file, key=s.handler_tls_key_file
    )


def _allow_all(_address: str) -> bool:
    return False
