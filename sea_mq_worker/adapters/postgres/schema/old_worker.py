"""Let a worker with SDS-047's own statements run beside this one (docs/how-to/from-the-rust-worker.md)."""

from sea_mq_worker.adapters.postgres.schema.expected_schema import expected_objects
from sea_mq_worker.adapters.postgres.schema.migrations import adoption_script, check_version, owner_session

_WHEN = """WHEN (
        NOT (OLD.state IN ('PENDING', 'DEAD') AND NEW.state = 'PUBLISHED'
             AND NEW.publish_attempts >= OLD.publish_attempts) AND """


async def set_old_worker(dsn: str, *, schema: str, beside: bool) -> None:
    """Accept the statements of SDS-047's worker, or accept them no longer; may be repeated.

    The trigger that guards the lifecycle is replaced, not dropped: meanwhile it still refuses all else.

    Raises:
        StoreUnavailableError: PostgreSQL cannot serve now, or others kept the table busy; nothing changed.
        ContractError: the schema is missing or of another version, or the user does not own the tables.
    """
    made = expected_objects("TRIGGER")["outbox_transition"].sql
    transition = f"CREATE OR REPLACE TRIGGER {made.partition(' TRIGGER ')[2]}"
    if beside:
        transition = transition.replace("WHEN (", _WHEN, 1)
    async with owner_session(dsn, schema) as connection:
        await check_version(connection)
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '2s'")
            await connection.execute(transition)
            await connection.execute(adoption_script("end_old_worker"))
            if beside:
                await connection.execute(adoption_script("beside_old_worker"))
