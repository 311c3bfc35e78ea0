-- Which worker claims the events that have an ordering key.

-- name: take
-- Takes the lane for this session. Returns in one row who has it:
--   own    this session; the lock ends with it
--   other  another session, which has run a statement within the last seconds
--   idle   another session, which has not, or whose activity this role may not see: whoever wants may claim
-- $1 seconds.
SELECT CASE
    WHEN pg_try_advisory_lock(7182, hashtext(current_schema()::text)) THEN 'own'
    WHEN EXISTS (
        SELECT FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
         WHERE l.locktype = 'advisory' AND l.classid = 7182::oid
           AND l.objid = (hashtext(current_schema()::text)::bigint & 4294967295)::oid AND l.objsubid = 2 AND l.granted
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND a.state_change > clock_timestamp() - $1::float8 * interval '1 second'
    ) THEN 'other'
    ELSE 'idle' END AS holder;

-- name: leave
SELECT pg_advisory_unlock(7182, hashtext(current_schema()::text));
