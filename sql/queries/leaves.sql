-- name: leaves
-- The relations that hold a table's rows: the table itself, or its partitions. Page numbers are per relation. until_at:
-- end of the range of its ids; null: no end.
-- $1 table.
SELECT c.oid::regclass::text AS name,
       pg_relation_size(c.oid::regclass) / current_setting('block_size')::bigint AS pages, p.until_at
  FROM pg_class c
  LEFT JOIN outbox_partitions() p ON p.partition = c.relname::text
 WHERE c.oid = $1::text::regclass::oid AND c.relkind <> 'p'
    OR c.oid IN (SELECT t.relid::oid FROM pg_partition_tree($1::text::regclass) t WHERE t.isleaf)
 ORDER BY p.until_at, 1;

-- name: drop_leaf
-- Drops a partition whose events were all published before a time, and records its name; otherwise returns the reason.
-- $1 partition, $2 published before, $3 action.
WITH dropping AS MATERIALIZED (
    SELECT d.dropped, d.reason, d.events
      FROM pg_class c
     CROSS JOIN LATERAL outbox_drop_partition(c.relname::text, $2::timestamptz) d
     WHERE c.oid = $1::text::regclass::oid
), counted AS (
    UPDATE operator_actions a
       SET affected = a.affected + dropping.events::int,
           selection = pg_catalog.jsonb_set(a.selection, '{dropped}'::text[], coalesce(
               a.selection->'dropped'::text, '[]'::jsonb) || pg_catalog.to_jsonb($1::text))
      FROM dropping
     WHERE a.id = $3::bigint AND dropping.dropped
)
SELECT dropped, reason, events AS count FROM dropping;
