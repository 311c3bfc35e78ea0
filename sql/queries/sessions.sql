-- The context that owns the tables, the sessions of its workers, and the worker that serves the lane.
-- Which sessions live is known by advisory locks that each connection of a worker holds shared.
-- A session that was begun on an earlier start of the server proves nothing: its lock ended with that server.

-- name: begin
-- Records that the session of this connection's lock has begun on this server, forgets those of earlier starts, and
-- wakes the workers that were alone. Index: the primary key.
-- $1 session, $2 sides, $3 worker.
WITH earlier AS (
    DELETE FROM sea_mq_sessions WHERE server_started_at <> pg_postmaster_start_time() AND session <> $1::text
), begun AS (
    INSERT INTO sea_mq_sessions (session, side, worker, server_started_at)
    SELECT $1::text, side, $3::text, pg_postmaster_start_time() FROM pg_catalog.unnest($2::text[]) AS own (side)
        ON CONFLICT (session, side) DO UPDATE SET server_started_at = excluded.server_started_at
)
SELECT pg_notify('sea_mq_sessions.' || hashtext(current_schema()::text)::text, '')
 WHERE pg_notification_queue_usage() < 0.9::float8;

-- name: others
-- The sessions of other workers, and of each whether no connection holds its lock any more. The statement takes a free
-- lock until its end; where a living worker holds it, nothing waits. Few rows, read as a whole. None are returned where
-- somebody has made the table a logged one: it would survive a crash, which no lock does.
-- $1 own session.
WITH known AS MATERIALIZED (
    SELECT session, side, worker FROM sea_mq_sessions
     WHERE session <> $1::text AND server_started_at = pg_postmaster_start_time()
       AND (SELECT relpersistence = 'u' FROM pg_class WHERE oid = 'sea_mq_sessions'::regclass::oid)
)
SELECT session, side, worker,
       pg_try_advisory_xact_lock(7184, ('x' || session)::bit(32)::int) AS is_gone
  FROM known;

-- name: forget
-- Forgets one side of a session whose lock is free. Index: the primary key.
-- $1 session, $2 side.
DELETE FROM sea_mq_sessions
 WHERE session = $1::text AND side = $2::text
   AND pg_try_advisory_xact_lock(7184, ('x' || $1::text)::bit(32)::int);

-- name: connection_limit
-- The smallest number of connections that this login may have, and who sets it; no row for a superuser.
SELECT who, most
  FROM (SELECT 'role ' || rolname::text AS who, rolconnlimit AS most FROM pg_roles WHERE rolname = current_user
        UNION ALL
        SELECT 'database ' || datname::text, datconnlimit FROM pg_database WHERE datname = current_database()
        UNION ALL
        SELECT 'server', current_setting('max_connections')::int
                         - current_setting('superuser_reserved_connections')::int) AS limits
 WHERE most >= 0 AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
 ORDER BY most LIMIT 1;

-- name: take_lane
-- Takes the lane for this session, and describes in one row the session that has it:
--   own        this session; the lock ends with it
--   pid, name  of the other session
--   is_worker  it belongs to a worker: it also holds the lock of a worker's session
--   is_active  it has run a statement within the last seconds; false where this role may not see its activity
--   waiting    only while such a worker has the lane: the seq of events that are due and that any claim might take,
--              the longest due first
-- Indexes: idx_outbox_due_ordered, idx_outbox_retry_ordered; idx_outbox_ordering and idx_outbox_dead for the heads.
-- $1 seconds, $2 a dead event holds the later events of its key.
WITH taken AS MATERIALIZED (
    SELECT pg_try_advisory_lock(7182, hashtext(current_schema()::text)) AS own
), holder AS MATERIALIZED (
    SELECT l.pid, coalesce(a.application_name, '') AS name,
           EXISTS (SELECT FROM pg_locks s
                    WHERE s.pid = l.pid AND s.locktype = 'advisory' AND s.classid = 7184::oid AND s.objsubid = 2
                      AND s.granted) AS is_worker,
           coalesce(a.state_change > clock_timestamp() - $1::float8 * interval '1 second', false) AS is_active
      FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
     WHERE NOT (SELECT own FROM taken) AND l.locktype = 'advisory' AND l.classid = 7182::oid
       AND l.objid = (hashtext(current_schema()::text)::bigint & 4294967295)::oid AND l.objsubid = 2 AND l.granted
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
     LIMIT 1
), due AS MATERIALIZED (
    (SELECT o.seq, o.ordering_key FROM outbox_events o
      WHERE (SELECT is_worker AND is_active FROM holder)
        AND o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NULL
        AND o.state = 'PENDING' AND o.available_at <= now()
      ORDER BY o.available_at, o.seq LIMIT 100)
    UNION ALL
    (SELECT o.seq, o.ordering_key FROM outbox_events o
      WHERE (SELECT is_worker AND is_active FROM holder)
        AND o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NOT NULL
        AND o.state = 'PENDING' AND o.available_at <= now()
      ORDER BY o.available_at, o.seq LIMIT 100)
)
SELECT taken.own, coalesce(holder.pid, 0) AS pid, coalesce(holder.name, '') AS name,
       coalesce(holder.is_worker, false) AS is_worker, coalesce(holder.is_active, false) AS is_active,
       ARRAY(SELECT due.seq FROM due
              WHERE NOT EXISTS (SELECT FROM outbox_events e
                                 WHERE e.is_open AND e.ordering_key IS NOT NULL
                                   AND e.ordering_key = due.ordering_key AND e.seq < due.seq)
                AND NOT ($2::boolean AND EXISTS (SELECT FROM outbox_events dead
                                                  WHERE NOT dead.is_open AND dead.published_at IS NULL
                                                    AND dead.ordering_key = due.ordering_key
                                                    AND dead.seq < due.seq))) AS waiting
  FROM taken LEFT JOIN holder ON true;

-- name: leave_lane
SELECT pg_advisory_unlock(7182, hashtext(current_schema()::text));

-- name: owner
-- The context that owns the tables; no row before the first worker.
SELECT context, current_schema() AS schema FROM sea_mq_context;

-- name: hidden
-- Tables in which row security hides rows from this role.
SELECT t.name
  FROM pg_catalog.unnest(ARRAY['outbox_events', 'inbox_messages']) AS t (name)
 WHERE row_security_active(t.name);

-- name: take_ownership
-- Records the owner, unless there is one. $1 context.
INSERT INTO sea_mq_context (context) VALUES ($1) ON CONFLICT DO NOTHING;
