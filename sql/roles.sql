-- Group roles with the least rights that each kind of user needs. The tables' owner, with the right to create roles,
-- runs this script after each `migrate`; repeating it changes nothing:
--
--   psql -v ON_ERROR_STOP=1 -v schema=public -v prefix=sea_mq -f sql/roles.sql
--
--   {prefix}_producer  the service: puts events into the outbox, reads SDS-047's columns of them, marks handled messages,
--                      and can change neither
--   {prefix}_relay     the worker (`run`, `pipeline drain`)
--   {prefix}_operator  `outbox replay|mark-dead`, `inbox close`, `dlq redrive|purge`, `pipeline replay`, with all rights
--                      of the relay
--   {prefix}_janitor   `prune`, `outbox discard`, `pipeline archive|erase`: may delete finished rows only
--   {prefix}_reader    `where`, `depth`, `doctor`, `audit`, `outbox|inbox list|summary|show`,
--                      `pipeline reconcile|report`; sees payloads
--
-- They cannot log in. Each user gets a login that is a member of one of them:
--
--   CREATE ROLE orders_worker LOGIN PASSWORD '...' CONNECTION LIMIT 40 IN ROLE sea_mq_relay;
--
-- The login that migrates owns the tables and needs none of these roles. Give each schema of a cluster its own prefix.

\if :{?schema}
\else
  \set schema public
\endif
\if :{?prefix}
\else
  \set prefix sea_mq
\endif
\set producer :prefix _producer
\set relay :prefix _relay
\set operator :prefix _operator
\set janitor :prefix _janitor
\set reader :prefix _reader

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;

SELECT format('CREATE ROLE %I NOLOGIN', role)
  FROM unnest(ARRAY[:'producer', :'relay', :'operator', :'janitor', :'reader']) AS role
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role)
\gexec

-- Only the owner may create objects in the schema. Rights that were granted earlier and are not below are revoked.
REVOKE CREATE ON SCHEMA :"schema" FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA :"schema"
  FROM :"producer", :"relay", :"operator", :"janitor", :"reader";
REVOKE ALL ON SCHEMA :"schema" FROM :"producer", :"relay", :"operator", :"janitor", :"reader";
GRANT USAGE ON SCHEMA :"schema" TO :"producer", :"relay", :"operator", :"janitor", :"reader";

SET LOCAL search_path = :"schema", pg_temp;

-- Other tables of the schema are not the worker's.
SELECT format('REVOKE ALL ON %I FROM PUBLIC', name)
  FROM (SELECT unnest(ARRAY['sea_mq_migrations', 'sea_mq_context', 'sea_mq_consumers', 'sea_mq_standings',
                            'sea_mq_sessions', 'sea_mq_shares', 'outbox_events', 'inbox_messages', 'handled_messages', 'operator_actions'])
         UNION
        SELECT partition FROM outbox_partitions()) AS own (name)
\gexec
-- A model of SDS-047's columns inserts all of them, and reads them back. Triggers and constraints refuse other values
-- than those of an event that is to be published.
GRANT INSERT (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id,
              causation_id, published_at, publish_attempts, publish_error, partition_key, ordering_key, headers, metadata,
              available_at),
      SELECT (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id,
              causation_id, published_at, publish_attempts, publish_error)
   ON outbox_events TO :"producer";
GRANT INSERT (message_id) ON handled_messages TO :"producer";

GRANT SELECT ON sea_mq_migrations, sea_mq_context, sea_mq_consumers, sea_mq_standings, sea_mq_sessions, sea_mq_shares,
                outbox_events, inbox_messages
   TO :"relay", :"janitor", :"reader";
SELECT format('GRANT SELECT ON SEQUENCE %s, %s TO %I, %I', pg_get_serial_sequence('outbox_events', 'seq'),
              pg_get_serial_sequence('operator_actions', 'id'), :'relay', :'reader')
\gexec
GRANT INSERT (context) ON sea_mq_context TO :"relay";
GRANT INSERT (stream, durable, handler, subjects), UPDATE (subjects, seen_at) ON sea_mq_consumers TO :"relay";
GRANT INSERT, UPDATE ON sea_mq_standings TO :"relay";
GRANT INSERT, UPDATE, DELETE ON sea_mq_sessions, sea_mq_shares TO :"relay";
GRANT UPDATE (state, available_at, publish_attempts, failures, first_attempt_at, stream, stream_seq, claimed_at,
              claimed_by, published_at, publish_error)
   ON outbox_events TO :"relay";
GRANT INSERT (message_id, subject, attempts, consumer, stream, stream_seq, content_hash, locked_until, locked_by,
              reply),
      UPDATE (processed_at, attempts, last_error, consumer, stream, stream_seq, content_hash, locked_until, locked_by, reply,
              dead_letter_reason, dead_letter_begun_at, dead_lettered_at)
   ON inbox_messages TO :"relay";

GRANT :"relay" TO :"operator";
-- Events that only the archive has are restored with their place in the order.
GRANT INSERT (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id,
              causation_id, seq, created_at, partition_key, ordering_key, headers, metadata, stream, stream_seq)
   ON outbox_events TO :"operator";

GRANT DELETE ON outbox_events, inbox_messages, handled_messages TO :"janitor";
GRANT SELECT (message_id) ON handled_messages TO :"janitor";

-- Partitions: the worker may create them, and may change no table otherwise.
REVOKE ALL ON FUNCTION outbox_make_partitions, outbox_drop_partition
  FROM :"producer", :"relay", :"operator", :"janitor", :"reader";
GRANT EXECUTE ON FUNCTION outbox_make_partitions TO :"relay";
GRANT EXECUTE ON FUNCTION outbox_drop_partition TO :"janitor";
DO $$
BEGIN
    PERFORM outbox_copy_rights('outbox_events', format('%I', p.partition)::regclass)
       FROM outbox_partitions() p WHERE p.partition <> 'outbox_events';
END $$;

-- Roles may add audit records, and each login may raise the counts of its own; only the owner can delete them.
GRANT SELECT ON operator_actions TO :"operator", :"janitor", :"reader";
-- The worker may read which types were resumed, but not by whom or why.
GRANT SELECT (id, at, action, selection) ON operator_actions TO :"relay";
GRANT INSERT (actor, action, reason, selection, affected, outcome), UPDATE (affected, selection, outcome)
   ON operator_actions TO :"operator", :"janitor";

COMMIT;
