-- name: leaves
-- The relations that hold a table's rows: the table itself, or its partitions. Pages, and places of rows in them, are
-- one relation's. until_at: the time at which the range of its ids ends; null: it has no such end.
-- $1 table.
SELECT c.oid::regclass::text AS name,
       pg_relation_size(c.oid::regclass) / current_setting('block_size')::bigint AS pages, p.until_at
  FROM pg_class c
  LEFT JOIN outbox_partitions() p ON p.partition = c.relname::text
 WHERE c.oid = $1::text::regclass AND c.relkind <> 'p'
    OR c.oid IN (SELECT t.relid FROM pg_partition_tree($1::text::regclass) t WHERE t.isleaf)
 ORDER BY p.until_at, 1;

-- name: drop_leaf
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
