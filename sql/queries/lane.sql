-- Which worker claims the events that have an ordering key.

-- name: take
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

-- name: leave
SELECT pg_advisory_unlock(7182, hashtext(current_schema()::text));
