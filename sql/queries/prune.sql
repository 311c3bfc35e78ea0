-- What is finished and old leaves the tables, range of pages after range of pages. A range is one relation's: where a
-- table has partitions, the name of one of them stands in the place of the table's.

-- name: outbox
-- Deletes published events from a range of pages; reads no index and needs none.
-- $1 first page, $2 page behind the last, $3 published before, $4 action.
WITH pruned AS (
    DELETE FROM outbox_events o
     WHERE o.ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid
       AND o.ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid
       AND o.published_at < $3::timestamptz
    RETURNING 1
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM pruned)
     WHERE a.id = $4::bigint AND EXISTS (SELECT FROM pruned)
)
SELECT count(*) AS count FROM pruned;

-- name: inbox
-- Deletes processed and closed messages in the same way; dead-lettered ones and those still to be handled stay.
-- $1 first page, $2 page behind the last, $3 processed before, $4 action.
WITH pruned AS (
    DELETE FROM inbox_messages i
     WHERE i.ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid
       AND i.ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid
       AND (i.processed_at < $3::timestamptz
            OR i.dead_letter_reason = 'CLOSED' AND i.dead_lettered_at < $3::timestamptz)
    RETURNING 1
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM pruned)
     WHERE a.id = $4::bigint AND EXISTS (SELECT FROM pruned)
)
SELECT count(*) AS count FROM pruned;

-- name: drop_outbox
-- Drops a partition of which every event was published before, and notes its name; else tells why it stays.
-- $1 partition, $2 published before, $3 action.
WITH told AS MATERIALIZED (
    SELECT d.dropped, d.reason, d.events
      FROM pg_class c
     CROSS JOIN LATERAL outbox_drop_partition(c.relname::text, $2::timestamptz) d
     WHERE c.oid = $1::text::regclass
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + told.events::int,
           selection = pg_catalog.jsonb_set(a.selection, '{dropped}'::text[], coalesce(
               a.selection->'dropped'::text, '[]'::jsonb) || pg_catalog.to_jsonb($1::text))
      FROM told
     WHERE a.id = $3::bigint AND told.dropped
)
SELECT dropped, reason, events AS count FROM told;

-- name: count_outbox
-- How many events `outbox` would delete from the same range of pages, and how many are there.
-- $1 first page, $2 page behind the last, $3 published before.
SELECT count(*) FILTER (WHERE o.published_at < $3::timestamptz) AS count, count(*) AS rows
  FROM outbox_events o
 WHERE o.ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid
   AND o.ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid;

-- name: count_inbox
-- The same for `inbox`.
-- $1 first page, $2 page behind the last, $3 processed before.
SELECT count(*) FILTER (WHERE i.processed_at < $3::timestamptz
                           OR i.dead_letter_reason = 'CLOSED' AND i.dead_lettered_at < $3::timestamptz) AS count,
       count(*) AS rows
  FROM inbox_messages i
 WHERE i.ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid
   AND i.ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid;
