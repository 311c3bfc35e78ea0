"""The failures that loops decide on, named by what to do next."""

import errno

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


class WorkerError(Exception):
    """Base of every error that this package raises on purpose; its text is for the operator."""


class DependencyError(WorkerError):
    """A dependency did not do what it was asked to; the call may or may not have taken effect."""


class UnavailableError(DependencyError):
    """A dependency cannot be reached or cannot work now: pause, then try again.

    Nobody's fault but the infrastructure's, so it never spends a row's or a message's life.
    """


class StoreUnavailableError(UnavailableError):
    """PostgreSQL cannot serve now."""


class StoreTooSlowError(StoreUnavailableError):
    """PostgreSQL did not answer in time: asking for less may help."""


class StatementTooLongError(StoreTooSlowError):
    """A statement took longer than the settings allow."""


class BrokerUnavailableError(UnavailableError):
    """NATS JetStream cannot serve now."""


class ContractError(DependencyError):
    """A dependency is not what the worker was promised, and the text tells the operator how to mend it.

    A missing table, stream, consumer or permission. A worker does not start with it; in a worker that runs,
    the loop that meets it pauses until it is mended.
    """


class FinalError(ContractError):
    """Nothing that somebody mends lets this process go on: the schema has outgrown it."""


class RowsRefusedError(ContractError):
    """PostgreSQL refuses what a statement does to a row, as a trigger or a constraint of somebody else.

    Nothing of the statement took effect. Its other rows may be good: write them without that one.
    """


class InvalidEventError(WorkerError):
    """An outbox row that can never be published as it is (INVALID_OUTBOX); it harms no other row."""


class InvalidMessageError(WorkerError):
    """A received message that can never be handled as it is.

    Attributes:
        reason: the dead-letter reason that names what is wrong.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def is_shortage(error: OSError) -> bool:
    """Tell whether this machine lacked descriptors or memory, so that the same call may succeed later."""
    return error.errno in _SHORTAGES
