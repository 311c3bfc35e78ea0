-- Deletes old finished rows, range of pages after range of pages, without an index. A range belongs to one relation:
-- for a partitioned table, the name of a partition replaces the table's.
-- $1 first page, $2 page after the last, $3 finished before, $4 action.

-- fragment: in_range
old.ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid AND old.ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid

-- fragment: is_settled
-- Processed, or closed by an operator; dead-lettered messages and those still to be handled stay.
(old.processed_at < $3::timestamptz OR old.dead_letter_reason = 'CLOSED' AND old.dead_lettered_at < $3::timestamptz)

-- fragment: is_referenced
-- Whether a foreign key keeps the row; replaced by the conditions of `references` in leaves.sql.
old.ctid IS NULL

-- fragment: counted
counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + (SELECT count(*) FROM pruned)
     WHERE a.id = $4::bigint AND EXISTS (SELECT FROM pruned)
)
SELECT count(*) AS count FROM pruned

-- name: outbox
-- Deletes published events.
WITH pruned AS (
    DELETE FROM outbox_events old
     WHERE :in_range AND old.published_at < $3::timestamptz AND NOT (:is_referenced) RETURNING 1
), :counted;

-- name: inbox
-- Deletes processed and closed messages.
WITH pruned AS (
    DELETE FROM inbox_messages old WHERE :in_range AND :is_settled AND NOT (:is_referenced) RETURNING 1
), :counted;

-- name: count_outbox
-- Number of events that `outbox` would delete, number of those that a foreign key keeps, and number of all.
SELECT count(*) FILTER (WHERE old.published_at < $3::timestamptz AND NOT (:is_referenced)) AS count,
       count(*) FILTER (WHERE old.published_at < $3::timestamptz AND (:is_referenced)) AS referenced, count(*) AS rows
  FROM outbox_events old
 WHERE :in_range;

-- name: count_inbox
-- The same for `inbox`.
SELECT count(*) FILTER (WHERE :is_settled AND NOT (:is_referenced)) AS count,
       count(*) FILTER (WHERE :is_settled AND (:is_referenced)) AS referenced, count(*) AS rows
  FROM inbox_messages old
 WHERE :in_range;
