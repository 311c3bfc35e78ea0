-- Queries of `pipeline report` in the snapshot of its tables.

-- name: first
-- Time of the first event or message, whole seconds; null: there is none.
SELECT date_trunc('second', least(
    (SELECT min(created_at) FROM outbox_events WHERE created_at BETWEEN '0002-01-01Z' AND '9998-12-31Z'),
    (SELECT min(received_at) FROM inbox_messages WHERE received_at BETWEEN '0002-01-01Z' AND '9998-12-31Z'))) AS at;

-- name: backlog
-- Unfinished events and messages by state and age; age 0: under a minute, 4: over a day.
-- Indexes: idx_outbox_unpublished, idx_inbox_unprocessed.
SELECT way, state, pg_catalog.width_bucket(seconds, ARRAY[60, 600, 3600, 86400]::float8[]) AS age,
       count(*) AS count, max(seconds) AS oldest_seconds
  FROM (SELECT 'outbox' AS way, state, created_at AS begin FROM outbox_events
         WHERE is_open AND published_at IS NULL
        UNION ALL
        SELECT 'inbox', CASE WHEN dead_letter_begun_at IS NOT NULL THEN 'DEAD-LETTERING'
                             WHEN attempts > 1 THEN 'RETRIED' ELSE 'RECEIVED' END, received_at
          FROM inbox_messages
         WHERE processed_at IS NULL AND dead_lettered_at IS NULL) AS unfinished,
       LATERAL (SELECT greatest(0, floor(extract(epoch FROM now() - begin)))::float8 AS seconds) AS waited
 GROUP BY way, state, age
 ORDER BY way DESC, state, age;
