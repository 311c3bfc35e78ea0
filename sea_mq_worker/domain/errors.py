"""The failures that loops decide on, named by what to do next."""


class WorkerError(Exception):
    """Base of every error that this package raises on purpose; its text is for the operator."""


class UnavailableError(WorkerError):
    """A dependency cannot be reached or cannot work now: pause, then try again.

    Nobody's fault but the infrastructure's, so it never spends a row's or a message's life. The call
    may or may not have taken effect.
    """


class StoreUnavailableError(UnavailableError):
    """PostgreSQL cannot serve now."""


class BrokerUnavailableError(UnavailableError):
    """NATS JetStream cannot serve now."""


class ContractError(WorkerError):
    """A dependency is not what the worker was promised: stop and tell the operator how to mend it.

    A missing table, stream, consumer or permission, or a schema of another version.
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
