-- The context that owns the tables, the sessions of its workers, and the workers that serve ordering keys.
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

-- name: share
-- Says that this worker serves events with ordering keys, or that it does not, and returns its place among those that do
-- and their number, itself included. A worker that has said nothing for some seconds does not count, nor does one that
-- said it later than now, before the clock was set back. Few rows, read as a whole.
-- $1 ID of the worker, $2 whether it serves, $3 seconds.
WITH own AS (
    INSERT INTO sea_mq_shares (worker, serves_at) SELECT $1::text, clock_timestamp() WHERE $2::boolean
        ON CONFLICT (worker) DO UPDATE SET serves_at = excluded.serves_at
), ended AS (
    DELETE FROM sea_mq_shares
     WHERE worker IN (SELECT s.worker FROM sea_mq_shares s
                       WHERE s.worker = $1::text AND NOT $2::boolean
                          OR s.worker <> $1::text AND abs(extract(epoch FROM clock_timestamp() - s.serves_at)::float8) > 3600::float8
                         FOR UPDATE SKIP LOCKED)
)
SELECT (count(*) FILTER (WHERE worker < $1::text))::int AS place, count(*)::int + 1 AS workers
  FROM sea_mq_shares
 WHERE worker <> $1::text AND abs(extract(epoch FROM clock_timestamp() - serves_at)::float8) < $3::float8;

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
