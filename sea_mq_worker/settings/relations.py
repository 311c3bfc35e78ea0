"""Checks across settings; ``fields`` has checked each value by itself before."""

from collections.abc import Iterator
from typing import TypeAlias
from urllib.parse import urlsplit

from sea_mq_worker.domain.addresses import has_password, http_problem, is_loopback
from sea_mq_worker.domain.forbidden_hosts import is_metadata_host
from sea_mq_worker.settings.fields import Settings

_Contradiction: TypeAlias = tuple[str, str]
_BOUNDS = (
    ("outbox_batch_bytes_max", "outbox_bytes_max"),
    ("outbox_linger_seconds", "outbox_poll_seconds"),
    ("outbox_backoff_seconds", "outbox_backoff_max_seconds"),
    ("inbox_backoff_seconds", "inbox_backoff_max_seconds"),
)
"""Settings, each with the one that bounds it."""


def contradictions(s: Settings) -> list[_Contradiction]:
    """Return the key and the error message of each setting that contradicts another."""
    return [*_bounds(s), *_handler(s, "handler_url"), *_handler(s, "handler_batch_url"), *_access(s)]


def _bounds(s: Settings) -> Iterator[_Contradiction]:
    least = s.outbox_publish_timeout_seconds + s.database_timeout_seconds
    if s.outbox_lease_seconds < least:
        text = "must be at least outbox_publish_timeout_seconds + database_timeout_seconds, which is"
        yield "outbox_lease_seconds", f"{text} {least:g}"
    for key, bound in _BOUNDS:
        if getattr(s, key) > getattr(s, bound):
            yield key, f"must not be above {bound}, which is {_number(getattr(s, bound))}"
    if s.in_flight_max < s.handler_concurrency:
        text = f"must not be below handler_concurrency, which is {s.handler_concurrency}"
        yield "inbox_in_flight_max", text
    if not s.outbox_enabled and not s.consumers:
        text = "is empty and outbox_enabled is false, so the worker has nothing to do; set one of them"
        yield "consumers", text
    durables = [consumer.durable for consumer in s.consumers]
    for durable in sorted({name for name in durables if durables.count(name) > 1}):
        text = f"has two durables named {durable}: each name must be unique in a worker, also across streams"
        yield "consumers", text


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _handler(s: Settings, key: str) -> Iterator[_Contradiction]:
    url = getattr(s, key)
    if url and (problem := http_problem(url)):
        yield key, problem
    if not s.handler_allow_link_local and is_metadata_host(_host(url)):
        text = "is link-local or a cloud's metadata service; if intended, set handler_allow_link_local=true"
        yield key, text


def _access(s: Settings) -> Iterator[_Contradiction]:
    if s.handler_batch_url and s.handler_batch_url == s.handler_url:
        yield "handler_batch_url", "must not be handler_url, which receives single messages"
    if s.handler_batch_url and not s.handler_url:
        text = "requires handler_url, which receives the messages that are sent by themselves"
        yield "handler_batch_url", text
    if not is_loopback(s.admin_host) and s.admin_token_file is None:
        yield "admin_token_file", "is required where admin_host is not a loopback address"
    for side in ("nats", "handler"):
        cert, key = f"{side}_tls_cert_file", f"{side}_tls_key_file"
        if (getattr(s, cert) is None) != (getattr(s, key) is None):
            yield cert, f"requires {key}, and the reverse; set both or neither"
    if s.database_password_file and has_password(s.database_url.get_secret_value()):
        yield "database_password_file", "excludes a password in database_url; remove one of them"
    if s.nats_creds_file and s.nats_nkey_seed_file:
        yield "nats_creds_file", "excludes nats_nkey_seed_file; set only one of them"


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
