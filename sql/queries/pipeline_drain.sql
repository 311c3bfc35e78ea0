-- The backlog of a drain: the events that were due at its start. One that has failed since is due later, and is
-- recognised by its error.
-- $1 time of the drain's start; null: now.

-- name: backlog
-- Number of its events that are due now, or postponed after a failed attempt. Reads every open event.
SELECT now() AS at,
       count(*) FILTER (WHERE o.available_at <= now()) AS due,
       count(*) FILTER (WHERE o.available_at > now()) AS postponed
  FROM outbox_events o
 WHERE o.is_open AND o.created_at <= coalesce($1::timestamptz, now())
   AND (o.available_at <= coalesce($1::timestamptz, now()) OR o.publish_error IS NOT NULL);

-- name: is_left
-- Whether any of its events is due within $2 seconds or leased by a worker, without events that wait for an earlier one
-- of their key which is due later. $3: a dead event holds its key.
-- Indexes: idx_outbox_due, idx_outbox_retry, idx_outbox_due_ordered, idx_outbox_retry_ordered, idx_outbox_ordering,
-- idx_outbox_dead.
SELECT EXISTS (
    SELECT FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NULL
       AND o.available_at <= coalesce($1::timestamptz, now()) AND o.created_at <= coalesce($1::timestamptz, now())
) OR EXISTS (
    SELECT FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NOT NULL
       AND o.available_at <= now() + $2::float8 * interval '1 second'
       AND o.created_at <= coalesce($1::timestamptz, now())
) OR EXISTS (
    SELECT FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NULL
       AND o.available_at <= coalesce($1::timestamptz, now()) AND o.created_at <= coalesce($1::timestamptz, now())
       AND NOT EXISTS (
           SELECT FROM outbox_events b
            WHERE b.is_open AND b.ordering_key IS NOT NULL AND b.ordering_key = o.ordering_key AND b.seq < o.seq
              AND b.available_at > now() + $2::float8 * interval '1 second')
       AND NOT ($3::boolean AND EXISTS (
           SELECT FROM outbox_events dead
            WHERE NOT dead.is_open AND dead.published_at IS NULL
              AND dead.ordering_key = o.ordering_key AND dead.seq < o.seq))
) OR EXISTS (
    SELECT FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NOT NULL AND o.publish_error IS NOT NULL
       AND o.available_at <= now() + $2::float8 * interval '1 second'
       AND o.created_at <= coalesce($1::timestamptz, now())
       AND NOT EXISTS (
           SELECT FROM outbox_events b
            WHERE b.is_open AND b.ordering_key IS NOT NULL AND b.ordering_key = o.ordering_key AND b.seq < o.seq
              AND b.available_at > now() + $2::float8 * interval '1 second')
       AND NOT ($3::boolean AND EXISTS (
           SELECT FROM outbox_events dead
            WHERE NOT dead.is_open AND dead.published_at IS NULL
              AND dead.ordering_key = o.ordering_key AND dead.seq < o.seq))
) AS is_left;
