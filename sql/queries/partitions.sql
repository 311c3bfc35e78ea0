-- The outbox in partitions, as sql/partitions.sql makes them. The functions are those of the migrations.

-- name: exist
-- Whether the outbox has partitions.
SELECT c.relkind = 'p'::"char" AS exist FROM pg_class c WHERE c.oid = 'outbox_events'::regclass;

-- name: make
-- Creates the missing partitions of today and of the $1 days after it; one row for each.
-- $1 days.
SELECT outbox_make_partitions($1::int) AS name;

-- name: list
-- Where the rows are: in the table itself, or in each of these. from_at and until_at are null where a range has no end.
SELECT p.partition, p.from_at, p.until_at, p.is_default,
       pg_total_relation_size(pg_catalog.format('%I', p.partition)::regclass) AS bytes
  FROM outbox_partitions() p;

-- name: record
-- $1 actor, $2 reason.
INSERT INTO operator_actions (actor, action, reason, selection, affected, outcome)
VALUES ($1::text, 'partition_outbox', $2::text, '{}', 0, 'done');
