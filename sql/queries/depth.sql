-- Queue depth (QRY-050, QRY-051): psql -f sql/queries/depth.sql
-- The schema is the search_path's, as in PGOPTIONS='-c search_path=orders'; it is the context's own database,
-- so that a context needs no parameter.
-- count and oldest_at are the queries' own answer. It includes what nobody works on any more, dead events and
-- dead-lettered messages, which would keep an alert on age ringing for ever; so that waiting and waiting_seconds tell
-- the backlog without them, and dead tells them alone: count = waiting + dead.

-- name: outbox_depth
-- QRY-050: events that are not published, and since when the oldest is.
-- Index: idx_outbox_unpublished. Exact; 0.1 ms for each 1000 events.
SELECT count(*) AS count, min(occurred_at) AS oldest_at,
       count(*) FILTER (WHERE is_open) AS waiting,
       extract(epoch FROM clock_timestamp() - min(occurred_at) FILTER (WHERE is_open))::float8 AS waiting_seconds,
       count(*) FILTER (WHERE NOT is_open) AS dead
  FROM outbox_events
 WHERE published_at IS NULL;

-- name: inbox_depth
-- QRY-051: messages that are not processed, and since when the oldest is.
-- Index: idx_inbox_unprocessed. Exact; 0.1 ms for each 1000 messages.
SELECT count(*) AS count, min(received_at) AS oldest_at,
       count(*) FILTER (WHERE dead_lettered_at IS NULL) AS waiting,
       extract(epoch FROM clock_timestamp() - min(received_at) FILTER (WHERE dead_lettered_at IS NULL))::float8
           AS waiting_seconds,
       count(*) FILTER (WHERE dead_lettered_at IS NOT NULL) AS dead
  FROM inbox_messages
 WHERE processed_at IS NULL;
