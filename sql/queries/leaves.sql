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
