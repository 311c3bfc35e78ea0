-- Operators' changes (Open Outbox, operator). Every change is made in the same transaction as its record in
-- operator_actions.

-- name: begin_action
-- Opens the record of an action with several steps; each step adds its changes.
-- $1 actor, $2 action, $3 reason, $4 selection.
INSERT INTO operator_actions (actor, action, reason, selection, affected)
VALUES ($1::text, $2::text, $3::text, $4::text::jsonb, 0)
RETURNING id;

-- name: finish_action
-- Closes a record; nothing about it changes afterwards. A redrive changes one message or none.
-- $1 action, $2 outcome.
UPDATE operator_actions a
   SET outcome = $2::text, affected = a.affected + (a.action = 'redrive' AND $2::text = 'done')::int
 WHERE a.id = $1::bigint AND a.outcome IS NULL;

-- name: make_due
-- First of three steps by which an operator ends PENDING events: makes them due and locks them. The lifecycle has no
-- transition PENDING -> DEAD, and only a due event can be claimed. Index: the primary key.
-- $1 ids.
UPDATE outbox_events o
   SET available_at = LEAST(o.available_at, now())
 WHERE o.id = ANY ($1::uuid[]) AND o.state = 'PENDING'
RETURNING o.id;

-- name: claim_as_operator
-- Second of the three steps: PENDING -> CLAIMED.
-- $1 ids, $2 actor.
UPDATE outbox_events o
   SET state = 'CLAIMED', claimed_at = statement_timestamp(), claimed_by = 'operator ' || $2::text,
       publish_attempts = o.publish_attempts + (o.publish_attempts < 2147483647)::int
 WHERE o.id = ANY ($1::uuid[]);

-- name: mark_dead
-- Last of the three steps: CLAIMED -> DEAD, counted in the audit record.
-- $1 ids, $2 error, $3 action.
WITH ended AS (
    UPDATE outbox_events o
       SET state = 'DEAD', claimed_at = NULL, claimed_by = NULL, publish_error = left($2::text, 2000)
     WHERE o.id = ANY ($1::uuid[])
    RETURNING 1
)
UPDATE operator_actions a
   SET affected = a.affected + (SELECT count(*) FROM ended),
       outcome = CASE WHEN EXISTS (SELECT FROM ended) THEN 'done' ELSE 'refused' END
 WHERE a.id = $3::bigint;

-- name: discard
-- Deletes DEAD events for good, and records everything about them except their contents. An event that is not DEAD at
-- that time stays. Index: the primary key.
-- $1 ids, $2 actor, $3 reason, $4 selection.
WITH discarded AS (
    DELETE FROM outbox_events o
     WHERE o.id = ANY ($1::uuid[]) AND o.state = 'DEAD'
    RETURNING o.id, o.seq, o.aggregate_type, o.aggregate_id, o.event_type, o.ordering_key, o.created_at, o.publish_error
), recorded AS (
    INSERT INTO operator_actions (actor, action, reason, selection, affected, outcome)
    SELECT $2::text, 'discard', $3::text,
           $4::text::jsonb || pg_catalog.jsonb_build_object('discarded', coalesce(pg_catalog.jsonb_agg(
               pg_catalog.jsonb_build_object(
                   'id', d.id, 'aggregate_type', d.aggregate_type, 'aggregate_id', d.aggregate_id,
                   'event_type', d.event_type, 'ordering_key', d.ordering_key, 'created_at', d.created_at,
                   'error', d.publish_error) ORDER BY d.seq), '[]')),
           count(*), CASE WHEN count(*) > 0 THEN 'done' ELSE 'refused' END
      FROM discarded d
)
SELECT id FROM discarded;

-- name: redriven
-- Opens a dead-lettered message, so that its next delivery is handled. last_error keeps the reason, and
-- dead_letter_begun_at shows that its dead letter may still be in the stream.
-- open: it is not processed; reopened: it was dead-lettered; action: the record, to be finished with the outcome.
-- Index: the primary key.
-- $1 message id, $2 actor, $3 reason.
WITH reopened AS (
    UPDATE inbox_messages i
       SET dead_lettered_at = NULL, dead_letter_reason = NULL, attempts = 0
     WHERE i.message_id = $1::uuid AND i.dead_lettered_at IS NOT NULL AND i.processed_at IS NULL
    RETURNING 1
), recorded AS (
    INSERT INTO operator_actions (actor, action, reason, selection, affected)
    VALUES ($2::text, 'redrive', $3::text, pg_catalog.jsonb_build_object('message_id', $1::uuid), 0)
    RETURNING id
)
SELECT NOT EXISTS (SELECT FROM inbox_messages i
                    WHERE i.message_id = $1::uuid AND i.processed_at IS NOT NULL) AS open,
       EXISTS (SELECT FROM reopened) AS reopened,
       (SELECT id FROM recorded) AS action;

-- name: close_messages
-- Closes unsettled messages that no worker leases: their reason is CLOSED, and they have no dead letter. They are never
-- handled again. Index: the primary key.
-- $1 ids, $2 note, $3 action.
WITH closed AS (
    UPDATE inbox_messages i
       SET dead_letter_reason = 'CLOSED', dead_lettered_at = clock_timestamp(),
           dead_letter_begun_at = coalesce(i.dead_letter_begun_at, clock_timestamp()),
           last_error = left(pg_catalog.concat_ws('; ', $2::text, i.last_error), 2000),
           locked_until = NULL, locked_by = NULL, reply = NULL
     WHERE i.message_id = ANY ($1::uuid[]) AND i.processed_at IS NULL AND i.dead_lettered_at IS NULL
       AND (i.locked_until IS NULL OR i.locked_until <= now())
    RETURNING i.message_id
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM closed),
           outcome = CASE WHEN EXISTS (SELECT FROM closed) THEN 'done' ELSE 'refused' END
     WHERE a.id = $3::bigint
)
SELECT message_id FROM closed;

-- name: record_purge
-- Records, before a dead letter is deleted, that its message is given up. may_go is false, and nothing is recorded, if
-- the message is open again, as during a redrive. Index: the primary key.
-- $1 message id, $2 note, $3 action.
WITH known AS MATERIALIZED (
    SELECT i.message_id, i.processed_at IS NULL AND i.dead_lettered_at IS NULL AS is_open
      FROM inbox_messages i
     WHERE i.message_id = $1::uuid
       FOR UPDATE
), noted AS (
    UPDATE inbox_messages i
       SET dead_letter_reason = 'CLOSED', last_error = left(pg_catalog.concat_ws('; ', $2::text, i.last_error), 2000)
      FROM known
     WHERE i.message_id = ANY (ARRAY[known.message_id]) AND i.dead_lettered_at IS NOT NULL
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + 1
     WHERE a.id = $3::bigint AND NOT EXISTS (SELECT FROM known WHERE is_open)
)
SELECT NOT EXISTS (SELECT FROM known WHERE is_open) AS may_go;
