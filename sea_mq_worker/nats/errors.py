"""Errors of nats-py and of the JetStream API, translated into the classes by which the worker reacts."""

import json
import ssl
from collections.abc import Mapping
from typing import Any, TypeGuard

import nats.errors

from sea_mq_worker.errors import BrokerUnavailableError, ContractError, WorkerError, is_shortage

STREAMS_APPLY = "`python -m sea_mq_worker streams apply`"

_REFUSALS = ("authorization", "authentication", "user jwt", "account", "nkey", "certificate", "no tls")
_NO_REFUSALS = ("authentication timeout", "connections exceeded", "permissions violation")
"""A late login, for example after a pause; too many connections of an account; one subject that is denied."""
_TLS_CUT = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Errors of a connection that broke or closed during TLS: an outage, and no refusal."""
_LASTING = frozenset({10012, 10047, 10052, 10057, 10074})
"""Lasting errors with code 500: a bad or forbidding configuration, too little storage, too many replicas."""
_NO_INFO = "expecting INFO"
_HANDSHAKE_FIRST = "a server with handshake_first needs SEA_MQ_NATS_TLS_HANDSHAKE_FIRST=true"
NO_HANDSHAKE_FIRST = "unset SEA_MQ_NATS_TLS_HANDSHAKE_FIRST unless the server has handshake_first"
_NO_TLS_YET = "WRONG_VERSION_NUMBER"
"""Reason of OpenSSL if the first bytes are no TLS, as of a server that sends its INFO first."""


class ApiRefusedError(ContractError):
    """The JetStream API replied with a lasting error: a retry does not help."""

    def __init__(self, subject: str, error: Mapping[str, Any]) -> None:
        self.code = number(error, "code")
        """As in HTTP: 400 for a bad request, 404 for a missing object."""
        self.err_code = number(error, "err_code")
        """JetStream's own number, exact where ``code`` is not."""
        super().__init__(f"{subject}: {error.get('description', 'refused')} ({self.code}/{self.err_code})")


class PublishDeniedError(ContractError):
    """The user has no permission to publish to a subject."""


def is_refusal(error: BaseException) -> bool:
    """Return whether the server refuses the worker, so that a retry does not help."""
    if isinstance(error, _TLS_CUT):
        return False
    if isinstance(error, ssl.SSLError | nats.errors.AuthorizationError) or _cannot_read(error):
        return True
    text = str(error).lower()
    return (
        isinstance(error, nats.errors.Error)
        and not any(word in text for word in _NO_REFUSALS)
        and any(word in text for word in _REFUSALS)
    )


def connect_failed(error: Exception, where: str) -> WorkerError:
    """Translate a failed connect; the text never quotes credentials."""
    if isinstance(error, ContractError):
        return ContractError(f"{where}: {error}")
    if isinstance(error, ssl.SSLError) and not isinstance(error, _TLS_CUT):
        check = "check the CA, the host name and both clocks"
        if error.reason == _NO_TLS_YET:
            check = NO_HANDSHAKE_FIRST
        return ContractError(f"{where}: TLS was refused ({error}); {check}")
    if isinstance(error, OSError) and _cannot_read(error):
        return ContractError(f"{where}: cannot read {error.filename}: {error.strerror}")
    if is_refusal(error) or not isinstance(error, OSError | nats.errors.Error):
        return ContractError(
            f"{where}: the server refused the worker ({plain(error)}); check its credentials"
        )
    return BrokerUnavailableError(f"{where}: no server answers ({plain(error)})")


def _cannot_read(error: BaseException) -> bool:
    """Return whether a credentials file is unreadable, as opposed to a machine out of file descriptors."""
    return isinstance(error, OSError) and bool(error.filename) and not is_shortage(error)


def plain(error: BaseException) -> str:
    """Return an error's text on one line, or its type if it has no text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text}; {_HANDSHAKE_FIRST}" if _NO_INFO in text else text


def api_failed(subject: str, error: Mapping[str, Any]) -> WorkerError:
    """Translate the error object of an API reply: 429 and most 5xx are transient, others last."""
    refused = ApiRefusedError(subject, error)
    if refused.err_code not in _LASTING and (refused.code == 429 or refused.code >= 500):  # noqa: PLR2004
        return BrokerUnavailableError(str(refused))
    return refused


# --- Replies, whose form anybody could have made.


def parse(data: bytes) -> dict[str, Any]:
    """Parse a reply; return an empty object unless it is a JSON object whose error is an object."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    is_reply = isinstance(parsed, dict) and isinstance(parsed.get("error") or {}, dict)
    return parsed if is_reply else {}


def number(answer: Mapping[str, Any], name: str) -> int:
    """Return a count or code from a reply; 0 if it is not a number."""
    value = answer.get(name)
    return max(0, value) if is_number(value) else 0


def is_number(value: object) -> TypeGuard[int]:
    return type(value) is int
