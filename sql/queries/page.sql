-- Queries of the worker's page beside the depth; its totals are counted in telemetry/metrics.py.
-- They only read, at a cost that does not depend on the backlog.

-- name: overview
-- Reasons of DEAD events and of dead-lettered messages that no operator closed, the most frequent first, from a limited
-- number of rows; and the number of workers, by the session that each of them keeps open for its maintenance.
-- Indexes: idx_outbox_dead, idx_inbox_dead_lettered.
-- $1 limit of rows, $2 limit of reasons, $3 name of the sessions.
(SELECT 'outbox' AS kind, left(o.publish_error, 200) AS name, count(*) AS count
   FROM (SELECT d.publish_error FROM outbox_events d
          WHERE NOT d.is_open AND d.published_at IS NULL LIMIT $1::int) o
  GROUP BY left(o.publish_error, 200) ORDER BY count(*) DESC LIMIT $2::int)
 UNION ALL
(SELECT 'inbox', i.dead_letter_reason, count(*)
   FROM (SELECT d.dead_letter_reason FROM inbox_messages d
          WHERE d.dead_lettered_at IS NOT NULL ORDER BY d.dead_lettered_at DESC LIMIT $1::int) i
  WHERE i.dead_letter_reason IS DISTINCT FROM 'CLOSED'
  GROUP BY i.dead_letter_reason ORDER BY count(*) DESC LIMIT $2::int)
 UNION ALL
SELECT 'workers', NULL, count(*)
  FROM pg_catalog.pg_stat_activity a
 WHERE a.datname = current_database() AND a.application_name = $3::text;

-- name: dead_events
-- DEAD events, the latest first, from a limited number of rows.
-- Index: idx_outbox_dead.
-- $1 event type, $2 part of the error, $3 seq below, $4 limit of rows, $5 limit; null means any.
SELECT *
  FROM (SELECT o.id, o.seq, left(o.event_type, 1024) AS event_type, o.ordering_key, o.failures, o.created_at, o.publish_error AS last_error
          FROM outbox_events o
         WHERE NOT o.is_open AND o.published_at IS NULL
           AND ($1::text IS NULL OR o.event_type = $1)
           AND ($2::text IS NULL OR strpos(lower(o.publish_error), lower($2)) > 0)
           AND ($3::bigint IS NULL OR o.seq < $3)
         LIMIT $4::int) dead
 ORDER BY dead.seq DESC
 LIMIT $5::int;
