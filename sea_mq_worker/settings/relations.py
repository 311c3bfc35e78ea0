"""Checks across settings; ``fields`` has checked each value by itself before."""

from urllib.parse import urlsplit

from sea_mq_worker.domain.addresses import has_password, is_loopback
from sea_mq_worker.domain.forbidden_hosts import is_metadata_host
from sea_mq_worker.settings.fields import Settings


def contradictions(s: Settings) -> list[tuple[str, str]]:
    """Return the key and the error message of each setting that contradicts another."""
    checks = (*_timing(s), *_access(s))
    return [(key, text) for wrong, key, text in checks if wrong]


def _timing(s: Settings) -> tuple[tuple[bool, str, str], ...]:
    least = s.outbox_publish_timeout_seconds + s.database_timeout_seconds
    return (
        (
            s.outbox_lease_seconds < least,
            "outbox_lease_seconds",
            f"must be at least outbox_publish_timeout_seconds + database_timeout_seconds, which is {least:g}",
        ),
        (
            s.outbox_batch_bytes_max > s.outbox_bytes_max,
            "outbox_batch_bytes_max",
            f"must not be above outbox_bytes_max, which is {s.outbox_bytes_max}",
        ),
        (
            s.outbox_linger_seconds > s.outbox_poll_seconds,
            "outbox_linger_seconds",
            f"must not be above outbox_poll_seconds, which is {s.outbox_poll_seconds:g}",
        ),
        (
            s.outbox_backoff_seconds > s.outbox_backoff_max_seconds,
            "outbox_backoff_seconds",
            f"must not be above outbox_backoff_max_seconds, which is {s.outbox_backoff_max_seconds:g}",
        ),
        (
            s.inbox_backoff_seconds > s.inbox_backoff_max_seconds,
            "inbox_backoff_seconds",
            f"must not be above inbox_backoff_max_seconds, which is {s.inbox_backoff_max_seconds:g}",
        ),
        (
            s.in_flight_max < s.handler_concurrency,
            "inbox_in_flight_max",
            f"must not be below handler_concurrency, which is {s.handler_concurrency}",
        ),
        (
            not s.outbox_enabled and not s.consumers,
            "consumers",
            "is empty and outbox_enabled is false, so the worker has nothing to do; set one of them",
        ),
    )


def _access(s: Settings) -> tuple[tuple[bool, str, str], ...]:
    return (
        *(check for key in ("handler_url", "handler_batch_url") for check in _handler_access(s, key)),
        (
            bool(s.handler_batch_url) and s.handler_batch_url == s.handler_url,
            "handler_batch_url",
            "must not be handler_url, which receives single messages",
        ),
        (
            bool(s.handler_batch_url) and not s.handler_url,
            "handler_batch_url",
            "requires handler_url, which receives the messages that are sent by themselves",
        ),
        (
            not is_loopback(s.admin_host) and s.admin_token_file is None,
            "admin_token_file",
            "is required where admin_host is not a loopback address",
        ),
        *(
            (
                (getattr(s, f"{side}_tls_cert_file") is None) != (getattr(s, f"{side}_tls_key_file") is None),
                f"{side}_tls_cert_file",
                f"requires {side}_tls_key_file, and the reverse; set both or neither",
            )
            for side in ("nats", "handler")
        ),
        (
            s.database_password_file is not None and has_password(s.database_url.get_secret_value()),
            "database_password_file",
            "excludes a password in database_url; remove one of them",
        ),
        (
            s.nats_creds_file is not None and s.nats_nkey_seed_file is not None,
            "nats_creds_file",
            "excludes nats_nkey_seed_file; set only one of them",
        ),
    )


def _handler_access(s: Settings, key: str) -> tuple[tuple[bool, str, str], ...]:
    url = getattr(s, key)
    return (
        (bool(url) and not _is_http_url(url), key, "expected an http:// or https:// URL"),
        (
            not s.handler_allow_link_local and is_metadata_host(_host(url)),
            key,
            "is link-local or a cloud's metadata service; if intended, set handler_allow_link_local=true",
        ),
    )


def _is_http_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://")) and bool(_host(text))


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
