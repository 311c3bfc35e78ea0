-- Queries of `pipeline reconcile`, in the snapshot of its tables.

-- name: actions
-- Replays explain further copies in a stream; prunes, archives and erasures explain rows that are gone. An erasure
-- counts no rows that only the lake had.
SELECT at, action, selection::text AS selection
  FROM operator_actions
 WHERE action IN ('replay', 'prune_outbox', 'prune_inbox', 'archive') AND affected > 0 OR action = 'erase'
 ORDER BY id;

-- name: first_seqs
-- The lowest sequence by stream that rows of a period name, whatever the broker's clock said.
-- $1 begin of the period.
SELECT stream, min(stream_seq) AS seq
  FROM (SELECT o.stream, o.stream_seq FROM outbox_events o WHERE o.created_at >= $1::timestamptz
         UNION ALL
        SELECT i.stream, i.stream_seq FROM inbox_messages i WHERE i.received_at >= $1::timestamptz) named
 WHERE stream_seq IS NOT NULL
 GROUP BY stream;
