"""Translate errors of PostgreSQL into errors that a loop can act on: retry later, or stop.

Only the server's primary message is passed on: its DETAIL prints rows, and a driver's text may print the DSN.
"""

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import asyncpg

from sea_mq_worker.errors import (
    ContractError,
    RowsRefusedError,
    StatementTooLongError,
    StoreTooSlowError,
    StoreUnavailableError,
    UnstorableValueError,
    WorkerError,
)

# --- What an operator has to do about an error that does not heal by itself.

_MIGRATE = "run `python -m sea_mq_worker migrate`"
POOLER = "a pooler is in between; set SEA_MQ_DATABASE_POOLER=true, or connect directly, as `migrate` must"
_PRIVILEGE = "the user lacks a privilege; sql/roles.sql has a role for each purpose"
_TABLE_MISSING = f"a table is missing; {_MIGRATE}"
_FIT_IDENTITY = (
    "the table's replica identity and a publication of it do not fit, so that no row can change; "
    "`python -m sea_mq_worker doctor` names both and the fix"
)
_FIX_ROW = "fix the trigger or the constraint that refuses it, or the row"
_CONNECTIONS = "a worker opens up to twice SEA_MQ_DATABASE_POOL_MAX, and three more; at least 5 are needed"

_STOP: Mapping[str, str] = {
    "26000": POOLER,
    "42P05": POOLER,
    "28P01": "it refuses the user or password; correct SEA_MQ_DATABASE_URL",
    "28": "it does not admit this user or connection; see its pg_hba.conf, and correct SEA_MQ_DATABASE_URL",
    "3D000": "the database does not exist; create it or correct SEA_MQ_DATABASE_URL",
    "3F000": f"the schema is missing; {_MIGRATE}",
    "42501": _PRIVILEGE,
    "42P01": _TABLE_MISSING,
    "42703": f"a column is missing; {_MIGRATE}",
    "42704": f"an object is missing; {_MIGRATE}",
    "42883": f"a function is missing; {_MIGRATE}",
    "42P07": "a table is there that `migrate` has not made; move it away, then migrate again",
}
"""By the beginning of the SQLSTATE, if the worker's own statement is the cause."""
_STOP_BY_FUNCTION: Mapping[str, str] = {
    "infer_arbiter_indexes": f"an index is missing; {_MIGRATE}",
    "CheckCmdReplicaIdentity": _FIT_IDENTITY,
}
"""By the server's function that reports the error, where a SQLSTATE has several causes."""
_TRANSACTION_POOLING = "set the pooler's mode to transaction or session; the worker needs transactions"
_POOLER_OPTIONS = "the pooler refuses the options in SEA_MQ_DATABASE_URL; leave them out"

# --- How PostgreSQL and the driver tell errors apart.

_OWN_MISTAKES = "42"
"""Class of SQLSTATEs: a statement that does not fit the schema, or is not permitted."""
_ROWS = ("21", "22", "23", "27", "2F", "38", "39", "44", "P0")
"""Classes of SQLSTATEs that concern a row, or come from a trigger of the application on it."""
_OPTIONS_REFUSED = ("22", "42601", "42704", "55P02")
"""SQLSTATEs, by prefix, with which the server ends a session that it does not begin as asked."""
_LOCKED, _TOO_MANY_CONNECTIONS = "55P03", "53300"
_CANCELLED, _BY_SOMEBODY = "57014", "user request"
_STATEMENT_POOLING, _REFUSED_BY_POOLER = "statement pooling", "unsupported startup parameter"
"""What poolers say, which have no SQLSTATEs of their own."""
_OWN_FUNCTION = re.compile(r"\b(?:outbox|inbox|operator_actions)_\w+\(")
"""A function of the migrations, in the context of an error."""

_TLS_CUT = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""The connection broke or was closed during TLS: handled as an outage."""
_OWN_REFUSED = ("_CERTIFICATE", "_CERT_", "UNKNOWN_CA", "ACCESS_DENIED")
"""Parts of a server's TLS alerts that refuse the client's certificate after the handshake."""

# asyncpg has no type of its own for these errors.
_NO_TLS = re.compile(r'at "(.*):(\d+)" rejected SSL upgrade')
_NEVER_SENT = "invalid input for query argument"
"""The driver cannot express the value in its type."""
_WRONG_CALL = re.compile(r"the server expects \d+ arguments? for this query")
"""A mistake of this program, which no retry heals."""


class TableMissingError(ContractError):
    """A statement refers to a missing table."""


class PrivilegeError(ContractError):
    """The user lacks a right."""


class ReplicaIdentityError(ContractError):
    """A publication of the table refuses every change of it."""

    @property
    def problem(self) -> str:
        """The server's words, without the remedy."""
        return str(self).removeprefix("PostgreSQL: ").removesuffix(f": {_FIT_IDENTITY}")


class NoTlsError(ContractError):
    """The server at ``host`` and ``port`` does not offer TLS as PostgreSQL does."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        super().__init__("PostgreSQL: it offers no TLS, although sslmode in SEA_MQ_DATABASE_URL demands it")


_KINDS: Mapping[str, type[ContractError]] = {
    _TABLE_MISSING: TableMissingError,
    _FIT_IDENTITY: ReplicaIdentityError,
    _PRIVILEGE: PrivilegeError,
}
"""Errors with a class of their own, by what is to be done."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise the domain's errors instead of the driver's.

    StoreUnavailableError: PostgreSQL cannot serve now. ContractError: it lacks something that the worker
    needs; the text names it and the fix. RowsRefusedError: some row is refused.
    """
    try:
        yield
    except asyncpg.PostgresError as error:
        raise _from_server(error) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        if _WRONG_CALL.match(str(error)):
            raise
        raise _from_driver(error) from error
    except TimeoutError as error:
        raise StoreTooSlowError("PostgreSQL did not answer in time") from error
    except OSError as error:
        raise _from_network(error) from error


def _from_server(error: asyncpg.PostgresError) -> WorkerError:
    detail, error.detail = error.detail, None
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLError) and any(word in (cause.reason or "") for word in _OWN_REFUSED):
        return ContractError(f"PostgreSQL: it refuses the worker's own certificate ({cause.reason})")
    state = error.sqlstate or ""
    # Messages of class 22 quote the invalid value.
    said = type(error).__name__ if state.startswith("22") or not error.args else error.args[0]
    text = f"{said} (SQLSTATE {state})"
    # A function failed that is none of the schema's, as of a trigger of the service.
    is_foreign = bool(error.context) and not _OWN_FUNCTION.search(error.context)
    by_trigger = is_foreign and state.startswith(_OWN_MISTAKES)
    if not by_trigger and (fix := _fix(error, said, state)):
        if fix == _FIT_IDENTITY:  # its detail has no row
            text = f"{text}: {(detail or error.hint or '').rstrip('.')}"
        return _KINDS.get(fix, ContractError)(f"PostgreSQL: {text}: {fix}")
    if str(error).startswith(_NEVER_SENT):
        return UnstorableValueError("PostgreSQL cannot hold a value: it is not UTF-8, or out of range")
    if by_trigger or state.startswith(_ROWS):
        return RowsRefusedError(f"PostgreSQL refuses a row: {text}: {_FIX_ROW}")
    if state.startswith(_OWN_MISTAKES):
        return ContractError(f"PostgreSQL refused a statement: {text}")
    if state == _LOCKED:
        text = f"another session holds a lock: {text}; `python -m sea_mq_worker doctor` names the session"
    if state == _TOO_MANY_CONNECTIONS:
        text = f"{text}: {_CONNECTIONS}"
    too_long = state == _CANCELLED and _BY_SOMEBODY not in said  # in the server's own language
    return (StatementTooLongError if too_long else StoreUnavailableError)(f"PostgreSQL: {text}")


def _fix(error: asyncpg.PostgresError, said: str, state: str) -> str:
    """Return what an operator has to do about an error; empty if it heals by itself or concerns a row."""
    if _STATEMENT_POOLING in said:
        return _TRANSACTION_POOLING
    if _REFUSED_BY_POOLER in said:
        return _POOLER_OPTIONS if "options" in said else POOLER
    if (error.severity_en or error.severity) == "FATAL" and state.startswith(_OPTIONS_REFUSED):
        return "correct the options in SEA_MQ_DATABASE_URL"
    by_state = next((fix for prefix, fix in _STOP.items() if state.startswith(prefix)), "")
    return _STOP_BY_FUNCTION.get(error.server_source_function or "", by_state)


def _from_network(error: OSError) -> WorkerError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ContractError(
            f"PostgreSQL: TLS was refused ({error.verify_message}); "
            "check the CA, the host name and both clocks"
        )
    if isinstance(error, ssl.SSLError) and not isinstance(error, _TLS_CUT):
        return ContractError(f"PostgreSQL: TLS failed ({error.reason}); check both sides' certificates")
    if found := _NO_TLS.search(str(error)):
        return NoTlsError(found[1], int(found[2]))
    return StoreUnavailableError(f"PostgreSQL cannot be reached: {error.strerror or type(error).__name__}")


def _from_driver(error: Exception) -> WorkerError:
    if isinstance(error, asyncpg.exceptions.ClientConfigurationError):
        if "root certificate" in str(error):
            text = "PostgreSQL: sslmode in SEA_MQ_DATABASE_URL needs the CA's file, sslrootcert, too"
            return ContractError(text)
        return ContractError("the PostgreSQL DSN is not valid")
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StoreUnavailableError("PostgreSQL is read-only: no primary is reachable")
    return StoreUnavailableError(f"the connection to PostgreSQL was lost ({type(error).__name__})")
