"""Sessions behind a pooler in transaction mode, such as PgBouncer: each transaction may come to another one.

So nothing is left in a session or expected there. What a session of the worker starts with goes with each
transaction instead, and a statement is prepared and run inside one: five round trips instead of one.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import asyncpg
from asyncpg.transaction import Transaction

_OF_THE_CONNECTION = frozenset({"application_name"})
_NOT_OF_A_TRANSACTION = ("tcp_", "idle_session_", "default_transaction_")


def through_pooler(settings: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the arguments of a pool of connections whose transactions begin with ``settings``."""
    own = {name: settings[name] for name in _OF_THE_CONNECTION}
    local = "; ".join(
        f"SET LOCAL {name} = {value}"
        for name, value in settings.items()
        if name not in own and not name.startswith(_NOT_OF_A_TRANSACTION)
    )
    return {
        "server_settings": own,
        "statement_cache_size": 0,
        "connection_class": _connection_class(local),
    }


def _connection_class(local: str) -> type[asyncpg.Connection]:
    """Statements outside of a transaction get one of their own; every transaction begins with ``local``."""

    class LocalTransaction(Transaction):  # type: ignore[misc]
        async def start(self) -> None:
            await super().start()
            if not self._nested:
                await self._connection.execute(local)

    class PooledConnection(asyncpg.Connection):  # type: ignore[misc]
        def transaction(self, **options: Any) -> Transaction:
            defaults = {"isolation": "read_committed", "readonly": False, "deferrable": False}
            return LocalTransaction(self, **(defaults | options))

        async def _execute(self, *args: Any, **options: Any) -> Any:
            """Run what fetch, fetchrow, fetchval and, with arguments, execute have in common."""
            async with nullcontext() if self.is_in_transaction() else self.transaction():
                return await super()._execute(*args, **options)

    return PooledConnection
