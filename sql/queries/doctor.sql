-- Facts for `doctor`. No table is read completely, and nothing is changed.

-- name: identity
-- Login, server and time.
SELECT current_user::text AS role, current_database()::text AS database, current_schema()::text AS schema,
       (SELECT context FROM sea_mq_context) AS context,
       (SELECT count(*) FROM pg_stat_replication) AS standbys,
       extract(epoch FROM clock_timestamp())::float8 AS epoch;

-- name: settings
-- Settings of this session, in their own units, and their sources.
-- $1 names.
SELECT s.name, s.setting, s.source FROM pg_settings s WHERE s.name = ANY ($1::text[]);

-- name: connections
-- Numbers and limits of connections on the server, in this database and of this role. own: connections of workers;
-- relays: those that publish, several of each worker; active: those of them that ran a statement lately, or of which
-- this login may not know; workers: the one that each worker keeps open for its upkeep. $1 lately, in seconds.
SELECT pg_catalog.count(a.pid) AS used,
       count(*) FILTER (WHERE a.datid = d.oid) AS database_used,
       count(*) FILTER (WHERE a.usesysid = r.oid) AS role_used,
       count(*) FILTER (WHERE a.datid = d.oid AND a.application_name LIKE 'sea_mq_worker %') AS own,
       count(*) FILTER (WHERE a.datid = d.oid AND a.application_name = 'sea_mq_worker outbox') AS relays,
       count(*) FILTER (WHERE a.datid = d.oid AND a.application_name = 'sea_mq_worker outbox'
                          AND coalesce(a.state_change > clock_timestamp() - $1::float8 * interval '1 second', true))
           AS active,
       count(*) FILTER (WHERE a.datid = d.oid AND a.application_name = 'sea_mq_worker upkeep') AS workers,
       d.datconnlimit AS database_max, r.rolconnlimit AS role_max
  FROM pg_database d
  JOIN pg_roles r ON r.rolname = current_user
  LEFT JOIN pg_stat_activity a ON a.datid IS NOT NULL AND a.usesysid IS NOT NULL
 WHERE d.datname = current_database()
 GROUP BY d.datconnlimit, r.rolconnlimit;

-- name: transactions
-- Transactions of this database that hold vacuum back, prepared ones too. A login without rights sees only its own.
-- $1 least age in seconds.
(SELECT a.pid, coalesce(a.state, '') || ', of ' || coalesce(nullif(a.application_name, ''), 'an unnamed program') AS name,
        extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
   FROM pg_stat_activity a
  WHERE a.datname = current_database() AND a.usesysid IS NOT NULL AND a.pid <> pg_backend_pid()
    AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL)
    AND a.xact_start < clock_timestamp() - $1::float8 * interval '1 second'
  ORDER BY a.xact_start
  LIMIT 5)
 UNION ALL
(SELECT NULL, p.gid, extract(epoch FROM clock_timestamp() - p.prepared)::float8
   FROM pg_prepared_xacts p
  WHERE p.database = current_database() AND p.prepared < clock_timestamp() - $1::float8 * interval '1 second'
  ORDER BY p.prepared
  LIMIT 5);

-- name: locks
-- Sessions that block the worker from a table, or will when they get their lock. A login without rights sees no age.
-- $1 tables, $2 least age in seconds; below 0: also those without an age.
SELECT l.relation::regclass::text AS relation, l.pid, l.mode, l.granted, coalesce(a.application_name, '') AS name, x.seconds
  FROM pg_locks l
  JOIN pg_catalog.unnest($1::text[]) AS wanted (name) ON l.relation = to_regclass(wanted.name)::oid
  JOIN pg_stat_activity a ON a.pid = l.pid
 CROSS JOIN LATERAL (
       SELECT coalesce(extract(epoch FROM clock_timestamp() - coalesce(l.waitstart, a.xact_start)), 0)::float8
       ) AS x (seconds)
 WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   AND x.seconds > $2::float8
 ORDER BY x.seconds DESC
 LIMIT 5;

-- name: tables
-- Each partition is listed separately; the partitioned table itself has no rows.
-- $1 tables.
SELECT c.relname::text AS name, c.relkind = 'p' AS partitioned, row_security_active(c.oid) AS filtered,
       c.relpersistence = 'u' AND c.relname NOT IN ('sea_mq_sessions', 'sea_mq_shares') AS unlogged,
       coalesce((SELECT o.option_value::boolean FROM pg_options_to_table(c.reloptions) o
                  WHERE o.option_name = 'autovacuum_enabled'), true) AS vacuumed
  FROM pg_catalog.unnest($1::text[]) AS wanted (name)
  JOIN pg_class c
    ON c.oid = to_regclass(wanted.name)::oid
    OR c.oid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = to_regclass(wanted.name)::oid);

-- name: indexes
-- $1 tables.
SELECT i.indexrelid::regclass::text AS name, i.indisvalid AND i.indisready AS valid
  FROM pg_index i
  JOIN pg_catalog.unnest($1::text[]) AS wanted (name) ON i.indrelid = to_regclass(wanted.name)::oid;

-- name: triggers
-- $1 tables.
SELECT t.tgname::text AS name, t.tgrelid::regclass::text AS relation, t.tgenabled <> 'D' AS enabled
  FROM pg_trigger t
  JOIN pg_catalog.unnest($1::text[]) AS wanted (name) ON t.tgrelid = to_regclass(wanted.name)::oid
 WHERE NOT t.tgisinternal;

-- name: rights
-- Rights of the relay in sql/roles.sql that this login lacks; no columns: on the whole table.
SELECT needed.relation, needed.privilege,
       coalesce(pg_catalog.array_agg(single.name) FILTER (WHERE single.name IS NOT NULL), '{}') AS columns
  FROM (VALUES
        ('sea_mq_migrations', 'SELECT', '{}'::text[]),
        ('sea_mq_context', 'SELECT', '{}'),
        ('sea_mq_context', 'INSERT', '{context}'),
        ('sea_mq_consumers', 'SELECT', '{}'),
        ('sea_mq_consumers', 'INSERT', '{stream,durable,handler,subjects}'),
        ('sea_mq_consumers', 'UPDATE', '{subjects,seen_at}'),
        ('sea_mq_standings', 'SELECT', '{}'),
        ('sea_mq_standings', 'INSERT', '{}'),
        ('sea_mq_standings', 'UPDATE', '{}'),
        ('sea_mq_sessions', 'SELECT', '{}'),
        ('sea_mq_sessions', 'INSERT', '{}'),
        ('sea_mq_sessions', 'UPDATE', '{}'),
        ('sea_mq_sessions', 'DELETE', '{}'),
        ('sea_mq_shares', 'SELECT', '{}'),
        ('sea_mq_shares', 'INSERT', '{}'),
        ('sea_mq_shares', 'UPDATE', '{}'),
        ('sea_mq_shares', 'DELETE', '{}'),
        ('outbox_events', 'SELECT', '{}'),
        ('outbox_events', 'UPDATE',
         '{state,available_at,publish_attempts,failures,first_attempt_at,stream,stream_seq,claimed_at,claimed_by,'
         'published_at,publish_error}'),
        ('inbox_messages', 'SELECT', '{}'),
        ('inbox_messages', 'INSERT',
         '{message_id,subject,attempts,consumer,stream,stream_seq,content_hash,locked_until,locked_by,reply}'),
        ('inbox_messages', 'UPDATE',
         '{processed_at,attempts,last_error,consumer,stream,stream_seq,content_hash,locked_until,locked_by,reply,'
         'dead_letter_reason,dead_letter_begun_at,dead_lettered_at}')
       ) AS needed (relation, privilege, columns)
  LEFT JOIN LATERAL pg_catalog.unnest(needed.columns) AS single (name) ON true
 WHERE NOT CASE WHEN to_regclass(needed.relation) IS NULL THEN true
                WHEN single.name IS NULL THEN has_table_privilege(needed.relation, needed.privilege)
                ELSE has_column_privilege(needed.relation, single.name, needed.privilege) END
 GROUP BY needed.relation, needed.privilege
 ORDER BY needed.relation, needed.privilege;

-- name: outbox
-- Due time of the oldest open event, number of DEAD events (up to 10000), and the age of the oldest published event in
-- the first 100 pages (of each partition). Indexes: idx_outbox_due, idx_outbox_retry, both also for keys, idx_outbox_dead.
WITH due AS MATERIALIZED (
    (SELECT LEAST(GREATEST(available_at, '0001-01-01Z'), '9999-12-31Z') AS available_at FROM outbox_events WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL
      ORDER BY outbox_events.available_at LIMIT 1)
    UNION ALL
    (SELECT LEAST(GREATEST(available_at, '0001-01-01Z'), '9999-12-31Z') AS available_at FROM outbox_events WHERE is_open AND ordering_key IS NULL AND publish_error IS NOT NULL
      ORDER BY outbox_events.available_at LIMIT 1)
    UNION ALL
    (SELECT LEAST(GREATEST(available_at, '0001-01-01Z'), '9999-12-31Z') AS available_at FROM outbox_events WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL
      ORDER BY outbox_events.available_at LIMIT 1)
    UNION ALL
    (SELECT LEAST(GREATEST(available_at, '0001-01-01Z'), '9999-12-31Z') AS available_at FROM outbox_events WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NOT NULL
      ORDER BY outbox_events.available_at LIMIT 1)
)
SELECT GREATEST(0, (SELECT extract(epoch FROM clock_timestamp() - min(available_at)) FROM due))::float8 AS due_seconds,
       (SELECT count(*) FROM (SELECT FROM outbox_events
                               WHERE NOT is_open AND published_at IS NULL
                               ORDER BY ordering_key, seq LIMIT 10000) x) AS dead,
       (SELECT coalesce(extract(epoch FROM now() - min(LEAST(GREATEST(published_at, '0001-01-01Z'), '9999-12-31Z')) FILTER (WHERE published_at IS NOT NULL)), 0)
          FROM outbox_events WHERE ctid < '(100,0)'::tid)::float8 AS published_seconds;

-- name: failing
-- The five most frequent last errors of open events and of open messages: number, begin and an example. It reads at
-- most 5000 events of each lane, and the 10000 oldest messages.
-- Indexes: idx_outbox_retry, idx_outbox_retry_ordered, idx_inbox_unprocessed. $1 and $2 as in operators/records.py.
WITH failed AS MATERIALIZED (
    (SELECT 'outbox' AS side, id, publish_error AS error, coalesce(first_attempt_at, occurred_at) AS since
       FROM outbox_events WHERE is_open AND ordering_key IS NULL AND publish_error IS NOT NULL
      ORDER BY available_at LIMIT 5000)
     UNION ALL
    (SELECT 'outbox', id, publish_error, coalesce(first_attempt_at, occurred_at)
       FROM outbox_events WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NOT NULL
      ORDER BY available_at LIMIT 5000)
     UNION ALL
    (SELECT 'inbox', x.message_id, x.last_error, x.received_at
       FROM (SELECT message_id, last_error, received_at FROM inbox_messages
              WHERE processed_at IS NULL AND dead_lettered_at IS NULL ORDER BY received_at LIMIT 10000) x
      WHERE x.last_error IS NOT NULL)
), alike AS (
    SELECT side, regexp_replace(regexp_replace(error, $1::text, '\1#', 'g'), $2::text, '\1', 'g') AS error,
           count(*) AS count, min(LEAST(GREATEST(since, '0001-01-01Z'), '9999-12-31Z')) AS since,
           min(id::text) AS example
      FROM failed
     GROUP BY 1, 2
)
SELECT side, error, count, example,
       extract(epoch FROM clock_timestamp() - since)::float8 AS seconds
  FROM (SELECT a.*, row_number() OVER (PARTITION BY side ORDER BY count DESC, error) AS place FROM alike a) ranked
 WHERE place <= 5
 ORDER BY side DESC, place;

-- name: sequence
-- The last assigned seq, and the highest seq of the latest 1000 events by two orders. The last one is null if this login
-- may not read it. Indexes: the primary key, idx_outbox_unpublished.
SELECT CASE WHEN has_sequence_privilege(q.seqrelid, 'SELECT, USAGE')
            THEN coalesce(pg_sequence_last_value(q.seqrelid::regclass), q.seqstart - 1) END AS last,
       GREATEST((SELECT max(x.seq) FROM (SELECT seq FROM outbox_events ORDER BY id DESC LIMIT 1000) x),
                (SELECT max(x.seq) FROM (SELECT seq FROM outbox_events WHERE published_at IS NULL
                                          ORDER BY occurred_at DESC LIMIT 1000) x)) AS highest
  FROM pg_sequence q
 WHERE q.seqrelid = pg_get_serial_sequence('outbox_events', 'seq')::regclass::oid;

-- name: partitions
-- Time for which partitions exist in advance. No row: the outbox has none.
SELECT GREATEST(0, extract(epoch FROM max(p.until_at) - now()))::float8 AS ahead_seconds
  FROM outbox_partitions() p
 WHERE p.partition <> 'outbox_events'
HAVING count(*) > 0;

-- name: inbox
-- Of the 10000 oldest unsettled messages, by consumer, those that no worker leases.
-- Index: idx_inbox_unprocessed.
SELECT coalesce(x.stream, '') AS stream, coalesce(x.consumer, '') AS consumer,
       count(*) FILTER (WHERE x.waits) AS count,
       coalesce(extract(epoch FROM clock_timestamp() - min(LEAST(GREATEST(x.received_at, '0001-01-01Z'), '9999-12-31Z'))
           FILTER (WHERE x.waits)), 0)::float8 AS seconds,
       min(x.stream_seq) FILTER (WHERE x.waits) AS first_seq
  FROM (SELECT stream, consumer, received_at, stream_seq, locked_until IS NULL OR locked_until <= now() AS waits
          FROM inbox_messages
         WHERE processed_at IS NULL AND dead_lettered_at IS NULL
         ORDER BY received_at LIMIT 10000) x
 GROUP BY x.stream, x.consumer
HAVING count(*) FILTER (WHERE x.waits) > 0;

-- name: foreign_triggers
-- Triggers of others that run before each change of a row. $1 tables, $2 names of the schema's own triggers.
SELECT t.tgname::text AS name, t.tgrelid::regclass::text AS relation, t.tgfoid::regproc::text AS function
  FROM pg_trigger t
  JOIN pg_catalog.unnest($1::text[]) AS wanted (name)
    ON t.tgrelid = to_regclass(wanted.name)::oid
    OR t.tgrelid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = to_regclass(wanted.name)::oid)
 WHERE NOT t.tgisinternal AND t.tgparentid = 0::oid AND t.tgenabled <> 'D' AND t.tgtype::int & 19 = 19
   AND t.tgname::text <> ALL ($2::text[]);

-- name: notifications
-- How full the server's queue of notifications is, and the session with the oldest transaction: a listener in a
-- transaction keeps all notifications since. A login without rights sees only its own sessions.
SELECT pg_notification_queue_usage() AS usage, oldest.pid, coalesce(oldest.name, '') AS name,
       coalesce(oldest.seconds, 0) AS seconds
  FROM (SELECT 1) one
  LEFT JOIN (
    SELECT a.pid, a.application_name AS name, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
      FROM pg_stat_activity a
     WHERE a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
     ORDER BY a.xact_start
     LIMIT 1) oldest ON true;

-- name: publications
-- Publications of changes of a table or its partitions, the replica identity of each, and its primary key. $1 table.
SELECT p.pubname::text AS name, c.relname::text AS relation, c.relreplident IN ('d'::"char", 'i'::"char") AS by_index,
       (SELECT k.relname::text FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid
         WHERE i.indrelid = c.oid AND i.indisprimary) AS primary_key
  FROM pg_publication_tables t
  JOIN pg_publication p ON p.pubname = t.pubname AND p.pubupdate
  JOIN pg_class c ON c.relname = t.tablename AND c.relnamespace = quote_ident(t.schemaname::text)::regnamespace::oid
 WHERE c.oid = to_regclass($1::text)::oid
    OR c.oid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = to_regclass($1::text)::oid)
 ORDER BY 1, 2;
