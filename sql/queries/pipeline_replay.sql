-- `pipeline replay` puts events back batch by batch, in the order of seq. Each batch is one transaction, which also
-- updates the audit record. The record's selection is the filter, with "progress": through, the highest seq done;
-- stopped; finished; and as_given, the filter as the operator wrote it, by which an interrupted run is found again.

-- name: begin
-- $1 actor, $2 reason, $3 selection, $4 the selection as given.
INSERT INTO operator_actions (actor, action, reason, selection, affected)
VALUES ($1::text, 'replay', $2::text,
        $3::text::jsonb || pg_catalog.jsonb_build_object('progress', pg_catalog.jsonb_build_object(
            'through', 0, 'finished', false, 'as_given', $4::text::jsonb)), 0)
RETURNING id, at, selection::text AS selection, (selection #>> '{progress,through}'::text[])::bigint AS through;

-- name: unfinished
-- The latest replay with the same selection as given, unless it is finished. Reads the table, which has one row for each
-- operator action.
-- $1 selection as it was given.
SELECT l.id, l.at, l.selection::text AS selection, (l.selection #>> '{progress,through}'::text[])::bigint AS through
  FROM (
        SELECT a.id, a.at, a.selection
          FROM operator_actions a
         WHERE a.action = 'replay' AND a.selection #> '{progress,as_given}'::text[] = $1::text::jsonb
         ORDER BY a.id DESC
         LIMIT 1
       ) AS l
 WHERE NOT (l.selection #>> '{progress,finished}'::text[])::boolean;

-- name: progress
-- $1 action.
SELECT (a.selection #>> '{progress,through}'::text[])::bigint AS through,
       coalesce((a.selection #>> '{progress,stopped}'::text[])::boolean, false) AS stopped,
       a.affected
  FROM operator_actions a
 WHERE a.id = $1::bigint;

-- name: stop
-- Lets the run end before its next batch, or allows another run.
-- $1 action, $2 whether to stop.
UPDATE operator_actions a
   SET selection = pg_catalog.jsonb_set(a.selection, '{progress,stopped}', pg_catalog.to_jsonb($2::boolean))
 WHERE a.id = $1::bigint;

-- name: advance
-- First statement of a batch: locks the record, so that only one of two runs continues. No row: another run did, or
-- this one is to stop.
-- $1 action, $2 seq that this run has reached, $3 the batch's highest seq.
UPDATE operator_actions a
   SET selection = pg_catalog.jsonb_set(a.selection, '{progress,through}', pg_catalog.to_jsonb($3::bigint))
 WHERE a.id = $1::bigint AND (a.selection #>> '{progress,through}'::text[])::bigint = $2::bigint
   AND NOT coalesce((a.selection #>> '{progress,stopped}'::text[])::boolean, false)
RETURNING a.id;

-- name: requeue
-- Events that are in the table: PUBLISHED or DEAD -> PENDING, as put_back in replay.sql.
-- Index: the primary key.
-- $1 ids.
UPDATE outbox_events o
   SET state = 'PENDING', published_at = NULL, publish_attempts = 0, failures = 0, publish_error = NULL,
       first_attempt_at = NULL, available_at = now()
 WHERE o.id = ANY ($1::uuid[]) AND o.state IN ('PUBLISHED', 'DEAD')
RETURNING o.id::text AS id;

-- name: restore
-- Events that only the archive has: inserted with all their columns, also seq, their place in the order of their key.
-- stream and stream_seq let the relay distinguish the earlier copy from the new one.
-- $1 .. $17 one element for each event, named below.
INSERT INTO outbox_events
       (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id,
        causation_id, seq, created_at, partition_key, ordering_key, headers, metadata, stream, stream_seq)
OVERRIDING SYSTEM VALUE
SELECT v.id, v.aggregate_type, v.aggregate_id, v.event_type, v.event_version, v.payload::jsonb,
       v.occurred_at::timestamptz, v.correlation_id, v.causation_id, v.seq, v.created_at::timestamptz, v.partition_key,
       v.ordering_key, v.headers::jsonb, v.metadata::jsonb, v.stream, v.stream_seq
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::text[], $7::text[], $8::uuid[],
              $9::uuid[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
              $16::text[], $17::bigint[])
       AS v (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, correlation_id,
             causation_id, seq, created_at, partition_key, ordering_key, headers, metadata, stream, stream_seq)
    ON CONFLICT (id) DO NOTHING
RETURNING id::text AS id;

-- name: count
-- Last statement of a batch.
-- $1 action, $2 number of events that were put back.
UPDATE operator_actions a SET affected = a.affected + $2::int WHERE a.id = $1::bigint;

-- name: finish
-- $1 action.
UPDATE operator_actions a
   SET selection = pg_catalog.jsonb_set(a.selection, '{progress,finished}', 'true'), outcome = 'done'
 WHERE a.id = $1::bigint;
