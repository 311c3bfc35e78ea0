"""Errors that loops handle; each class stands for one reaction."""

import errno
import shlex

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


def command(*words: str) -> str:
    """Return a command of the worker for a text; quote words that a sender may have chosen."""
    return f"`python -m sea_mq_worker {shlex.join(words)}`"


class WorkerError(Exception):
    """Base of every error that this package raises on purpose; its text is for the operator."""


class DependencyError(WorkerError):
    """A call to a dependency failed; it may or may not have taken effect."""


class UnavailableError(DependencyError):
    """A dependency cannot be reached or cannot work now: pause, then retry.

    The infrastructure is at fault, so this error never counts as an attempt of a row or a message.
    """


class StoreUnavailableError(UnavailableError):
    """PostgreSQL cannot serve now."""


class StoreTooSlowError(StoreUnavailableError):
    """PostgreSQL did not answer in time; a smaller request may succeed."""


class StatementTooLongError(StoreTooSlowError):
    """A statement took longer than the settings allow."""


class BrokerUnavailableError(UnavailableError):
    """NATS JetStream cannot serve now."""


class ContractError(DependencyError):
    """A dependency lacks something that the worker needs; the text explains the fix to the operator.

    For example a missing table, stream, consumer or permission. A worker does not start with this error,
    unless one consumer alone has it; in a running worker, the affected loop pauses until the cause is fixed.
    """


class LimitsError(ContractError):
    """A consumer's limits contradict the settings of this worker."""


class FinalError(ContractError):
    """No fix lets this process continue: the schema is too new for this version."""


class RowsRefusedError(ContractError):
    """PostgreSQL refuses the change of a row, for example by a trigger or a constraint of the application.

    The statement had no effect. Its other rows may be good: write them without the refused row.
    """


class UnstorableValueError(RowsRefusedError):
    """A value that PostgreSQL cannot hold: it is not UTF-8, or out of range."""


class InvalidEventError(WorkerError):
    """An outbox row that can never be published as it is (INVALID_OUTBOX); other rows are not affected."""


class InvalidMessageError(WorkerError):
    """A received message that can never be handled as it is.

    Attributes:
        reason: the dead-letter reason.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def is_shortage(error: OSError) -> bool:
    """Return whether this machine lacked descriptors or memory, so that the same call may succeed later."""
    return error.errno in _SHORTAGES
