-- How events are put back: portion after portion in the order of seq, each one statement with its share of the record
-- in operator_actions. The record's selection is the filter, with "progress": through, the highest seq that is done,
-- and finished; so a replay that was cut short goes on where it stopped.

-- name: choose
-- Events that a replay is for, in the order of seq. In filters, a null parameter means: any.
-- Index: the primary key or idx_outbox_correlation where ids or a correlation are given; otherwise the whole table is
-- read, or idx_outbox_dead where only dead ones are asked for.
-- $1 states, $2 no published ones are among them, $3 ids, $4 event type, $5 ordering key, $6 aggregate type,
-- $7 aggregate id, $8 correlation id, $9 created since, $10 created before, $11 part of the error, $12 seq above,
-- $13 published before, $14 limit.
SELECT o.id, o.seq
  FROM outbox_events o
 WHERE o.state = ANY ($1::text[])
   AND (NOT $2::boolean OR NOT o.is_open AND o.published_at IS NULL)
   AND ($3::text[] IS NULL OR o.id = ANY ($3::uuid[]))
   AND ($4::text IS NULL OR o.event_type = $4)
   AND ($5::text IS NULL OR o.ordering_key = $5)
   AND ($6::text IS NULL OR o.aggregate_type = $6)
   AND ($7::text IS NULL OR o.aggregate_id = $7)
   AND ($8::uuid IS NULL OR o.correlation_id = $8)
   AND ($9::timestamptz IS NULL OR o.created_at >= $9)
   AND ($10::timestamptz IS NULL OR o.created_at < $10)
   AND ($11::text IS NULL OR strpos(lower(o.publish_error), lower($11)) > 0)
   AND o.seq > $12::bigint
   AND ($13::timestamptz IS NULL OR o.published_at IS NULL OR o.published_at < $13)
 ORDER BY o.seq
 LIMIT $14::bigint;

-- name: begin_replay
-- $1 actor, $2 reason, $3 selection.
INSERT INTO operator_actions (actor, action, reason, selection, affected)
VALUES ($1::text, 'replay', $2::text,
        $3::text::jsonb || pg_catalog.jsonb_build_object('progress',
            pg_catalog.jsonb_build_object('through', 0, 'finished', false)), 0)
RETURNING id;

-- name: load_replay
-- $1 action.
SELECT id, at, actor, reason, selection::text AS selection, affected
  FROM operator_actions
 WHERE id = $1::bigint AND action = 'replay';

-- name: put_back
-- PUBLISHED or DEAD -> PENDING: a new lifecycle, with the same id and the same place in the order of its key.
-- It is due at once. stream and stream_seq stay, so that the relay can tell the earlier copy from the new one: what the
-- stream drops as a repeat of that copy waits until its duplicate window is over.
-- is_mine is false, and nothing changes, where another run has gone on with the same replay.
-- Index: the primary key.
-- $1 ids, $2 action, $3 where this run left it, $4 the portion's highest seq.
WITH mine AS MATERIALIZED (
    SELECT a.id FROM operator_actions a
     WHERE a.id = $2::bigint AND (a.selection #>> '{progress,through}'::text[])::bigint = $3::bigint
       FOR UPDATE
), replayed AS (
    UPDATE outbox_events o
       SET state = 'PENDING', published_at = NULL, publish_attempts = 0, failures = 0, publish_error = NULL,
           first_attempt_at = NULL, available_at = now()
     WHERE o.id = ANY ($1::uuid[]) AND o.state IN ('PUBLISHED', 'DEAD') AND EXISTS (SELECT FROM mine)
    RETURNING 1
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM replayed),
           selection = pg_catalog.jsonb_set(a.selection, '{progress,through}', pg_catalog.to_jsonb($4::bigint))
      FROM mine
     WHERE a.id = mine.id
)
SELECT EXISTS (SELECT FROM mine) AS is_mine, (SELECT count(*) FROM replayed) AS count;

-- name: not_taken
-- Which of these events no worker has taken yet. One that waits behind a failing event of its key holds up nobody
-- else, and is left out. Indexes: the primary key, idx_outbox_ordering.
-- $1 ids.
SELECT o.id
  FROM outbox_events o
 WHERE o.id = ANY ($1::uuid[]) AND o.state = 'PENDING' AND o.publish_attempts = 0
   AND NOT EXISTS (
       SELECT FROM outbox_events e
        WHERE e.is_open AND e.ordering_key IS NOT NULL AND e.ordering_key = o.ordering_key AND e.seq < o.seq
          AND e.publish_error IS NOT NULL);

-- name: finish_replay
-- $1 action.
UPDATE operator_actions a
   SET selection = pg_catalog.jsonb_set(a.selection, '{progress,finished}', 'true'), outcome = 'done'
 WHERE a.id = $1::bigint;
