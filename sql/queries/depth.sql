-- Queue depth (QRY-050, QRY-051): psql -f sql/queries/depth.sql
-- The schema is the search_path's, as in PGOPTIONS='-c search_path=orders'. It belongs to one context, so the context
-- is no parameter.
-- count and oldest_at are the queries' specified result. They include dead rows and scheduled events, which are not
-- due yet and have not failed since they were written or replayed. An event without a delay is waiting, even if the
-- clock was set back since it was written.
-- Dead and scheduled rows would raise an alert on age for ever, so waiting and waiting_seconds leave them out:
-- count = waiting + scheduled + dead, and of messages those that an operator closed.

-- name: outbox_depth
-- QRY-050: number of unpublished events, and time of the oldest. Exact; reads 3 pages for each 1000 events, and the
-- table's pages that changed since the last vacuum.
-- waiting_seconds: since the oldest was due; for a failed event, since its first attempt (of the 1000 due first).
-- Indexes: idx_outbox_unpublished, idx_outbox_dead, idx_outbox_due, idx_outbox_retry, and the latter two for keys.
WITH counted AS MATERIALIZED (
    SELECT (SELECT count(*) FROM outbox_events WHERE published_at IS NULL) AS count,
           (SELECT count(*) FROM outbox_events WHERE NOT is_open AND published_at IS NULL) AS dead,
           (SELECT count(*) FROM outbox_events
             WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL AND available_at > now())
           + (SELECT count(*) FROM outbox_events
               WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL AND available_at > now())
           - (SELECT count(*) FROM outbox_events
             WHERE published_at IS NULL AND occurred_at > now() AND is_open AND publish_error IS NULL
               AND available_at > now() AND created_at > clock_timestamp() AND available_at <= LEAST(created_at, '9999-12-31Z') + interval '1 minute')
           AS scheduled
), since AS (
    (SELECT GREATEST(available_at, '0001-01-01Z') AS at FROM outbox_events
      WHERE is_open AND ordering_key IS NULL AND publish_error IS NULL AND available_at <= now()
      ORDER BY available_at LIMIT 1)
     UNION ALL
    (SELECT GREATEST(available_at, '0001-01-01Z') FROM outbox_events
      WHERE is_open AND ordering_key IS NOT NULL AND publish_error IS NULL AND available_at <= now()
      ORDER BY available_at LIMIT 1)
     UNION ALL
    (SELECT LEAST(GREATEST(coalesce(first_attempt_at, occurred_at), '0001-01-01Z'), '9999-12-31Z') FROM outbox_events
      WHERE is_open AND ordering_key IS NULL AND publish_error IS NOT NULL
      ORDER BY available_at LIMIT 1000)
     UNION ALL
    (SELECT LEAST(GREATEST(coalesce(first_attempt_at, occurred_at), '0001-01-01Z'), '9999-12-31Z') FROM outbox_events
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
-- QRY-051: number of unprocessed messages, and time of the oldest.
-- Index: idx_inbox_unprocessed. Exact; 0.1 ms for each 1000 messages.
SELECT count(*) AS count, min(received_at) AS oldest_at,
       count(*) FILTER (WHERE dead_lettered_at IS NULL) AS waiting,
       extract(epoch FROM clock_timestamp() - min(LEAST(GREATEST(received_at, '0001-01-01Z'), '9999-12-31Z'))
                                                  FILTER (WHERE dead_lettered_at IS NULL))::float8 AS waiting_seconds,
       0 AS scheduled,
       count(*) FILTER (WHERE dead_lettered_at IS NOT NULL AND dead_letter_reason IS DISTINCT FROM 'CLOSED') AS dead
  FROM inbox_messages
 WHERE processed_at IS NULL;
