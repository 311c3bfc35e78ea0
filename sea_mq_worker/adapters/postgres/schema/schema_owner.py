"""Check that the tables belong to this context, and that row security hides no row.

Two contexts in one outbox or inbox would process each other's rows. Each function raises
StoreUnavailableError if PostgreSQL cannot serve now, besides what it names.
"""

from collections.abc import Mapping
from typing import Any

from sea_mq_worker.adapters.postgres.errors import translated
from sea_mq_worker.adapters.postgres.queries import load_queries
from sea_mq_worker.domain.errors import ContractError


async def claim_schema(database: Any, context: str) -> None:
    """Claim the schema of ``database``, a connection or pool, for the context, unless it has an owner.

    Raises:
        ContractError: as ``check_owner``.
    """
    if not await check_owner(database, context):
        with translated():
            await database.fetch(load_queries("context")["take"], context)
        await check_owner(database, context)


async def check_owner(database: Any, context: str) -> bool:
    """Return whether the schema of ``database`` belongs to the context; False: to none, before any worker.

    Raises:
        ContractError: as ``require_owner``.
    """
    with translated():
        found = await database.fetchrow(load_queries("context")["owner"])
    if found:
        require_owner(found, context)
    return found is not None


def require_owner(found: Mapping[str, Any], context: str) -> None:
    """Require that the owner of a schema, a row of the statement `owner`, is this context.

    Raises:
        ContractError: the schema is another context's; the text names both, and the remedy.
    """
    if found["context"] != context:
        schema = found["schema"]
        raise ContractError(
            f"the tables in schema {schema} belong to the context {found['context']}, not to {context}: "
            "correct SEA_MQ_CONTEXT, or give each context a schema of its own (SEA_MQ_DATABASE_SCHEMA); "
            f"if the context was renamed, write its new name into {schema}.sea_mq_context"
        )


async def check_rows_visible(database: Any) -> None:
    """Require that row security hides no rows: hidden rows would never be processed.

    Raises:
        ContractError: row security applies; the text names the table and the remedy.
    """
    with translated():
        hidden = [row["name"] for row in await database.fetch(load_queries("context")["hidden"])]
    if hidden:
        raise ContractError(
            f"row security hides rows of {' and '.join(hidden)} from the worker: run `ALTER TABLE {hidden[0]}"
            " DISABLE ROW LEVEL SECURITY`, or give the worker's role BYPASSRLS"
        )
