-- The outbox in partitions, as divided by sql/partitions.sql. The functions are in the migrations.

-- name: exist
-- Whether the outbox has partitions.
SELECT c.relkind = 'p'::"char" AS exist FROM pg_class c WHERE c.oid = 'outbox_events'::regclass::oid;

-- name: make
-- Creates the missing partitions of today and of the $1 days after it; one row for each.
-- $1 days.
SELECT outbox_make_partitions($1::int) AS name;

-- name: list
-- The relations that hold the rows: the table, or its partitions. from_at and until_at are null without a bound.
SELECT p.partition, p.from_at, p.until_at, p.is_default,
       pg_total_relation_size(pg_catalog.format('%I', p.partition)::regclass) AS bytes
  FROM outbox_partitions() p;

-- name: record
-- $1 actor, $2 reason.
INSERT INTO operator_actions (actor, action, reason, selection, affected, outcome)
VALUES ($1::text, 'partition_outbox', $2::text, '{}', 0, 'done');

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

-- name: references
-- Foreign keys that keep rows of a table from being deleted: the constraint and its table, whether this login may read
-- the table, and the condition by which a row `old` is referenced.
-- $1 table.
SELECT c.conname::text AS name, c.conrelid::regclass::text AS relation,
       has_schema_privilege(t.relnamespace, 'USAGE')
       AND bool_and(has_column_privilege(c.conrelid, own.attnum, 'SELECT')) AS may_read,
       pg_catalog.format('EXISTS (SELECT FROM %s r WHERE %s)', c.conrelid::regclass,
           string_agg(pg_catalog.format('r.%I OPERATOR(pg_catalog.=) old.%I', own.attname, other.attname), ' AND '))
           AS condition
  FROM pg_constraint c
  JOIN pg_class t ON t.oid = c.conrelid
 CROSS JOIN LATERAL unnest(c.conkey, c.confkey) AS pair (own, other)
  JOIN pg_attribute own ON own.attrelid = c.conrelid AND own.attnum = pair.own
  JOIN pg_attribute other ON other.attrelid = c.confrelid AND other.attnum = pair.other
 WHERE c.contype = 'f'::"char" AND c.confdeltype IN ('a'::"char", 'r'::"char") AND c.conparentid = 0::oid
   AND (c.confrelid = $1::text::regclass::oid
        OR c.confrelid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = $1::text::regclass::oid))
 GROUP BY c.oid, c.conname, c.conrelid, t.relnamespace
 ORDER BY 2, 1;

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
