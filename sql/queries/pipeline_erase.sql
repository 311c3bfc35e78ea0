-- The database's part of `pipeline erase`: finished rows of chosen events.

-- name: events
-- Reads the whole table if an aggregate or a key is given; otherwise the primary key.
-- $1 ids, $2 aggregate type, $3 aggregate id, $4 ordering key or partition key; null: not chosen by this.
SELECT o.id::text AS id, o.is_open, o.stream, o.stream_seq
  FROM outbox_events o
 WHERE o.id = ANY ($1::uuid[])
    OR o.aggregate_type = $2::text AND o.aggregate_id = $3::text
    OR o.ordering_key = $4::text
    OR o.partition_key = $4::text;

-- name: messages
-- Index: the primary key.
-- $1 ids.
SELECT i.message_id::text AS id, i.processed_at IS NULL AND i.dead_lettered_at IS NULL AS is_open, i.stream, i.stream_seq
  FROM inbox_messages i
 WHERE i.message_id = ANY ($1::uuid[]);

-- name: delete_messages
-- Deletes the finished rows of the inbox and counts them in the audit record; open: IDs of rows that must stay.
-- Index: the primary key.
-- $1 ids, $2 action.
WITH deleted AS (
    DELETE FROM inbox_messages i
     WHERE i.message_id = ANY ($1::uuid[]) AND (i.processed_at IS NOT NULL OR i.dead_lettered_at IS NOT NULL)
    RETURNING 1
), counted AS (
    UPDATE operator_actions a SET affected = a.affected + (SELECT count(*) FROM deleted) WHERE a.id = $2::bigint
)
SELECT (SELECT count(*) FROM deleted) AS count,
       ARRAY(SELECT i.message_id::text FROM inbox_messages i
              WHERE i.message_id = ANY ($1::uuid[]) AND i.processed_at IS NULL AND i.dead_lettered_at IS NULL) AS open;

-- name: delete_events
-- The same for the outbox.
-- $1 ids, $2 action.
WITH deleted AS (
    DELETE FROM outbox_events o WHERE o.id = ANY ($1::uuid[]) AND NOT o.is_open RETURNING 1
), counted AS (
    UPDATE operator_actions a SET affected = a.affected + (SELECT count(*) FROM deleted) WHERE a.id = $2::bigint
)
SELECT (SELECT count(*) FROM deleted) AS count,
       ARRAY(SELECT o.id::text FROM outbox_events o WHERE o.id = ANY ($1::uuid[]) AND o.is_open) AS open;
