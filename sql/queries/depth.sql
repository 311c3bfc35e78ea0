-- Queue depth (QRY-050, QRY-051): psql -f sql/queries/depth.sql
-- The schema is the search_path's, as in PGOPTIONS='-c search_path=orders'; it is the context's own database,
-- so that a context needs no parameter.
-- count and oldest_at are the queries' own answer. It includes what no worker has anything to do with now: what is
-- dead, and events that are scheduled, which means not due yet and not failed since they were written or replayed.
-- An event that nobody put off is waiting, also where the clock was set back since it was written.
-- These would keep an alert on age ringing, so that waiting and waiting_seconds tell the backlog without them:
-- count = waiting + scheduled + dead.

-- name: outbox_depth
-- QRY-050: events that are not published, and since when the oldest is. Exact; 3 pages for each 1000 events, and
-- besides the table's own of what came or changed since the last vacuum.
-- waiting_seconds: since the oldest was due; one that has failed: since it was first tried, of the 1000 due first.
-- Indexes: idx_outbox_unpublished, idx_outbox_dead, idx_outbox_due, idx_outbox_retry, both again for keys.
WITH counted AS MATERIALIZED (
    SELECT (SELECT count(*) FROM outbox_events WHERE published_at IS NULL) AS count,
           (SELECT count(*) FROM outbox_events WHERE NOT is_open AND published_at IS NULL) AS dead,
           (SELECT count(*) FROM outbox_events
             WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL AND available_at > now())
           + (SELECT count(*) FROM outbox_events
               WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL AND available_at > now())
           - (SELECT count(*) FROM outbox_events
             WHERE published_at IS NULL AND occurred_at > now() AND is_open AND publish_error IS NULL
               AND available_at > now() AND created_at > now() AND available_at <= created_at + interval '1 minute')
           AS scheduled
), since AS (
    (SELECT available_at AS at FROM outbox_events
      WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL AND available_at <= now()
      ORDER BY available_at LIMIT 1)
     UNION ALL
    (SELECT available_at FROM outbox_events
      WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL AND available_at <= now()
      ORDER BY available_at LIMIT 1)
     UNION ALL
    (SELECT coalesce(first_attempt_at, occurred_at) FROM outbox_events
      WHERE is_open AND ordering_key IS NULL AND publish_error IS NOT NULL
      ORDER BY available_at LIMIT 1000)
     UNION ALL
    (SELECT coalesce(first_attempt_at, occurred_at) FROM outbox_events
      WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NOT NULL
      ORDER BY available_at LIMIT 1000)
)
SELECT count,
       (SELECT occurred_at FROM outbox_events WHERE published_at IS NULL ORDER BY occurred_at LIMIT 1) AS oldest_at,
       count - scheduled - dead AS waiting,
       (SELECT extract(epoch FROM clock_timestamp() - min(at))::float8 FROM since) AS waiting_seconds,
       scheduled, dead
  FROM counted;

-- name: inbox_depth
-- QRY-051: messages that are not processed, and since when the oldest is.
-- Index: idx_inbox_unprocessed. Exact; 0.1 ms for each 1000 messages.
SELECT count(*) AS count, min(received_at) AS oldest_at,
       count(*) FILTER (WHERE dead_lettered_at IS NULL) AS waiting,
       extract(epoch FROM clock_timestamp() - min(received_at) FILTER (WHERE dead_lettered_at IS NULL))::float8
           AS waiting_seconds,
       0 AS scheduled,
       count(*) FILTER (WHERE dead_lettered_at IS NOT NULL) AS dead
  FROM inbox_messages
 WHERE processed_at IS NULL;
