-- A backlog: the events that were due at a time, such as the start of a worker that publishes them and ends. One that
-- has failed since is due later, and is recognised by its error.
-- $1 that time.

-- name: counts
-- Number of its unpublished events: due now, postponed after a failed attempt, or DEAD. Reads every event that is not
-- published. $1 null: now.
SELECT now() AS at,
       count(*) FILTER (WHERE o.is_open AND o.available_at <= now()) AS due,
       count(*) FILTER (WHERE o.is_open AND o.available_at > now()) AS postponed,
       count(*) FILTER (WHERE NOT o.is_open) AS dead
  FROM outbox_events o
 WHERE o.published_at IS NULL AND o.created_at <= coalesce($1::timestamptz, now())
   AND (o.available_at <= coalesce($1::timestamptz, now()) OR o.publish_error IS NOT NULL OR NOT o.is_open);

-- name: is_deliverable
-- Whether any of its events is due within $2 seconds or leased by a worker, without events that wait for an earlier one
-- of their key which is due later. $3: a dead event holds its key. OFFSET 0 makes PostgreSQL look an earlier event up by
-- its key, whatever the statistics: a join would compare each event with each that is due later.
-- Indexes: idx_outbox_due, idx_outbox_retry, idx_outbox_due_ordered, idx_outbox_retry_ordered, idx_outbox_ordering,
-- idx_outbox_dead.
SELECT EXISTS (
    SELECT FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NULL
       AND o.available_at <= $1::timestamptz AND o.created_at <= $1
) OR EXISTS (
    SELECT FROM outbox_events o
     WHERE o.is_open AND o.ordering_key IS NULL AND o.publish_error IS NOT NULL
       AND o.available_at <= now() + $2::float8 * interval '1 second' AND o.created_at <= $1
) OR EXISTS (
    SELECT FROM (
        SELECT ordering_key, seq FROM outbox_events
         WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL
           AND available_at <= $1 AND created_at <= $1
         UNION ALL
        SELECT ordering_key, seq FROM outbox_events
         WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NOT NULL
           AND available_at <= now() + $2 * interval '1 second' AND created_at <= $1
    ) o
     WHERE NOT EXISTS (
           SELECT FROM outbox_events b
            WHERE b.is_open AND b.ordering_key IS NOT NULL AND b.ordering_key = o.ordering_key AND b.seq < o.seq
              AND b.available_at > now() + $2 * interval '1 second' OFFSET 0)
       AND NOT ($3::boolean AND EXISTS (
           SELECT FROM outbox_events dead
            WHERE NOT dead.is_open AND dead.published_at IS NULL
              AND dead.ordering_key = o.ordering_key AND dead.seq < o.seq))
) AS is_deliverable;
