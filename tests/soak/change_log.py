"""A log of every change of both tables, written by triggers to tables that workers cannot write.

The triggers never raise an error, so that they hide no bug. Each worker logs in as its own role, so the log
has the author of each change, independent of the row's content.
"""

import asyncpg

from tests.soak.schedule import WORKERS

_CHANGE_LOG = """
CREATE SCHEMA soak;
CREATE TABLE soak.outbox_log (
    n BIGINT GENERATED ALWAYS AS IDENTITY, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    txid BIGINT NOT NULL DEFAULT txid_current(), who TEXT NOT NULL, id UUID NOT NULL,
    was TEXT, became TEXT, was_owner TEXT, owner TEXT, was_claimed_at TIMESTAMPTZ,
    was_attempts INT, attempts INT, was_published_at TIMESTAMPTZ, published_at TIMESTAMPTZ,
    was_available_at TIMESTAMPTZ, error TEXT, content TEXT);
CREATE TABLE soak.inbox_log (
    n BIGINT GENERATED ALWAYS AS IDENTITY, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    txid BIGINT NOT NULL DEFAULT txid_current(), who TEXT NOT NULL, id UUID NOT NULL,
    was_owner TEXT, owner TEXT, was_locked_until TIMESTAMPTZ, was_attempts INT, attempts INT,
    was_processed_at TIMESTAMPTZ, processed_at TIMESTAMPTZ,
    was_dead_lettered_at TIMESTAMPTZ, dead_lettered_at TIMESTAMPTZ);

CREATE FUNCTION soak.see_outbox() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' AS $$
DECLARE o public.outbox_events := OLD; n public.outbox_events := NEW;
BEGIN
    INSERT INTO soak.outbox_log (who, id, was, became, was_owner, owner, was_claimed_at,
        was_attempts, attempts, was_published_at, published_at, was_available_at, error, content)
    VALUES (session_user, coalesce(n.id, o.id), o.state, n.state, o.claimed_by, n.claimed_by,
        o.claimed_at, o.publish_attempts, n.publish_attempts, o.published_at, n.published_at,
        o.available_at, n.publish_error,
        md5(row(n.id, n.aggregate_type, n.aggregate_id, n.event_type, n.event_version, n.payload,
                n.occurred_at, n.correlation_id, n.causation_id, n.seq, n.created_at, n.partition_key,
                n.ordering_key, n.headers, n.metadata)::text));
    RETURN NULL;
END $$;
CREATE FUNCTION soak.see_inbox() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' AS $$
DECLARE o public.inbox_messages := OLD; n public.inbox_messages := NEW;
BEGIN
    INSERT INTO soak.inbox_log (who, id, was_owner, owner, was_locked_until, was_attempts, attempts,
        was_processed_at, processed_at, was_dead_lettered_at, dead_lettered_at)
    VALUES (session_user, coalesce(n.message_id, o.message_id), o.locked_by, n.locked_by, o.locked_until,
        o.attempts, n.attempts, o.processed_at, n.processed_at, o.dead_lettered_at, n.dead_lettered_at);
    RETURN NULL;
END $$;
CREATE TRIGGER zz_soak AFTER INSERT OR UPDATE OR DELETE ON outbox_events FOR EACH ROW
    EXECUTE FUNCTION soak.see_outbox();
CREATE TRIGGER zz_soak AFTER INSERT OR UPDATE OR DELETE ON inbox_messages FOR EACH ROW
    EXECUTE FUNCTION soak.see_inbox();
"""
_RIGHTS = """
CREATE ROLE {role} LOGIN PASSWORD '{password}';
GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};
GRANT UPDATE ON outbox_events TO {role};
GRANT INSERT, UPDATE ON inbox_messages TO {role};
GRANT INSERT ON sea_mq_context TO {role};
GRANT INSERT, UPDATE ON sea_mq_consumers, sea_mq_standings TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON sea_mq_sessions TO {role};
"""


async def install(connection: asyncpg.Connection, *, password: str) -> None:
    """Create the log and the workers' roles, with only a worker's rights, in a migrated database."""
    await connection.execute(_CHANGE_LOG)
    for role in WORKERS:
        await connection.execute(_RIGHTS.format(role=role, password=password))
