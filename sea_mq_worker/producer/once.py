"""Handle a message once: mark it in the same transaction as the effect of handling it.

A service's handler uses ``once``. It needs no other package than the driver of the service.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.producer.transaction import execute, execute_sync, in_schema

__all__ = ["Mark", "once"]


def once(connection: Any, message_id: UUID | str, *, schema: str | None = None) -> "Mark":
    """Mark a message as handled in the connection's transaction.

    The result is for ``async with``, or for ``with`` over a synchronous connection. The value of the block is
    True for the first transaction that marks the message, and False once such a transaction has committed.
    A concurrent transaction with the same message waits for the end of the first. If handling fails, the
    transaction must be rolled back, which also removes the mark.

    Args:
        connection: an open connection, cursor or session; ``sea_mq_worker.producer`` lists the libraries.
        message_id: the ID in the request of the worker.
        schema: the schema that contains ``handled_messages``. None: the first one in the search path.

    Raises:
        ValueError: ``message_id`` is no UUID, or ``schema`` is no plain name; at the block, the connection is
            not in a transaction.
        TypeError: at the block, the connection's type is not supported.
    """
    return Mark(connection, _statement(schema), str(UUID(str(message_id))))


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a message, which entering the block writes; ``once`` creates it."""

    _connection: Any
    _sql: str
    _message_id: str

    async def __aenter__(self) -> bool:
        return await execute(self._connection, self._sql, self._message_id) == 1

    async def __aexit__(self, *_error: object) -> None:
        """Leave the end of the transaction to the service."""

    def __enter__(self) -> bool:
        return execute_sync(self._connection, self._sql, self._message_id) == 1

    def __exit__(self, *_error: object) -> None:
        """Leave the end of the transaction to the service."""


@cache
def _statement(schema: str | None) -> str:
    return in_schema(load_queries("handled")["mark"], "handled_messages", schema)
