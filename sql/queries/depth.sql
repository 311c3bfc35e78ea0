-- Queue depth (QRY-050, QRY-051): psql -f sql/queries/depth.sql
-- The schema is the search_path's, as in PGOPTIONS='-c search_path=orders'; it is the context's own database,
-- so that a context needs no parameter.

-- name: outbox_depth
-- QRY-050: events that are not published, waiting and dead ones alike, and since when the oldest is.
-- Index: idx_outbox_unpublished. Exact; 0.1 ms for each 1000 events.
SELECT count(*) AS count, min(occurred_at) AS oldest_at
  FROM outbox_events
 WHERE published_at IS NULL;

-- name: inbox_depth
-- QRY-051: messages that are not processed, dead-lettered ones included, and since when the oldest is.
-- Index: idx_inbox_unprocessed.
SELECT count(*) AS count, min(received_at) AS oldest_at
  FROM inbox_messages
 WHERE processed_at IS NULL;
