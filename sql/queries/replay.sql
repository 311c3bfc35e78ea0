-- A replay puts events back portion by portion, in the order of seq. Each portion is one statement, which also updates
-- the record in operator_actions. The record's selection is the filter, with "progress": through, the highest seq done,
-- and finished; so an interrupted replay continues where it stopped.

-- name: choose
-- Events to replay, in the order of seq. A filter that is null matches everything. :finished: PUBLISHED is among the
-- states. :through and :begun_at continue a replay: events up to that seq are done, and an event that was published
-- since it began may be its own work.
-- Index: the primary key or idx_outbox_correlation for ids or a correlation, idx_outbox_dead for DEAD events alone;
-- otherwise the whole table is read.
SELECT o.id, o.seq, o.published_at
  FROM outbox_events o
 WHERE o.state = ANY (:states::text[])
   AND (:finished::boolean OR NOT o.is_open AND o.published_at IS NULL)
   AND (:ids::text[] IS NULL OR o.id = ANY (:ids::uuid[]))
   AND (:event_type::text IS NULL OR o.event_type = :event_type)
   AND (:ordering_key::text IS NULL OR o.ordering_key = :ordering_key)
   AND (:aggregate_type::text IS NULL OR o.aggregate_type = :aggregate_type)
   AND (:aggregate_id::text IS NULL OR o.aggregate_id = :aggregate_id)
   AND (:correlation_id::uuid IS NULL OR o.correlation_id = :correlation_id)
   AND (:since::timestamptz IS NULL OR o.created_at >= :since)
   AND (:until::timestamptz IS NULL OR o.created_at < :until)
   AND (:error_like::text IS NULL OR strpos(lower(o.publish_error), lower(:error_like)) > 0)
   AND o.seq > :through::bigint
   AND (:begun_at::timestamptz IS NULL OR o.published_at IS NULL OR o.published_at < :begun_at)
 ORDER BY o.seq
 LIMIT :limit::bigint;

-- name: begin_replay
INSERT INTO operator_actions (actor, action, reason, selection, affected)
VALUES (:actor::text, 'replay', :reason::text,
        :selection::text::jsonb || pg_catalog.jsonb_build_object('progress',
            pg_catalog.jsonb_build_object('through', 0, 'finished', false)), 0)
RETURNING id;

-- name: load_replay
SELECT id, at, actor, reason, selection::text AS selection, affected
  FROM operator_actions
 WHERE id = :action::bigint AND action = 'replay';

-- name: put_back
-- PUBLISHED or DEAD -> PENDING: a new lifecycle, with the same id and the same place in the order of its key.
-- It is due immediately. stream and stream_seq stay, so that the relay can distinguish the earlier copy from the new one:
-- an event that the stream drops as a repeat of that copy waits until the deduplication window is over.
-- is_mine is false, and nothing changes, if another run has continued the same replay.
-- Index: the primary key.
WITH mine AS MATERIALIZED (
    SELECT a.id FROM operator_actions a
     WHERE a.id = :action::bigint AND (a.selection #>> '{progress,through}'::text[])::bigint = :through::bigint
       FOR UPDATE
), replayed AS (
    UPDATE outbox_events o
       SET state = 'PENDING', published_at = NULL, publish_attempts = 0, failures = 0, publish_error = NULL,
           first_attempt_at = NULL, available_at = now()
     WHERE o.id = ANY (:ids::uuid[]) AND o.state IN ('PUBLISHED', 'DEAD') AND EXISTS (SELECT FROM mine)
    RETURNING 1
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM replayed),
           selection = pg_catalog.jsonb_set(a.selection, '{progress,through}', pg_catalog.to_jsonb(:last_seq::bigint))
      FROM mine
     WHERE a.id = mine.id
)
SELECT EXISTS (SELECT FROM mine) AS is_mine, (SELECT count(*) FROM replayed) AS count;

-- name: not_taken
-- Those of the given events that no worker has claimed yet. An event that waits for a failing event of its key, or for
-- a dead one that holds its key, is left out, since it delays no other.
-- Indexes: the primary key, idx_outbox_ordering, idx_outbox_dead.
SELECT o.id
  FROM outbox_events o
 WHERE o.id = ANY (:ids::uuid[]) AND o.state = 'PENDING' AND o.publish_attempts = 0
   AND NOT EXISTS (
       SELECT FROM outbox_events e
        WHERE e.is_open AND e.ordering_key IS NOT NULL AND e.ordering_key = o.ordering_key AND e.seq < o.seq
          AND e.publish_error IS NOT NULL)
   AND NOT (:hold_dead_keys::boolean AND EXISTS (
       SELECT FROM outbox_events dead
        WHERE NOT dead.is_open AND dead.published_at IS NULL
          AND dead.ordering_key = o.ordering_key AND dead.seq < o.seq));

-- name: finish_replay
UPDATE operator_actions a
   SET selection = pg_catalog.jsonb_set(a.selection, '{progress,finished}', 'true'), outcome = 'done'
 WHERE a.id = :action::bigint;
