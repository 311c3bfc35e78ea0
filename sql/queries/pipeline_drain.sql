-- What a drain asks about its backlog: the events that were due when it began. One of them that has failed since then
-- is due later than it was, and known by its error.
-- $1 when the drain began; null: whatever is due now.

-- name: backlog
-- How much of it is left: due now, or put off after a failed attempt. Reads every open event.
SELECT now() AS at,
       count(*) FILTER (WHERE o.available_at <= now()) AS due,
       count(*) FILTER (WHERE o.available_at > now()) AS postponed
  FROM outbox_events o
 WHERE o.is_open AND o.created_at <= coalesce($1::timestamptz, now())
   AND (o.available_at <= coalesce($1::timestamptz, now()) OR o.publish_error IS NOT NULL);

-- name: is_left
-- Whether any of it will be due within $2 seconds or is leased to a worker, events behind an earlier one of their key
-- that is due later left out. $3 a dead event holds its key.
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
