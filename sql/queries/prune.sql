-- Deletes old finished rows, range of pages after range of pages. A range belongs to one relation: for a partitioned
-- table, the name of a partition replaces the table's.

-- name: outbox
-- Deletes published events from a range of pages; reads no index and needs none.
-- $1 first page, $2 page after the last, $3 published before, $4 action.
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
-- $1 first page, $2 page after the last, $3 processed before, $4 action.
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

-- name: count_outbox
-- Number of events that `outbox` would delete from a range of pages, and number of all.
-- $1 first page, $2 page after the last, $3 published before.
SELECT count(*) FILTER (WHERE o.published_at < $3::timestamptz) AS count, count(*) AS rows
  FROM outbox_events o
 WHERE o.ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid
   AND o.ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid;

-- name: count_inbox
-- The same for `inbox`.
-- $1 first page, $2 page after the last, $3 processed before.
SELECT count(*) FILTER (WHERE i.processed_at < $3::timestamptz
                           OR i.dead_letter_reason = 'CLOSED' AND i.dead_lettered_at < $3::timestamptz) AS count,
       count(*) AS rows
  FROM inbox_messages i
 WHERE i.ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid
   AND i.ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid;
