-- name: leaves
-- The relations that hold a table's rows: the table itself, or its partitions. Pages, and places of rows in them, are
-- one relation's.
-- $1 table.
SELECT c.oid::regclass::text AS name,
       pg_relation_size(c.oid::regclass) / current_setting('block_size')::bigint AS pages
  FROM pg_class c
 WHERE c.oid = $1::text::regclass AND c.relkind <> 'p'
    OR c.oid IN (SELECT t.relid FROM pg_partition_tree($1::text::regclass) t WHERE t.isleaf)
 ORDER BY 1;
