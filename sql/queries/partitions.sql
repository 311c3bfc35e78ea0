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
