-- Positions of published events in their stream, from a bounded sample.

-- name: acknowledged
-- Of the PUBLISHED rows of a stream: the highest sequence, the number of rows that share their sequence with another
-- row, and a random choice of ids, sequences and times of publication. It reads the last pages of the table, which usually have the latest
-- rows, and the same number of random pages: a small table completely, some thousand rows of a large one.
-- Index: none.
-- $1 stream, $2 pages, $3 number of rows to return.
WITH size AS MATERIALIZED (
    SELECT pg_catalog.pg_relation_size('outbox_events'::regclass) / current_setting('block_size')::bigint AS own,
           (SELECT sum(pg_catalog.pg_relation_size(t.relid))::bigint
              FROM pg_catalog.pg_partition_tree('outbox_events'::regclass) t WHERE t.isleaf)
           / current_setting('block_size')::bigint AS leaves
), looked AS MATERIALIZED (
    SELECT o.id, o.stream_seq, o.published_at
      FROM outbox_events o TABLESAMPLE SYSTEM (
               least(100::float8, 100::float8 * $2::bigint::float8
                   / greatest(1::bigint, (SELECT own FROM size), (SELECT leaves FROM size))::float8))
     WHERE o.state = 'PUBLISHED' AND o.stream = $1::text
     UNION
    SELECT o.id, o.stream_seq, o.published_at
      FROM outbox_events o
     WHERE (SELECT own FROM size) > $2::bigint
       AND o.ctid >= ('(' || greatest(0::bigint, (SELECT own FROM size) - $2::bigint)::text || ',0)')::tid
       AND o.state = 'PUBLISHED' AND o.stream = $1::text
)
SELECT (SELECT max(stream_seq) FROM looked) AS greatest,
       (SELECT count(*) - pg_catalog.count(DISTINCT stream_seq) FROM looked) AS shared,
       ARRAY(SELECT l.id::text || ' ' || l.stream_seq::text || ' ' || extract(epoch FROM l.published_at)::text
               FROM looked l ORDER BY random() LIMIT $3::bigint) AS some;
